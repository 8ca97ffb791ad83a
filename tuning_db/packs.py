"""Packs: tuned configs as JSON, to ship with kgen or to carry from one machine to another of the same card.

A pack holds the bests and the buckets of one GPU and one origin; measured and modelled times never share a file. It is data:
every key and value is checked before anything is stored, nothing in it is evaluated, and what is imported counts as unverified
until the config has been verified on this machine.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from kgen.codegen.kept import kept
from kgen.dsl.errors import DatabaseError
from kgen.tuning_db.records import (
    MEASURED,
    ORIGINS,
    BestRecord,
    BucketRecord,
    ConfigText,
    GpuFacts,
    ProblemKey,
    Toolchain,
    TrialRecord,
)

if TYPE_CHECKING:
    from kgen.tuning_db.store import Store

_Record = TypeVar("_Record", BestRecord, BucketRecord)

FORMAT = "kgen-pack"
VERSION = 3
#: Packs before buckets.
_WITHOUT_BUCKETS = 2
MAX_BYTES = 64 << 20

SHIPPED = Path(__file__).parent / "packs"
"""The packs that come with kgen, one for each card that it was tuned on."""

_LOCAL = {"id", "verified", "status", "origin"}
"""Fields of a trial that a pack does not hold: the entry's place in the pack, or this machine, says them."""


def export_pack(
    store: Store, gpu: GpuFacts, path: str | os.PathLike[str], origin: str = MEASURED, operator: str | None = None
) -> int:
    """Writes the bests and buckets of one origin on a GPU, of one operator when given, to `path`; returns how many.

    Unverified ones are left out. The file appears whole or not at all. Raises DatabaseError when there is nothing
    to write.
    """
    from kgen.tuning_db.buckets import all_buckets

    records = [record for record in store.all_best(gpu, origin, operator) if record.trial.verified]
    buckets = [record for record in all_buckets(store, gpu, origin, operator) if record.trial.verified]
    if not records and not buckets:
        of = "" if operator is None else f" of {operator}"
        raise DatabaseError(f"no verified {origin} configs{of} for {gpu.name} in {store.where}; tune some first")
    pack = {
        "format": FORMAT,
        "version": VERSION,
        "origin": origin,
        "gpu": asdict(gpu),
        "entries": [_entry(record, "comparison") for record in records],
        "buckets": [_entry(record, "spans", "evidence") for record in buckets],
    }
    _write(Path(path), json.dumps(pack, indent=1, sort_keys=True, allow_nan=False) + "\n")
    return len(records) + len(buckets)


def import_pack(store: Store, gpu: GpuFacts, path: str | os.PathLike[str]) -> int:
    """Stores the entries of a pack for this `gpu`, all or none, as unverified; returns how many were new.

    The pack's card must be the same model (name, architecture, SM count, L2 size); driver and power limit may
    differ. What is already tuned here is kept. Raises DatabaseError when the pack is malformed or for another card.
    """
    from kgen.tuning_db.buckets import import_buckets

    pack = read_pack(path)
    if not pack.gpu.same_card(gpu):
        raise DatabaseError(f"pack {os.fspath(path)} is for {pack.gpu}; this GPU is {gpu}. Tune for this GPU instead")
    return store.import_best(gpu, pack.bests) + import_buckets(store, gpu, pack.buckets)


class Pack(NamedTuple):
    """What a pack holds, all of it unverified; `gpu` is the one that it was made on."""

    gpu: GpuFacts
    bests: tuple[BestRecord, ...]
    buckets: tuple[BucketRecord, ...]


def read_pack(path: str | os.PathLike[str]) -> Pack:
    """The contents of a pack. Raises DatabaseError naming the place that is malformed."""
    where = os.fspath(path)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DatabaseError(f"cannot read pack {where}: {error}") from error
    if len(data) > MAX_BYTES:
        raise DatabaseError(f"pack {where} is larger than {MAX_BYTES} bytes; expected a pack that kgen exported")
    try:
        pack = json.loads(data, parse_constant=_no_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise DatabaseError(f"pack {where} is not valid JSON: {error}") from error
    try:
        return _pack(pack)
    except DatabaseError as error:
        raise DatabaseError(f"pack {where} is malformed: {error}") from error


def shipped(gpu: GpuFacts, digest: str, sizes: Mapping[str, int]) -> Sequence[BestRecord]:
    """The bests of a graph at these sizes that come with kgen for this model of card; driver and power limit may differ."""
    return _shipped(gpu).bests(digest).get(frozenset(sizes.items()), ())


def shipped_buckets(gpu: GpuFacts) -> tuple[BucketRecord, ...]:
    """The buckets that come with kgen for this model of card; driver and power limit may differ."""
    return _shipped(gpu).buckets


class _Shipped:
    """The packs of a card, whose entries become records when their graph is asked for: a first call waits for them.

    What it asks for is kept on disk by itself: it is a hundredth of what is shipped.
    """

    def __init__(self, gpu: GpuFacts) -> None:
        self._gpu = gpu
        #: By the digest of a graph, then by sizes: of the hundreds that a graph may have a first call reads its own.
        self._bests: dict[str, dict[frozenset[tuple[str, int]], list[BestRecord]]] = {}

    @functools.cached_property
    def _packs(self) -> list[dict[str, Any]]:
        packs = [json.loads(path.read_bytes()) for path in _shipped_files()]
        return [pack for pack in packs if GpuFacts(**pack["gpu"]).same_card(self._gpu)]

    @functools.cached_property
    def buckets(self) -> tuple[BucketRecord, ...]:
        packs = self._kept("buckets", lambda: [{**pack, "entries": []} for pack in self._packs])
        return tuple(record for pack in packs for record in _pack(pack).buckets)

    def bests(self, digest: str) -> Mapping[frozenset[tuple[str, int]], list[BestRecord]]:
        def mine() -> list[dict[str, Any]]:
            entries = [[e for e in pack["entries"] if e["problem"]["digest"] == digest] for pack in self._packs]
            return [{**pack, "entries": e, "buckets": []} for pack, e in zip(self._packs, entries)]

        found = self._bests.get(digest)
        if found is None:
            found = self._bests[digest] = defaultdict(list)
            for record in (record for pack in self._kept(digest, mine) for record in _pack(pack).bests):
                found[frozenset(record.problem.sizes.items())].append(record)
        return found

    def _kept(self, of: str, make: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        files = [(os.fspath(path), path.stat().st_size, path.stat().st_mtime_ns) for path in _shipped_files()]
        found: list[dict[str, Any]] = json.loads(
            kept("shipped", (repr(files), repr(self._gpu), of), lambda: json.dumps(make()).encode())
        )
        return found


_shipped = functools.cache(_Shipped)


def _shipped_files() -> list[Path]:
    return sorted(SHIPPED.glob("*.json"))


def _pack(pack: object) -> Pack:
    if isinstance(pack, dict) and pack.get("version") == _WITHOUT_BUCKETS:
        pack = {"buckets": [], **pack}
    top = _object("pack", pack, {"format", "version", "origin", "gpu", "entries", "buckets"})
    if top["format"] != FORMAT or top["version"] not in (_WITHOUT_BUCKETS, VERSION):
        raise DatabaseError(
            f"it has format {top['format']!r} version {top['version']!r}; this kgen reads {FORMAT!r} version {VERSION}"
        )
    if top["origin"] not in ORIGINS:
        raise DatabaseError(f"origin is {top['origin']!r}; expected one of {', '.join(ORIGINS)}")
    for name in ("entries", "buckets"):
        if not isinstance(top[name], list):
            raise DatabaseError(f"{name} is a {type(top[name]).__name__}; expected a list")
    gpu = GpuFacts(**_object("gpu", top["gpu"], _names(GpuFacts)))
    origin = top["origin"]
    bests = [_record(BestRecord, f"entries[{i}]", e, gpu, origin, "comparison") for i, e in enumerate(top["entries"])]
    buckets = [
        _record(BucketRecord, f"buckets[{i}]", e, gpu, origin, "spans", "evidence")
        for i, e in enumerate(top["buckets"])
    ]
    return Pack(gpu, tuple(bests), tuple(buckets))


def _entry(record: BestRecord | BucketRecord, *further: str) -> dict[str, Any]:
    trial = {name: value for name, value in asdict(record.trial).items() if name not in _LOCAL}
    if record.trial.created_at is not None:
        trial["created_at"] = record.trial.created_at.isoformat()
    return {
        "problem": asdict(record.problem),
        "toolchain": asdict(record.toolchain),
        "trial": trial,
        **{name: dict(getattr(record, name)) for name in further},
    }


def _record(kind: type[_Record], where: str, entry: object, gpu: GpuFacts, origin: str, *further: str) -> _Record:
    """A record of an entry; `further` are what it has beside the trial and what that is of."""
    try:
        parts = _object("entry", entry, {"problem", "toolchain", "trial", *further})
        trial = _object("trial", parts["trial"], _names(TrialRecord) - _LOCAL)
        trial["config"] = ConfigText(**_object("config", trial["config"], _names(ConfigText)))
        trial["created_at"] = _date(trial["created_at"])
        return kind(
            problem=ProblemKey(**_object("problem", parts["problem"], _names(ProblemKey))),
            gpu=gpu,
            toolchain=Toolchain(**_object("toolchain", parts["toolchain"], _names(Toolchain))),
            trial=TrialRecord(**trial, status="ok", origin=origin, verified=False),
            **{name: parts[name] for name in further},
        )
    except DatabaseError as error:
        raise DatabaseError(f"{where}: {error}") from error


def _object(what: str, value: object, names: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DatabaseError(f"{what} is a {type(value).__name__}; expected an object with {', '.join(sorted(names))}")
    told = [f"unknown {name!r}" for name in sorted(value.keys() - names)]
    told += [f"missing {name!r}" for name in sorted(names - value.keys())]
    if told:
        raise DatabaseError(f"{what} has {', '.join(told)}; expected exactly {', '.join(sorted(names))}")
    return dict(value)


def _names(kind: type[Any]) -> set[str]:
    return {entry.name for entry in fields(kind)}


def _date(value: object) -> datetime:
    try:
        if isinstance(value, str):
            return datetime.fromisoformat(value)
    except ValueError:
        pass
    raise DatabaseError(f"created_at is {value!r}; expected a date and time such as 2025-01-31T12:00:00+00:00")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON allows")


def _unique(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("an object names the same key twice")
    return made


def _write(path: Path, text: str) -> None:
    """Writes a regular file whole, in place of one of the same name; what is no regular file is never replaced."""
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}")
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise DatabaseError(f"cannot write pack {path}: it is no regular file; name a new file or one to replace")
        try:
            with open(temporary, "x", encoding="utf-8") as file:  # its mode is what the umask leaves
                file.write(text)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise DatabaseError(f"cannot write pack {path}: {error}") from error

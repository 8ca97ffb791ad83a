"""Machines: the constants of cost models by GPU, as JSON files, and what a GPU without its own takes from another.

machines/<gpu>.json come with kgen; files of the same form in the user's cache folder (`machines/`), which `kgen fit` writes,
come first. A GPU that has constants of a model was measured. Any other is given those of the card like it, of its own
architecture where there is one, scaled by the data sheet: constants that go with a fact of the GPU by the ratio of that fact,
all others as they are, since they are relative already.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any, TypeVar

from kgen.codegen.settings import cache_dir
from kgen.dsl.errors import DatabaseError
from kgen.dsl.machine import Constants, Fitted, Machine, scales
from kgen.dsl.target import TARGETS, Target

FORMAT, VERSION = "kgen-machine", 1
SHIPPED = Path(__file__).parent / "machines"
_ORIGINS = ("fitted", "counted")
C = TypeVar("C", bound=Constants)


def constants(kind: type[C], target: Target) -> C:
    """A model's constants on a GPU: those of `target.machine` where it names one, else those known of it, or scaled."""
    if target.machine is not None:
        return target.machine.of(kind)
    found: C = _known(kind, target)[0]  # type: ignore[arg-type]  # mypy takes the hash of instances
    return found


def origin(kind: type[Constants], target: Target) -> str:
    """Where a model's constants on a GPU are from: `fitted on H200`, `scaled from H200`."""
    if target.machine is not None:
        return f"given with {target.machine.gpu}"
    return _known(kind, target)[1]  # type: ignore[arg-type]  # mypy takes the hash of instances


@functools.lru_cache(maxsize=1024)
def _known(kind: type[C], target: Target) -> tuple[C, str]:
    found = [m for m in machines() if kind.model in m.models]
    own = next((m for m in found if m.gpu == target.name), None)
    if own is not None:
        return own.of(kind), f"{own.models[kind.model].origin} on {own.gpu}"
    like = next((m for m in found if TARGETS[m.gpu].arch == target.arch), None) or (found[0] if found else None)
    if like is None:
        raise DatabaseError(f"no machine in {SHIPPED} has constants of the model {kind.model}")
    values, measured = vars(like.of(kind)), TARGETS[like.gpu]
    ratios = {name: getattr(target, fact) / getattr(measured, fact) for name, fact in scales(kind).items() if fact}
    scaled = {name: value * ratios.get(name, 1.0) for name, value in values.items()}
    return kind(**scaled), f"scaled from {like.gpu}"


@functools.cache
def machines() -> tuple[Machine, ...]:
    """Those of the user, then those that come with kgen."""
    return tuple(read_machine(file) for folder in (user_folder(), SHIPPED) for file in sorted(folder.glob("*.json")))


@functools.cache
def digest() -> str:
    """Of all constants that are known: what follows from them, and is kept, is found by it."""
    return hashlib.sha256(repr(machines()).encode()).hexdigest()


def forget() -> None:
    """Has the files read again."""
    machines.cache_clear()
    digest.cache_clear()
    _known.cache_clear()


def user_folder() -> Path:
    """Where the user's own machines are; it need not exist."""
    return cache_dir() / "machines"


def file_name(gpu: str) -> str:
    """`h100_sxm.json` for H100 SXM."""
    return re.sub(r"[^a-z0-9]+", "_", gpu.lower()).strip("_") + ".json"


def read_machine(path: str | os.PathLike[str]) -> Machine:
    """A machine's file. DatabaseError that names what is malformed."""
    try:
        data = json.loads(Path(path).read_text("utf-8"))
        return _machine(data)
    except (OSError, ValueError) as error:
        raise DatabaseError(f"cannot read machine {os.fspath(path)}: {error}") from error


def write_machine(path: str | os.PathLike[str], machine: Machine) -> None:
    """Writes a machine's file, whole or not at all."""
    models = {
        name: {"origin": m.origin, "evidence": m.evidence, "constants": dict(m.constants)}
        for name, m in machine.models.items()
    }
    top = {"format": FORMAT, "version": VERSION, "gpu": machine.gpu, "models": models}
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(top, indent=1, allow_nan=False) + "\n", "utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise DatabaseError(f"cannot write machine {path}: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _machine(data: Any) -> Machine:
    top = _object("it", data, {"format", "version", "gpu", "models"})
    if (top["format"], top["version"]) != (FORMAT, VERSION):
        raise ValueError(f"it has format {top['format']!r} version {top['version']!r}; expected {FORMAT!r} {VERSION}")
    if top["gpu"] not in TARGETS:
        raise ValueError(f"gpu is {top['gpu']!r}; expected one of {', '.join(TARGETS)}")
    if not isinstance(top["models"], dict):
        raise ValueError(f"models is a {type(top['models']).__name__}; expected an object")
    return Machine(top["gpu"], {name: _fitted(name, model) for name, model in top["models"].items()})


def _fitted(name: str, data: Any) -> Fitted:
    model = _object(name, data, {"origin", "evidence", "constants"})
    if model["origin"] not in _ORIGINS or not isinstance(model["evidence"], str):
        raise ValueError(f"{name} is {model['origin']!r} by {model['evidence']!r}; expected {_ORIGINS} and a text")
    values = model["constants"]
    if not isinstance(values, dict) or not all(map(_is_number, values.values())):
        raise ValueError(f"{name} has constants {values!r}; expected finite numbers by name")
    return Fitted(model["origin"], model["evidence"], {key: float(value) for key, value in values.items()})


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _object(what: str, value: Any, names: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != names:
        there = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise ValueError(f"{what} has {there}; expected exactly {sorted(names)}")
    return value

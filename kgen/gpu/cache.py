"""CubinCache: compiled kernels on disk, found by the digest of everything that went into them.

One file an entry: the SHA-256 of the rest, a line of JSON with the facts of the Binary, the cubin. A file is written
under a temporary name and renamed, so that any number of processes may share the folder; one that does not match its
digest is as good as absent. cuda.core's file cache keeps the code alone, without the log and the figures that decide
whether a kernel may run; hence this one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from pathlib import Path

from kgen.codegen.cache_folder import open_folder, read_whole, write_whole
from kgen.codegen.settings import cache_dir
from kgen.gpu.binary import Binary

#: Raised with every change to the format of an entry or to the meaning of a key.
SCHEMA = 1


def cache_key(*parts: str) -> str:
    """SHA-256 over the parts, each with its length, so that no two lists of parts run together."""
    digest = hashlib.sha256(f"kgen cubin {SCHEMA}".encode())
    for part in parts:
        data = part.encode()
        digest.update(f"\n{len(data)}:".encode() + data)
    return digest.hexdigest()


class CubinCache:
    """The cache in `directory`, by default `cubins` in kgen's cache folder. The folder is made on first use.

    Raises CacheError there where it cannot be used, or others may write into it.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = Path(directory) if directory else cache_dir() / "cubins"
        self._ready = False

    def get(self, key: str) -> Binary | None:
        """The entry under `key`, or None when there is none or it is damaged."""
        self._prepare()
        entry = read_whole(self.directory / key)
        if entry is None:
            return None
        facts, _, cubin = entry.partition(b"\n")
        return _decode(facts, cubin)

    def put(self, key: str, binary: Binary) -> None:
        """Stores an entry. A full or failing disk costs the entry, with a warning, not the kernel."""
        self._prepare()
        try:
            write_whole(self.directory / key, _encode(binary))
        except OSError as error:
            warnings.warn(f"kernel not cached in {self.directory}: {error}", RuntimeWarning, stacklevel=2)

    def _prepare(self) -> None:
        if not self._ready:
            open_folder(self.directory)
            self._ready = True


def _encode(binary: Binary) -> bytes:
    facts = {f.name: getattr(binary, f.name) for f in dataclasses.fields(binary) if f.name not in ("cubin", "cached")}
    return json.dumps(facts).encode() + b"\n" + binary.cubin


def _decode(facts: bytes, cubin: bytes) -> Binary | None:
    """The Binary of an entry whose digest is right; None when it was written by a kgen with other fields."""
    try:
        values = json.loads(facts)
        values["warnings"] = tuple((code, text) for code, text in values["warnings"])
        return Binary(cubin=cubin, cached=True, **values)
    except (ValueError, KeyError, TypeError):
        return None

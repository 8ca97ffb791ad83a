"""Kept: what takes long to make of kgen's own code and data, on disk: the next process reads it in a millisecond.

A file is found by the digest of everything that it follows from: what it is of, in words, and kgen's own code, by the sizes and
times of its files. One that is damaged is as good as absent.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

from kgen.codegen.cache_folder import open_folder, read_whole, write_whole
from kgen.codegen.settings import cache_dir
from kgen.dsl.errors import CacheError
from kgen.dsl.version import VERSION

_PACKAGE = Path(__file__).parent.parent
#: What rules, shortlists and kernels are made of.
_CODE = ("dsl", "ops", "tuner", "codegen")


def kept(folder: str, parts: tuple[str, ...], make: Callable[[], bytes]) -> bytes:
    """What `make` gives, which follows from `parts` and kgen's code alone: that on disk, or else made and kept."""
    path = _path(folder, parts)
    found = read_whole(path) if path else None
    if found is None:
        found = make()
        with contextlib.suppress(OSError):  # a full disk costs the file alone
            if path:
                write_whole(path, found)
    return found


def found_on_disk(folder: str, parts: tuple[str, ...]) -> bytes | None:
    """What was kept so; None where nothing was."""
    path = _path(folder, parts)
    return read_whole(path) if path else None


def _path(folder: str, parts: tuple[str, ...]) -> Path | None:
    """The file; None where its folder is not the user's alone: what lies there may run."""
    path = cache_dir() / folder / hashlib.sha256("\n".join((VERSION, stamp(), *parts)).encode()).hexdigest()
    try:
        open_folder(path.parent)
    except CacheError:
        return None
    return path


@functools.cache
def stamp() -> str:
    """The code that runs, and the templates."""
    digest = hashlib.sha256()
    folders = (*(_PACKAGE / name for name in _CODE), Path(str(resources.files("kgen.templates"))))
    for entry in sorted(entry for folder in folders for entry in _files(folder)):
        digest.update(repr(entry).encode())
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file():
                facts = entry.stat()
                yield entry.path, facts.st_size, facts.st_mtime_ns
            elif entry.name != "__pycache__":
                yield from _files(Path(entry.path))

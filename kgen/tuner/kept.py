"""Columns of problem classes kept on disk: what takes a tenth of a second to enumerate, the next process reads in a millisecond.

A file is found by the digest of everything that it follows from: the class, the target, and kgen's own code, by the sizes and
times of its files. One that is damaged is as good as absent.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path

from kgen.codegen.cache_folder import open_folder, read_whole, write_whole
from kgen.codegen.settings import cache_dir
from kgen.dsl.errors import CacheError
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.dsl.version import VERSION

_PACKAGE = Path(__file__).parent.parent
#: What rules and shortlists are made of.
_CODE = (_PACKAGE / "dsl", _PACKAGE / "ops", _PACKAGE / "tuner", _PACKAGE / "codegen")


def kept(schedule: type[Schedule], of: Hashable, target: Target, make: Callable[[], bytes]) -> bytes:
    """What `make` gives of a schedule's class `of`: that on disk, or else made and kept."""
    text = _text(of)
    if text is None or not schedule.__module__.startswith("kgen."):
        return make()
    parts = (VERSION, _stamp(), schedule.__name__, text, repr(target))
    path = cache_dir() / "spaces" / hashlib.sha256("\n".join(parts).encode()).hexdigest()
    found = read_whole(path)
    if found is None:
        found = make()
        with contextlib.suppress(OSError, CacheError):  # a full disk or another's folder costs the file alone
            open_folder(path.parent)
            write_whole(path, found)
    return found


def _text(value: Hashable) -> str | None:
    """A key in words that no other has; None where it has something of which that is not known."""
    if isinstance(value, tuple):
        parts = [_text(part) for part in value]
        return None if None in parts else f"({','.join(map(str, parts))})"
    return repr(value) if value is None or isinstance(value, (bool, int, str)) else None


@functools.cache
def _stamp() -> str:
    """The code that runs."""
    digest = hashlib.sha256()
    for entry in sorted(entry for folder in _CODE for entry in _files(folder)):
        digest.update(repr(entry).encode())
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                facts = entry.stat()
                yield entry.path, facts.st_size, facts.st_mtime_ns
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _files(Path(entry.path))

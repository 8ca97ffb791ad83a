"""Folders of the cache, the user's alone and rid of what killed processes left; and files that are whole or not there."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kgen.dsl.errors import CacheError

#: How the name of what is still being made begins; once it is whole it is renamed.
TEMPORARY = ".build-"
#: Seconds after which nobody can be making it still. By age and not by process: machines and containers may share a folder.
_STALE = 3600


@contextlib.contextmanager
def using(folder: Path) -> Iterator[None]:
    """Turns what the file system refuses into a CacheError that says what to do."""
    try:
        yield
    except OSError as error:
        raise CacheError(
            f"cannot use the cache folder {folder}: {error.strerror or error}; set KGEN_CACHE_DIR to a folder you can write"
        ) from error


def open_folder(folder: Path) -> None:
    """Makes a folder of the user's alone, with those above it, or checks that it is; what lies in it will run.

    Raises CacheError where it cannot be made or somebody else may write into it.
    """
    with using(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    if os.name == "posix" and (status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise CacheError(
            f"the cache folder {folder} belongs to another user or others may write to it (mode "
            f"{stat.S_IMODE(status.st_mode):o}); it must be yours alone: chmod 700 it or set KGEN_CACHE_DIR"
        )
    _clean(folder)


@functools.cache
def _clean(folder: Path) -> None:
    """Removes what was begun too long ago to be finished; once a process."""
    with contextlib.suppress(OSError):  # another process may be at it, or the folder be read-only
        for path in folder.glob(f"{TEMPORARY}*"):
            if time.time() - path.lstat().st_mtime > _STALE:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)


def read_whole(path: Path) -> bytes | None:
    """What `write_whole` wrote; None where there is nothing or it is damaged."""
    try:
        digest, _, data = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest().encode() == digest else None


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file behind the SHA-256 of what is in it, whole or not at all. Raises OSError."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)

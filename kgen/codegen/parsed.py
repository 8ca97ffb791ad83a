"""Templates as Python's bytecode, kept on disk: what jinja takes a twentieth of a second to parse, the next process reads."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket

from kgen.codegen.cache_folder import open_folder, read_whole, write_whole
from kgen.codegen.settings import cache_dir
from kgen.dsl.errors import CacheError
from kgen.dsl.version import VERSION


class ParsedTemplates(jinja2.BytecodeCache):
    """Files of the cache folder. Jinja checks that one is of this Python and this text; a damaged one is as good as absent.

    It runs as code: a folder that others may write to is not read. What cannot be written costs the next process its time alone.
    """

    def load_bytecode(self, bucket: Bucket) -> None:
        with contextlib.suppress(CacheError):
            path = _path(bucket)
            open_folder(path.parent)
            found = read_whole(path)
            if found is not None:
                bucket.bytecode_from_string(found)

    def dump_bytecode(self, bucket: Bucket) -> None:
        with contextlib.suppress(CacheError, OSError):
            path = _path(bucket)
            open_folder(path.parent)
            write_whole(path, bucket.bytecode_to_string())


def _path(bucket: Bucket) -> Path:
    key = "\n".join((VERSION, jinja2.__version__, bucket.key))
    return cache_dir() / "parsed" / hashlib.sha256(key.encode()).hexdigest()

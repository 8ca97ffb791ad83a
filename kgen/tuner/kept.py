"""Columns of problem classes kept on disk: what takes a tenth of a second to enumerate, the next process reads in a millisecond.

They follow from the class, the target, and kgen's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from kgen.codegen import kept as files
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target


def kept(schedule: type[Schedule], of: Hashable, target: Target, make: Callable[[], bytes]) -> bytes:
    """What `make` gives of a schedule's class `of`: that on disk, or else made and kept."""
    parts = _parts(schedule, of, target)
    return files.kept("spaces", parts, make) if parts else make()


def found_on_disk(schedule: type[Schedule], of: Hashable, target: Target) -> bytes | None:
    """What `kept` finds on disk; None where it would be made."""
    parts = _parts(schedule, of, target)
    return files.found_on_disk("spaces", parts) if parts else None


def _parts(schedule: type[Schedule], of: Hashable, target: Target) -> tuple[str, ...] | None:
    """What a class's file is found by; None where nothing of it is kept."""
    text = _text(of)
    own = schedule.__module__.startswith("kgen.")
    return (schedule.__name__, text, repr(target)) if own and text is not None else None


def _text(value: Hashable) -> str | None:
    """A key in words that no other has; None where it has something of which that is not known."""
    if isinstance(value, tuple):
        parts = [_text(part) for part in value]
        return None if None in parts else f"({','.join(map(str, parts))})"
    return repr(value) if value is None or isinstance(value, (bool, int, str)) else None

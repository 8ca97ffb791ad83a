"""Pauses: what threads compute for calls to come rests while a call is under way, which would wait for the interpreter's lock."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

#: The threads whose calls are under way, and when these began.
_calling: dict[int, float] = {}
#: Seconds of a call for which others wait: one that takes longer compiles, without the interpreter's lock.
_PAUSE = 0.02


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """While a thread is in here recordings hardly go on: beside one, which keeps the interpreter's lock for 5 ms at a time, a
    first call of 3 ms took 20 to 40."""
    thread = threading.get_ident()
    _calling[thread] = time.monotonic()
    try:
        yield
    finally:
        _calling.pop(thread, None)


def rest() -> None:
    """Waits until no call is under way that began just now: between two steps of a recording, a millisecond or two each."""
    while any(begun > time.monotonic() - _PAUSE for begun in [*_calling.values()]):
        time.sleep(0.001)

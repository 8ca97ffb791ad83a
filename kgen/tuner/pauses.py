"""Pauses: what threads compute for calls to come rests while a call is under way, which would wait for the interpreter's lock."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

#: The threads whose calls are under way, and when these began.
_calling: dict[int, float] = {}
#: Seconds of a call for which others wait: one that takes longer compiles, without the interpreter's lock.
_PAUSE = 0.02
#: Seconds after which a thread that computes has to hand over the interpreter's lock, while a call is under way.
_SWITCH = 1e-4

_lock = threading.Lock()
#: The interpreter's own such seconds, while a call is under way.
_usual = sys.getswitchinterval()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """While a thread is in here recordings hardly go on, and no thread keeps the interpreter's lock for long, which a first call
    gives away with each call of C++ and of the driver. Beside a thread that computes in Python all the time, without a driver,
    one took 6.5 ms with the usual 5 ms of the interpreter and 29 at the 90th percentile; 1.3 and 4.7 with 0.1."""
    global _usual
    thread = threading.get_ident()
    with _lock:
        if not _calling:
            _usual = sys.getswitchinterval()
            sys.setswitchinterval(_SWITCH)
        _calling[thread] = time.monotonic()
    try:
        yield
    finally:
        with _lock:
            _calling.pop(thread, None)
            if not _calling:
                sys.setswitchinterval(_usual)


def rest() -> None:
    """Waits until no call is under way that began just now: between two steps of a recording, a millisecond or two each."""
    while any(begun > time.monotonic() - _PAUSE for begun in [*_calling.values()]):
        time.sleep(0.001)

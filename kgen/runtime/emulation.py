"""How operators run on CPU tensors: on the emulator, by default without its checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from kgen.emulator import Options

_UNCHECKED = Options(checks=False)
_OPTIONS: ContextVar[Options | None] = ContextVar("kgen_emulation", default=None)


def options() -> Options:
    """The emulator's options for calls made now."""
    return _OPTIONS.get() or _UNCHECKED


@contextmanager
def emulate(
    *,
    checks: bool = True,
    seed: int = 0,
    async_mode: Literal["eager", "late", "random"] = "late",
    threads: int | None = None,
    timeout: float = 120.0,
) -> Iterator[None]:
    """Within it, operators called on CPU tensors run with these options of the emulator.

    `checks` watches every access of a kernel: bounds, uninitialised reads, races, deadlocks; a fault raises EmulatorError.
    `seed` shuffles the order of warps and lanes. See `kgen.emulator.Options`.
    """
    token = _OPTIONS.set(Options(checks=checks, seed=seed, async_mode=async_mode, threads=threads, timeout=timeout))
    try:
        yield
    finally:
        _OPTIONS.reset(token)

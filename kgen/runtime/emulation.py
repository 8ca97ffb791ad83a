"""How operators run on CPU tensors: on the emulator, by default without its checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral, Real
from typing import Any, Literal

from kgen.dsl.errors import ArgumentError
from kgen.emulator import Options

_UNCHECKED = Options(checks=False)
_OPTIONS: ContextVar[Options | None] = ContextVar("kgen_emulation", default=None)
_MODES = ("eager", "late", "random")
#: By option: whether a value is one of it, and what to say where not.
_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "checks": (lambda x: isinstance(x, bool), "True or False"),
    "seed": (lambda x: isinstance(x, Integral) and not x < 0 and x < 2**64, "an int from 0 to 2^64 - 1"),
    "async_mode": (lambda x: isinstance(x, str) and x in _MODES, f"one of {', '.join(_MODES)}"),
    "threads": (
        lambda x: x is None or (isinstance(x, Integral) and not x <= 0 and x < 2**15),
        "a number of CPU threads, or None",
    ),
    "timeout": (lambda x: isinstance(x, Real) and not x <= 0 and x < 1e9, "a number of seconds above 0"),
}


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
    `seed` shuffles the order of warps and lanes. See `kgen.emulator.Options`. Raises ArgumentError where one is none of these.
    """
    given = {"checks": checks, "seed": seed, "async_mode": async_mode, "threads": threads, "timeout": timeout}
    for name, value in given.items():
        right, expected = _EXPECTED[name]
        if not right(value):
            raise ArgumentError(f"emulate: {name} is {type(value).__name__} {str(value)[:100]!r}; expected {expected}")
    token = _OPTIONS.set(Options(**given))  # type: ignore[arg-type]
    try:
        yield
    finally:
        _OPTIONS.reset(token)

"""Chooser: the function of cpp/choose.cpp, built once a machine with the host's compiler."""

from __future__ import annotations

import contextlib
import ctypes
import platform
import threading
from functools import cache
from pathlib import Path
from typing import Any

from kgen.codegen.host_compiler import build, cpu_flags, is_built, shared_object, toolchain
from kgen.dsl.errors import KgenError

SOURCE = Path(__file__).parent / "cpp" / "choose.cpp"
# The same results as numpy's, bit by bit but for powers and logarithms: nothing is contracted. As fast as with -O3 and C++20 and
# built in 0.6 of the time, in which a machine's first calls are chosen for array by array.
_FLAGS = (
    *("-std=c++17", "-O1", "-ftree-vectorize", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    *("-fPIC", "-shared", "-pthread", "-w", "-fvisibility=hidden"),
)

_loaded: Any = None


def function() -> Any:
    """`kgen_choose` of choose.cpp, which a thread builds when it is first asked for; None before that, or where it cannot be."""
    _begin()
    return _loaded


@cache
def _begin() -> None:
    def begin() -> None:
        with contextlib.suppress(KgenError, OSError):
            load()

    if is_built(_target()):
        begin()  # which takes a millisecond
    else:
        threading.Thread(target=begin, name="kgen_choose", daemon=True).start()


def load() -> None:
    """Builds the library where it is not yet, and loads it.

    Raises ToolchainError and CompileError where the host's compiler is missing or fails, CacheError where it cannot be kept,
    OSError where it cannot be loaded.
    """
    global _loaded
    target = _target()
    build(target, lambda: [toolchain().path, *_FLAGS, *cpu_flags(), str(SOURCE)], "the choice of configs")
    found = ctypes.CDLL(str(target)).kgen_choose
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    code, numbers, sizes, parts = [(pointer, number)] * 4
    found.argtypes = [*code, *numbers, *sizes, number, *parts, number, number, number, pointer, pointer]
    found.restype = None
    _loaded = found


@cache
def _target() -> Path:
    # Which compiler makes it changes nothing, and asking for its version takes longer than a choice.
    return shared_object("choices", "kgen_choose", (SOURCE,), (*_FLAGS, platform.machine(), *cpu_flags()))

"""Warm calls by C++: an extension that does what KernelOperator.__call__, the plans of a GPU and autograd.Plain do.

Python's way says what a call is, and stays: for first calls, for what the extension hands back, and where there is none. It is
built once for each version of torch, Python and the host's compiler, in the cache folder, when a kernel is first loaded on a
GPU, while calls go Python's way. KGEN_WARM_CALLS=python keeps them there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import sysconfig
import threading
from functools import cache
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kgen.codegen import settings
from kgen.codegen.host_compiler import build, shared_object, toolchain
from kgen.dsl.errors import CacheError, KgenError
from kgen.gpu.kernel import RawLaunch
from kgen.runtime import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

NAME = "kgen_warm_calls"
_SOURCE = Path(__file__).parent / "cpp" / "warm_calls.cpp"
_SOURCES = (_SOURCE, *(_SOURCE.with_name(name) for name in ("calls.h", "gradients.h", "launch.h")))
_TORCH = Path(torch.__file__).parent
#: Those that this process has loaded with torch.
_LIBRARIES = ("-ltorch_python", "-ltorch_cpu", "-lc10")
#: A static C++ library stays inside: what two libraries of one process export of theirs, they share.
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-w", "-fvisibility=hidden", "-Wl,--exclude-libs,ALL")


@cache
def begin() -> threading.Thread | None:
    """Has the extension built and loaded by a thread of its own. Where it cannot be, calls go Python's way."""
    if settings.warm_calls() == "python" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None

    def quietly() -> None:
        with contextlib.suppress(KgenError):
            load()

    thread = threading.Thread(target=quietly, name=NAME, daemon=True)
    thread.start()
    return thread


@cache
def load() -> Any:
    """The extension, built where it is not yet; operators use it from then on.

    Raises ToolchainError and CompileError where the host's compiler, or Python's headers, are missing, CacheError where it cannot
    be kept or loaded.
    """
    path = _built()
    spec = importlib.util.spec_from_file_location(NAME, path, loader=ExtensionFileLoader(NAME, str(path)))
    assert spec is not None
    assert spec.loader is not None
    try:
        module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise CacheError(f"cannot load {path}: {error}; calls go Python's way") from error
    registry.extension = module
    return module


def _built() -> Path:
    """The shared object, in a folder named by all that it depends on."""
    command = [*_command(), str(_SOURCE)]
    parts = (*command, toolchain().version, torch.__version__, sys.version)
    target = shared_object("warm_calls", NAME, _SOURCES, parts)
    build(target, lambda: [*command, f"-L{_TORCH / 'lib'}", *_LIBRARIES], "warm calls")
    return target


def _command() -> Sequence[str]:
    # As torch.utils.cpp_extension has it, which takes half a second to import.
    folders = [
        sysconfig.get_path("include"),
        _TORCH / "include",
        _TORCH / "include" / "torch" / "csrc" / "api" / "include",
    ]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    return [toolchain().path, *_FLAGS, abi, *(f"-I{folder}" for folder in folders)]


def launch(
    module: Any,
    raw: RawLaunch,
    device: torch.device,
    outputs: Sequence[tuple[Sequence[int], torch.dtype]],
    order: Sequence[int],
    extents: Sequence[int],
    numbers: Sequence[tuple[str, int, str, bool, int]],
    stream_of: Callable[[int], int],
    index: int,
    workspaces: Callable[[int], tuple[list[int], Tensor | None]] | None,
) -> Any:
    """A launch for the extension. `order`: of each slot the place of its address among those of operands and workspaces.

    `extents`: bytes from each operand's first to behind its last. `numbers`: name, slot, kind as struct has it, whether a call
    has to give it, and the bits that it has else. `stream_of` gives torch's current stream of the device `index`.
    """
    return module.Launch(
        torch.empty(0, device=device),
        _like(outputs),
        tuple(order),
        tuple(extents),
        raw.maps,
        tuple((name, slot, ord(kind), required, bits) for name, slot, kind, required, bits in numbers),
        (raw.config, raw.function, raw.parameters, raw.slots),
        (raw.launch, raw.replace, raw.capturing),
        raw.overlaps,
        stream_of,
        index,
        workspaces,
        raw.kept,
    )


def several(
    module: Any,
    parts: Sequence[tuple[Any, Sequence[int]]],
    device: torch.device,
    outputs: Sequence[tuple[Sequence[int], torch.dtype]],
    extents: Sequence[int],
    stream_of: Callable[[int], int],
    index: int,
    workspaces: Callable[[int], tuple[list[int], Tensor | None]] | None,
    lock: threading.Lock,
) -> Any:
    """Launches one after another as one. `parts`: each with the places of its operands among those and the workspaces of all.

    `lock` is held while they are launched; all else as of `launch`.
    """
    return module.Launch.of_several(
        torch.empty(0, device=device),
        _like(outputs),
        tuple(extents),
        tuple((one, tuple(places)) for one, places in parts),
        stream_of,
        index,
        workspaces,
        lock,
    )


def _like(outputs: Sequence[tuple[Sequence[int], torch.dtype]]) -> tuple[Any, ...]:
    return tuple((tuple(shape), torch.empty(0, dtype=dtype)) for shape, dtype in outputs)

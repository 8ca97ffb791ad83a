"""compile: a Source to a Binary by NVRTC. Needs no GPU, no driver and no CUDA toolkit.

NVRTC and the headers come from the pip packages nvidia-cuda-nvrtc, -runtime and -crt, or from a toolkit; the headers
that lie beside the NVRTC in use come first, so that the two are of one release. NVRTC is called through its bindings,
not through cuda.core's Program, because the log is wanted after a success as much as after a failure: ptxas reports
registers, spills and its warnings there and nowhere else.
"""

from __future__ import annotations

import functools
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kgen.codegen.settings import cuda_homes
from kgen.codegen.source import Source
from kgen.dsl.errors import CompileError, ToolchainError
from kgen.dsl.target import Arch
from kgen.gpu.binary import Binary
from kgen.gpu.cache import CubinCache, cache_key

#: Where a toolkit lies when nothing says otherwise.
_TOOLKIT = Path("/usr/local/cuda")
#: Results that are about the kernel's text; all others are about the machine: no memory, an option that NVRTC does not know.
_KERNELS_FAULT = ("NVRTC_ERROR_COMPILATION", "NVRTC_ERROR_INTERNAL_ERROR")


@dataclass(frozen=True)
class Toolchain:
    """The NVRTC in use: its version, and all that tells one installation from another in a cache key."""

    version: str
    identity: str
    includes: tuple[str, ...]


def compile(source: Source, arch: Arch, *, cache: CubinCache | None = None, lineinfo: bool = False) -> Binary:
    """The kernel compiled for exactly `arch`; from `cache` when it holds this source, these options and this NVRTC.

    `lineinfo` adds source lines for profilers. Raises CompileError, with NVRTC's log, when the source does not compile,
    or does not run on `arch`; ToolchainError when NVRTC or its headers are missing or it cannot work.
    """
    if not source.arch.runs_on(arch):
        raise CompileError(f"kernel {source.entry} needs {source.arch} and cannot run on {arch}")
    tools, options = toolchain(), _options(arch, lineinfo)
    key = cache_key(source.entry, source.digest, *options, tools.identity)
    found = cache.get(key) if cache else None
    if found:
        return found
    start = time.perf_counter()
    cubin, log = _nvrtc(source, [*options, *(f"--include-path={folder}" for folder in tools.includes)])
    binary = replace(
        parse_log(log, source.entry),
        cubin=cubin,
        arch=str(arch),
        compile_seconds=time.perf_counter() - start,
        nvrtc=tools.version,
    )
    if cache:
        cache.put(key, binary)
    return binary


def _options(arch: Arch, lineinfo: bool = False) -> list[str]:
    # NVRTC's own cache would swallow ptxas's report. NVRTC before 13.5 takes a generic lambda inside a kernel for a host
    # function unless all functions are device functions.
    options = [f"--gpu-architecture={arch}", "--std=c++17", "-default-device", "--ptxas-options=-v", "-no-cache"]
    return options + ["--generate-line-info"] * lineinfo


def _nvrtc(source: Source, options: list[str]) -> tuple[bytes, str]:
    """The cubin and the log of one run of NVRTC."""
    nvrtc = _bindings()
    program = _check(nvrtc.nvrtcCreateProgram(source.text.encode(), f"{source.entry}.cu".encode(), 0, None, None))
    try:
        result = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])[0]
        log_bytes = bytearray(_check(nvrtc.nvrtcGetProgramLogSize(program)))
        _check(nvrtc.nvrtcGetProgramLog(program, log_bytes))
        log = log_bytes.rstrip(b"\0").decode(errors="replace")
        if result.name in _KERNELS_FAULT and "open source file" not in log:
            raise CompileError(f"kernel {source.entry} does not compile: {_first_error(log) or result.name}", log)
        if result != 0:
            raise ToolchainError(f"NVRTC cannot work: {_first_error(log) or result.name}; see kgen doctor")
        cubin = bytearray(_check(nvrtc.nvrtcGetCUBINSize(program)))
        _check(nvrtc.nvrtcGetCUBIN(program, cubin))
        return bytes(cubin), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _check(returned: tuple[Any, ...]) -> Any:
    """The value of a call into NVRTC; raises ToolchainError when it failed."""
    result, *values = returned
    if result != 0:
        raise ToolchainError(f"NVRTC failed with {result.name}; see kgen doctor")
    return values[0] if values else None


def _first_error(log: str) -> str | None:
    """The first line of a log that reports an error: `file(line): error: ...`, or ptxas's own."""
    front, ptxas = r".*\(\d+\): (?:catastrophic )?error", r"ptxas .*?(?:fatal|error) +:"
    match = re.search(rf"^(?:{front}|{ptxas}|nvrtc: error:).*$", log, re.M)
    return match[0].strip() if match else None


def parse_log(log: str, entry: str) -> Binary:
    """What the log of a successful run says about `entry`, as a Binary that lacks its cubin."""
    match = re.search(rf"Compiling entry function '{re.escape(entry)}'.*?(?=Compiling entry function|\Z)", log, re.S)
    if not match:
        raise CompileError(f'the compiler reports no kernel {entry}; is it extern "C" __global__ and so named?', log)
    section = match[0]

    def largest(pattern: str) -> int:
        """Over the entry and the functions it calls, which ptxas lists below it."""
        return max((int(number) for number in re.findall(pattern, section)), default=0)

    return Binary(
        cubin=b"",
        entry=entry,
        arch="",
        registers=largest(r"Used (\d+) registers"),
        spill_stores=largest(r"(\d+) bytes spill stores"),
        spill_loads=largest(r"(\d+) bytes spill loads"),
        shared_static=largest(r"(\d+) bytes smem"),
        local_bytes=largest(r"(\d+) bytes (?:cumulative )?stack"),
        log=log,
        warnings=tuple(_warnings(log)),
        compile_seconds=0.0,
        nvrtc="",
    )


def _warnings(log: str) -> Iterator[tuple[str | None, str]]:
    """Warnings of the front end (`file(line): warning #177-D: ...`) and of ptxas, whose losses are called info."""
    for line in log.splitlines():
        front = re.search(r"\(\d+\): warning(?: #([\w-]+))?: .*", line)
        if front:
            yield front[1], line.strip()
            continue
        code = re.search(r"\((C\d{4})\)", line)
        if code or re.search(r"^ptxas.*\bwarning +:", line):
            yield (code[1] if code else None), line.strip()


def _bindings() -> Any:
    """cuda.bindings.nvrtc with its library loaded."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
        return nvrtc
    except (ImportError, RuntimeError) as error:
        raise ToolchainError(
            f"NVRTC cannot be loaded ({error}); pip install nvidia-cuda-nvrtc, or install a CUDA toolkit"
        ) from error


@functools.lru_cache(maxsize=1)
def toolchain() -> Toolchain:
    """The NVRTC in use and the folders of its headers. Raises ToolchainError when either is missing."""
    nvrtc = _bindings()
    result, major, minor = nvrtc.nvrtcVersion()
    _check((result,))
    from cuda import pathfinder

    path = pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path
    library = Path(path).resolve() if path else None
    includes = _header_folders(library)
    version = f"{major}.{minor}"
    # Two builds of one release share a version; the size of the library and the release of the headers tell them apart.
    size = library.stat().st_size if library else 0
    return Toolchain(version, f"nvrtc {version} size {size} headers {_header_release(includes)}", includes)


def _header_folders(library: Path | None) -> tuple[str, ...]:
    """The first folder that holds every header kernels include, else the first for each; nearest the library first."""
    candidates = [library.parent.parent / "include", library.parent.parent.parent / "include"] if library else []
    candidates += [home / "include" for home in cuda_homes()]
    for entry in sys.path:
        candidates += sorted(Path(entry or ".").glob("nvidia/*/include"), reverse=True)
    candidates.append(_TOOLKIT / "include")
    needed = ("cuda_fp16.h", "mma.h", "crt/mma.h")
    for folder in candidates:
        if all((folder / header).is_file() for header in needed):
            return (str(folder),)
    found: dict[str, None] = {}
    for header in needed:
        first = next((folder for folder in candidates if (folder / header).is_file()), None)
        if first is None:
            raise ToolchainError(
                f"the CUDA header {header} was not found; pip install nvidia-cuda-runtime nvidia-cuda-crt, "
                "or set CUDA_HOME to a toolkit"
            )
        found[str(first)] = None
    return tuple(found)


def _header_release(includes: tuple[str, ...]) -> str:
    """CUDART_VERSION of the headers, such as 13050."""
    for folder in includes:
        header = Path(folder) / "cuda_runtime_api.h"
        if header.is_file():
            match = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", header.read_text(errors="replace"))
            if match:
                return match[1]
    return "unknown"

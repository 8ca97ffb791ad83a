"""compile: a Source to a Binary by NVRTC. Needs no GPU, no driver and no CUDA toolkit.

NVRTC is called through its bindings, not through cuda.core's Program, because the log is wanted after a success as much as after
a failure: ptxas reports registers, spills and its warnings there and nowhere else.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace

from kgen.codegen.source import Source
from kgen.dsl.errors import CompileError, ToolchainError
from kgen.dsl.target import Arch
from kgen.gpu.binary import Binary
from kgen.gpu.cache import CubinCache, cache_key
from kgen.gpu.toolchain import Toolchain, bindings, check, load_nvrtc, toolchain

#: Results that are about the kernel's text; all others are about the machine: no memory, an option that NVRTC does not know.
_KERNELS_FAULT = ("NVRTC_ERROR_COMPILATION", "NVRTC_ERROR_INTERNAL_ERROR")


def compile(source: Source, arch: Arch, *, cache: CubinCache | None = None, lineinfo: bool = False) -> Binary:
    """The kernel compiled for exactly `arch`; from `cache` when it holds this source, these options and this NVRTC.

    `lineinfo` adds source lines for profilers. Raises CompileError, with NVRTC's log, when the source does not compile,
    or does not run on `arch`; ToolchainError when NVRTC or its headers are missing or it cannot work.
    """
    if not source.arch.runs_on(arch):
        raise CompileError(f"kernel {source.entry} needs {source.arch} and cannot run on {arch}")
    tools, options = toolchain(), _options(arch, lineinfo)
    key = _key(source, options, tools)
    found = cache.get(key) if cache else None
    if not found and not tools.loaded:
        tools, remembered = load_nvrtc(), key
        key = _key(source, options, tools)
        found = cache.get(key) if cache and key != remembered else None
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


def _key(source: Source, options: list[str], tools: Toolchain) -> str:
    return cache_key(source.entry, source.digest, *options, tools.identity)


def _options(arch: Arch, lineinfo: bool = False) -> list[str]:
    # NVRTC's own cache would swallow ptxas's report. NVRTC before 13.5 takes a generic lambda inside a kernel for a host
    # function unless all functions are device functions.
    options = [f"--gpu-architecture={arch}", "--std=c++17", "-default-device", "--ptxas-options=-v", "-no-cache"]
    return options + ["--generate-line-info"] * lineinfo


def _nvrtc(source: Source, options: list[str]) -> tuple[bytes, str]:
    """The cubin and the log of one run of NVRTC."""
    nvrtc = bindings()
    program = check(nvrtc.nvrtcCreateProgram(source.text.encode(), f"{source.entry}.cu".encode(), 0, None, None))
    try:
        result = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])[0]
        log_bytes = bytearray(check(nvrtc.nvrtcGetProgramLogSize(program)))
        check(nvrtc.nvrtcGetProgramLog(program, log_bytes))
        log = log_bytes.rstrip(b"\0").decode(errors="replace")
        if result.name in _KERNELS_FAULT and "open source file" not in log:
            raise CompileError(f"kernel {source.entry} does not compile: {_first_error(log) or result.name}", log)
        if result != 0:
            raise ToolchainError(f"NVRTC cannot work: {_first_error(log) or result.name}; see kgen doctor")
        cubin = bytearray(check(nvrtc.nvrtcGetCUBINSize(program)))
        check(nvrtc.nvrtcGetCUBIN(program, cubin))
        return bytes(cubin), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


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

"""Kernels compiled several in a run of a compiler, before tests ask for each: for the emulator that costs a third less."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from kgen import emulator
from kgen.codegen.source import Source
from kgen.dsl.errors import CompileError
from kgen.dsl.problem import Problem
from kgen.dsl.restriction import UNRESTRICTED
from kgen.dsl.target import Arch
from kgen.gpu.binary import Binary
from kgen.gpu.compile import compile, parse_log
from kgen.runtime.call import Chosen, choose_again


def compile_calls(problems: Iterable[Problem]) -> None:
    """What calls with operands such as these launch, for the emulator with its checks."""
    calls = (choose_again(Chosen(one, torch.device("cpu"), (), False), None, UNRESTRICTED) for one in problems)
    emulator.compile_together(launch.source for call in calls for launch in call.launches)


def compile_for(arch: Arch, sources: Sequence[Source]) -> list[Binary]:
    """What NVRTC makes of each kernel: those that include the same headers are one program, a namespace each.

    A program's start and headers take 30 to 65 ms. Where there is an error or a warning each is compiled by itself, to say which.
    """
    found: dict[Source, Binary] = {}
    for includes in dict.fromkeys(source.includes for source in sources):
        some = [source for source in dict.fromkeys(sources) if source.includes == includes]
        names = [f"kernel_{number}" for number in range(len(some))]
        bodies = (
            re.sub(rf"(__global__[^;{{]*?\b){source.entry}(?=\s*\()", rf"\1{name}", source.body, count=1)
            for source, name in zip(some, names)
        )
        parts = (f"namespace {n}_names {{\n{s.ptx}\n{body}\n}}\n" for n, s, body in zip(names, some, bodies))
        try:
            log = compile(replace(some[0], ptx="", body="".join(parts), entry=names[0]), arch).log
            binaries = [parse_log(log, name) for name in names]
        except CompileError:
            binaries = []
        if not binaries or any(binary.warnings for binary in binaries):
            binaries = [compile(source, arch) for source in some]
        found |= zip(some, binaries)
    return [found[source] for source in sources]

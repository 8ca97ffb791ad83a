"""A variant of a config, compiled for the emulator and judged by the gate."""

from __future__ import annotations

from kgen import emulator
from kgen.dsl.errors import ArgumentError, CompileError, ConfigError
from kgen.tuner import verify
from kgen.tuner.execute import Runner
from kgen.tuner.variants import Variant


def judge(variant: Variant) -> verify.Verdict:
    """The verdict on a variant run on the emulator; a kernel that it cannot compile or launch is wrong."""
    # A fault of the kernel, or of the variant: where a compiler took the kernel, it is this config that is wrong, not the run.
    try:
        source = variant.config.source(variant.problem)
        return verify.verify(Runner(emulator.compile(source), source, variant.symbols), variant.problem)
    except (ArgumentError, CompileError, ConfigError) as error:
        return verify.Verdict(False, {"check": "emulator", "message": str(error)[:2000]})

"""The PTX layer's functions on the emulator: right in every mode, and accepted by NVRTC. The GPU's tests run them too."""

from __future__ import annotations

import functools
from dataclasses import replace

import ptx_copy_cases
import ptx_sync_cases
import ptx_warp_cases
import ptx_wgmma_cases
import pytest
from ptx_cases import Case
from ptx_runs import run

from kgen import emulator
from kgen.emulator import Options
from kgen.gpu.compile import compile as nvrtc

GROUPS: dict[str, list[Case]] = {
    "warp": ptx_warp_cases.CASES,
    "copies": ptx_copy_cases.CASES,
    "synchronisation": ptx_sync_cases.CASES,
    "wgmma": ptx_wgmma_cases.CASES,
}
CASES = [case for group in GROUPS.values() for case in group]
MODES = (Options(), Options(async_mode="eager", seed=1), Options(async_mode="random", seed=2), Options(checks=False))


#: So many cases are compiled together.
_TOGETHER = 16


@functools.cache
def compile_group(number: int) -> None:
    for checks in (True, False):
        some = CASES[number * _TOGETHER : (number + 1) * _TOGETHER]
        emulator.compile_together((case.source for case in some), checks=checks)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_right_in_every_mode(case: Case) -> None:
    compile_group(CASES.index(case) // _TOGETHER)
    for options in MODES:
        run(case, replace(options, timeout=20))


@pytest.mark.parametrize("case", [c for group in GROUPS.values() for c in group[::4]], ids=str)
def test_nvrtc_takes_it(case: Case) -> None:
    binary = nvrtc(case.source, case.source.arch)
    assert binary.warnings == ()


def test_many_seeds() -> None:
    for case in ptx_sync_cases.CASES:
        for seed in range(3, 12):
            run(case, Options(seed=seed, async_mode="random", timeout=20))

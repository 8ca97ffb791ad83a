"""The suite: all groups of cases, and what is done with each case on the emulator and with the compiler."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import attention_cases
import attention_gradient_cases
import column_cases
import elementwise_cases
import gather_cases
import gemm_cases
import gemv_cases
import grouped_cases
import linear_attention_cases
import narrow_cases
import reduce_cases
import rowwise_cases
import scan_cases
import scatter_cases
import torch
import transpose_cases
import wgmma_cases
from cases import Case, Group, failures

from kgen import emulator
from kgen.dsl.target import GENERIC, Arch, Target
from kgen.gpu.compile import compile as nvrtc

_MODULES = (
    elementwise_cases,
    transpose_cases,
    narrow_cases,
    rowwise_cases,
    reduce_cases,
    column_cases,
    scan_cases,
    gather_cases,
    scatter_cases,
    gemm_cases,
    gemv_cases,
    wgmma_cases,
    grouped_cases,
    attention_cases,
    attention_gradient_cases,
    linear_attention_cases,
)
GROUPS: dict[str, Group] = {group.name: group for module in _MODULES for group in module.groups()}

#: One GPU of each architecture, with two multiprocessors as TARGET.
_TARGETS = tuple(replace(target, sm_count=2) for target in GENERIC.values())


@cache
def cases_of(name: str) -> list[Case]:
    """The cases of a group."""
    return GROUPS[name].cases()


def names(prefix: str, *dtypes: str) -> list[str]:
    """The groups of a schedule, of some dtypes only if they are given."""
    found = [name for name in GROUPS if name.startswith(f"{prefix}-")]
    return [name for name in found if not dtypes or name.split("-")[1] in dtypes]


def claims(case: Case, arch: Arch) -> list[Target]:
    """The architectures that a case's config says it runs on; its source needs `arch`."""
    targets = [replace(t, sm_count=case.target.sm_count) for t in _TARGETS if arch.runs_on(t.arch)]
    return [t for t in targets if not broken(case, t)]


def broken(case: Case, target: Target) -> list[str]:
    """The rules that a config breaks, but for those that only prune the search."""
    return [r.rule for r in case.config.broken(case.problem, target)]


def run_case(name: str, case: Case) -> None:
    """Runs a case of a group on the checking emulator, and compares its results."""
    GROUPS[name].judge(case, emulator.compile(case.config.source(case.problem)), "cpu")


def run_and_compile(name: str) -> None:
    """Runs all cases of a group on the checking emulator; compiles every twelfth by NVRTC, for architectures in turn.

    The tests on a GPU compile them all.
    """
    torch.set_num_threads(1)

    def compile(case: Case) -> None:
        source = case.config.source(case.problem)
        claimed = claims(case, source.arch)
        assert claimed, "no architecture takes this config"
        binary = nvrtc(source, claimed[case.seed // 12 % len(claimed)].arch)
        assert binary.warnings == (), binary.warnings

    # In one test, as drawing the cases takes as long as some groups' runs.
    cases = cases_of(name)
    assert len(cases) > 5, f"{name} has few cases"
    # The groups of a schedule begin alike: each gives others of its cases to the compiler.
    compiled = cases[list(GROUPS).index(name) % 12 :: 12]
    emulator.compile_together(case.config.source(case.problem) for case in cases)
    wrong = [*failures(cases, partial(run_case, name)), *failures(compiled, compile)]
    assert not wrong, f"{len(wrong)} of {len(cases)} cases:\n" + "\n".join(wrong)

"""Every operator is exported: kernel, header and test are what nvcc takes, and the launch refuses what the kernel is not for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from export_nvcc import needs_nvcc, read_by_both_passes, read_by_the_host
from exports import exported, ragged
from operators import LAUNCHES, OPERATORS, small

from kgen.cli.problems import select_one
from kgen.dsl.errors import KgenError
from kgen.dsl.problem import Problem
from kgen.dsl.target import Target
from kgen.export.cases import cases
from kgen.export.collection import Collection
from kgen.export.interface import Interface
from kgen.export.requirements import requirements
from kgen.export.variants import Served, axes, resized
from kgen.gpu.target import resolve
from kgen.runtime import dispatch

H200, A100 = resolve("H200"), resolve("A100-SXM4-80GB")
#: So many operators go into one translation unit: most of the time is that of the headers.
_TOGETHER = 34
_NAMES = [*OPERATORS]
GROUPS = [_NAMES[i : i + _TOGETHER] for i in range(0, len(_NAMES), _TOGETHER)]
#: What the standard library's headers declare of what a launch function uses.
DECLARED = {"atomic": "atomic", "min": "algorithm", "max": "algorithm", "memcpy": "cstring", "mutex": "mutex"}
DECLARED |= {"initializer_list": "initializer_list"}


def checked(of: Problem, target: Target, fallback: bool = False) -> dict[str, str]:
    """An export whose kernel file includes what it uses: a unit of several exports would not miss one."""
    found = exported(of, target, fallback)
    kernels = [text for name, text in found.items() if name.endswith(".cu") and not name.startswith("test_")]
    assert kernels
    for kernel in kernels:
        included = set(re.findall(r"^#include <(\w+)>", kernel, re.MULTILINE))
        assert {DECLARED[name] for name in re.findall(r"\bstd::(\w+)", kernel) if name in DECLARED} <= included
    return found


@needs_nvcc
@pytest.mark.parametrize("names", GROUPS, ids=lambda names: f"{names[0]}..{names[-1]}")
def test_the_export_of_the_default_problem_builds(names: list[str], tmp_path: Path) -> None:
    """As an extension of torch, with a fallback for other sizes: with a decision, where one kernel is not for all."""
    found = [checked(select_one(OPERATORS[name], None, None, None, None), H200, fallback=True) for name in names]
    read_by_both_passes(found, str(H200.arch), tmp_path)
    read_by_the_host(found, tmp_path)


@needs_nvcc
@pytest.mark.parametrize("names", GROUPS, ids=lambda names: f"{names[0]}..{names[-1]}")
def test_the_export_of_a_ragged_problem_builds(names: list[str], tmp_path: Path) -> None:
    """For a GPU of another generation, where that has the operator's dtypes."""
    found: dict[str, list[dict[str, str]]] = {}
    for name in names:
        of = ragged(small(OPERATORS[name].definition.graphs[0]), H200)
        try:
            found.setdefault(str(A100.arch), []).append(checked(of, A100))
        except KgenError:
            found.setdefault(str(H200.arch), []).append(checked(of, H200))
    for arch, exports in found.items():
        (tmp_path / arch).mkdir()
        read_by_both_passes(exports, arch, tmp_path / arch)


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_launch_takes_what_its_test_runs_and_no_size_with_another_kernel(name: str) -> None:
    """Indices of larger problems have more bits: the launch of this kernel says that it is not for them."""
    of = select_one(LAUNCHES[name], None, None, None, None)
    served = Served(dispatch.default(of, H200).config, of, H200)
    found = requirements(served)
    for case in cases(Interface(Collection.single(served))):
        assert [r for r in found.sizes if not r.holds(case.symbols)] == [], case.problem.key
    for axis in axes(of):
        for size in (2**27, 2**31 - 2**12, 2**36):
            try:
                larger = Served(served.config, resized(of, {axis: size}), H200).problem
            except KgenError:  # the operator has no such size
                continue
            symbols = served.config.symbols(larger)
            refused = any(not r.holds(symbols) for r in found.sizes)
            assert refused or served.renders_alike(larger), f"{axis}={size}"

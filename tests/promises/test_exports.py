"""Every operator is exported: kernel, header and test are what nvcc takes, and the launch refuses what the kernel is not for."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from export_host import built
from export_nvcc import needs_nvcc, read_by_both_passes, read_by_the_host
from exports import exported, ragged
from operators import LAUNCHES, OPERATORS, small

from kgen.cli.problems import select_one
from kgen.dsl.errors import KgenError
from kgen.dsl.problem import Problem
from kgen.dsl.target import Target
from kgen.dsl.types import f16
from kgen.export.cases import cases
from kgen.export.collection import Collection
from kgen.export.interface import Interface
from kgen.export.program import random_values
from kgen.export.project import contents
from kgen.export.reference import tolerance
from kgen.export.requirements import requirements
from kgen.export.variants import Served, axes, resized
from kgen.gpu.target import resolve
from kgen.numerics.dtypes import round_to
from kgen.numerics.operands import make_operands, scalar_values
from kgen.numerics.reference import evaluate, native
from kgen.runtime import dispatch

H200, A100, T4 = resolve("H200"), resolve("A100-SXM4-80GB"), resolve("T4")
#: So many operators go into one translation unit: most of the time is that of the headers.
_TOGETHER = 34
_NAMES = [*OPERATORS]
GROUPS = [_NAMES[i : i + _TOGETHER] for i in range(0, len(_NAMES), _TOGETHER)]
#: What the standard library's headers declare of what a launch function uses.
DECLARED = {"atomic": "atomic", "min": "algorithm", "max": "algorithm", "memcpy": "cstring", "mutex": "mutex"}
DECLARED |= {"initializer_list": "initializer_list"}
#: What the checks of a launch call, and its definition in a launch file.
HELPER = re.compile(r"\b(?:ceil_div|product_at_most)\b")
HELPERS = re.compile(r"^int64_t ceil_div\([^\n]*\}$|^bool product_at_most\(.*?^\}$", re.MULTILINE | re.DOTALL)


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


@needs_nvcc
def test_exports_of_attention_build_for_turing(tmp_path: Path) -> None:
    """Where there is no cp.async; of what has f16."""
    graphs = [
        next((g for g in OPERATORS[name].definition.graphs if g.inputs[0].dtype is f16), None)
        for name in _NAMES
        if name.startswith("attention_")
    ]
    found = [checked(small(graph), T4) for graph in graphs if graph is not None]
    assert len(found) >= 10
    read_by_both_passes(found, str(T4.arch), tmp_path)


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


def test_the_checks_of_a_launch_in_cpp_are_its_requirements(tmp_path: Path) -> None:
    """Of all launches, of whole and ragged rows: those are taken, and other sizes where Python's requirements take them."""
    helpers: dict[str, None] = {}
    functions: list[str] = []
    calls: list[tuple[str, bool]] = []
    for name in LAUNCHES:
        whole = small(LAUNCHES[name].definition.graphs[0], 64)
        for of in (whole, ragged(whole, H200)):
            collection = Collection.single(Served(dispatch.default(of, H200).config, of, H200))
            (kernel,) = Interface(collection).kernels
            checks = "\n".join(check for _, check in kernel.checks if not re.search("is_aligned|nullptr", check))
            if any(function not in "".join(helpers) for function in HELPER.findall(checks)):
                text = contents(collection, [H200.arch])[f"{of.graph.name}.cu"]
                assert isinstance(text, str)
                helpers |= dict.fromkeys(HELPERS.findall(text))
            parameters = ", ".join(f"int64_t {symbol}" for symbol in kernel.symbols)
            functions.append(f"int f{len(functions)}({parameters}) {{\n{checks}\n  return 0;\n}}\n")
            changed = [{symbol: n + by} for symbol, n in kernel.symbols.items() for by in (-n // 2, -1, 0, 1, n, 2**36)]
            for one in changed:
                symbols = {**kernel.symbols, **one}
                taken = all(r.holds(symbols) for r in kernel.requirements.sizes)
                assert taken or symbols != kernel.symbols
                calls.append((f"f{len(functions) - 1}({', '.join(map(str, symbols.values()))})", taken))
    assert {taken for _, taken in calls} == {True, False}
    headers = [
        f"#include <{name}>\n" for name in ("cuda_runtime_api.h", "algorithm", "cstdint", "cstdio", "initializer_list")
    ]
    lines = [f'  std::puts({call} ? "refused" : "taken");\n' for call, _ in calls]
    source = "\n".join([*headers, *helpers, *functions, "int main() {\n", *lines, "}\n"])
    code, told = built(tmp_path, {"checks.cpp": source}, "-O0")
    assert code == 0
    assert [call for (call, taken), found in zip(calls, told.split(), strict=True) if taken != (found == "taken")] == []


def drawn(shape: tuple[int, ...], seed: int, values: str) -> torch.Tensor:
    """What `random_value` of an exported test draws for a dense tensor."""
    count = math.prod(shape)
    factors = np.cumprod(np.full(count, 1664525, dtype=np.uint32), dtype=np.uint32)
    added = np.cumsum(np.concatenate(([1], factors[:-1])), dtype=np.uint32) * np.uint32(1013904223)
    r = torch.from_numpy(((factors * np.uint32(seed) + added) >> 16).astype(np.int64)).reshape(shape)
    if values == "coarse":
        return (r % 5 - 2) * 0.5
    if values == "wide":
        return (r % 513 - 256) / 64
    magnitude = torch.where(r % 16 == 0, 2.0, torch.where(r % 16 == 1, 0.5, 1.0))
    return torch.where(r & 4096 != 0, -magnitude, magnitude)


@pytest.mark.parametrize("name", OPERATORS)
def test_what_torch_computes_is_within_the_bound(name: str) -> None:
    """The gate allows twice the error of torch's own arithmetic, the exported test an error that it states: on the values that it
    draws torch's is less, so that rounding in another order fails neither."""
    of = small(OPERATORS[name].definition.graphs[0], 256)
    if any(node.op == "external" for node in of.graph.nodes):
        pytest.skip("it is compared with a function of its own")
    values = random_values(of.graph)
    tensors, scalars = make_operands(of), scalar_values(of.graph)
    for number, o in enumerate(of.inputs, 1):
        if o.dtype.is_float:
            tensors[o.name].copy_(drawn(o.shape, number, values))
    results = zip(evaluate(of.graph, tensors, scalars), native(of.graph, tensors, scalars), of.outputs)
    for place, (reference, own, o) in enumerate(results):
        relative, absolute = tolerance(of, place)
        expected = round_to(reference, o.dtype) if o.dtype.is_float else reference
        torch.testing.assert_close(own.double(), expected.double(), rtol=relative, atol=absolute, equal_nan=True)

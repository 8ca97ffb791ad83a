"""Exports of operators of several launches: what each launch is given, where its values lie, and what is refused."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from kgen import ops
from kgen.dsl.errors import ArgumentError
from kgen.dsl.family import normalised
from kgen.dsl.problem import Operand, Problem
from kgen.dsl.program import program_of
from kgen.dsl.size import evaluate
from kgen.export import Entry, export_launches
from kgen.export.collection import collect
from kgen.export.launches import LaunchesInterface, interface, sizes_of
from kgen.export.variants import resized
from kgen.gpu.target import resolve
from kgen.runtime import dispatch

H200 = resolve("H200")
SEVERAL = ["group_norm", "batch_norm_train", "linear_logsumexp"]


def problem_of(name: str) -> Problem:
    operator = ops.operator(name)
    return Problem.dense(operator.graphs[0], operator.suites["default"][0])


def entries_of(problem: Problem) -> list[Entry]:
    return [Entry(p, dispatch.default(p, H200).config) for p in program_of(problem).launches]


def interface_of(problem: Problem) -> LaunchesInterface:
    return interface(problem, [collect([entry], H200) for entry in entries_of(problem)])


@pytest.mark.parametrize("name", SEVERAL)
def test_the_launches_are_given_what_a_call_gives_them(name: str) -> None:
    problem = problem_of(name)
    f = interface_of(problem)
    assert [*f.symbols.values()] == [*problem.sizes.values()]
    checked = 0
    for factor, more in itertools.product((1, 2), (0, 8, 24)):
        sizes = {axis: factor * n + more for axis, n in problem.sizes.items()}
        other = resized(problem, sizes)
        program = program_of(other)
        for part, launch in zip(f.parts, program.launches):
            symbols = part.first.config.symbols(normalised(launch))
            told = {n: evaluate(size, sizes_of(other)) for n, size in f.sizes_of_parts[part.name].items()}
            assert told == {n: symbols[n] for n in told}
            checked += len(told)
        sizes_between = [o.stored_bytes for o in program.workspaces]
        factors = [[sizes_of(other).get(word) or int(word) for word in text.split(" * ")] for _, _, text in f.values]
        assert [*map(math.prod, factors)] == sizes_between
    assert checked > 30


@pytest.mark.parametrize("name", SEVERAL)
def test_what_one_launch_refuses_the_whole_refuses(name: str) -> None:
    problem = problem_of(name)
    f = interface_of(problem)
    served = f.first
    assert served.symbols(problem) == f.symbols
    assert f.required.hold(f.symbols, dict.fromkeys((o.name for o in problem.operands), 256))
    refused = 0
    for axis, n in problem.sizes.items():
        odd = resized(problem, {axis: n + 1})
        whole = all(r.holds(sizes_of(odd)) for r in f.required.sizes)
        assert not whole or served.symbols(odd) is not None
        refused += not whole
    assert refused


def test_the_files_of_an_export(tmp_path: Path) -> None:
    problem = problem_of("batch_norm_train")
    written = export_launches(problem, entries_of(problem), H200, tmp_path / "out")
    assert sorted(path.name for path in written) == [
        "CMakeLists.txt",
        *(f"batch_norm_train{part}{kind}" for part, kind in itertools.product(("",), (".cu", ".h"))),
        *(f"batch_norm_train_{n}{kind}" for n, kind in itertools.product((1, 2), (".cu", ".h"))),
        "test_batch_norm_train.cu",
    ]
    text = (tmp_path / "out" / "batch_norm_train.cu").read_text()
    first, second = (text.index(f"batch_norm_train_{n}_launch(") for n in (1, 2))
    assert first < second
    assert (
        "add_library(batch_norm_train STATIC batch_norm_train.cu batch_norm_train_1.cu batch_norm_train_2.cu)"
        in (tmp_path / "out" / "CMakeLists.txt").read_text()
    )


def test_binaries_are_a_form_of_it(tmp_path: Path) -> None:
    problem = problem_of("batch_norm_train")
    written = export_launches(problem, entries_of(problem), H200, tmp_path / "out", form="cubin")
    names = {path.name for path in written}
    assert {"batch_norm_train.cpp", "batch_norm_train_1.cubin", "batch_norm_train_2.cubin"} <= names


def test_operands_with_gaps_are_refused() -> None:
    problem = problem_of("batch_norm_train")
    x = problem.inputs[0]
    gaps = Operand(x.name, x.dtype, x.shape, (x.strides[0] * 2, *x.strides[1:]))
    strided = Problem.bind(problem.graph, [gaps, *problem.operands[1:]])
    with pytest.raises(ArgumentError, match=r"cannot export batch_norm_train.*x:f16.* is not dense and row-major"):
        interface(strided, [collect([entry], H200) for entry in entries_of(strided)])


def test_an_empty_problem_is_refused(tmp_path: Path) -> None:
    problem = problem_of("batch_norm_train")
    entries = entries_of(problem)
    empty = program_of(resized(problem, {"B": 0})).launches
    with pytest.raises(ArgumentError, match="a size is 0"):
        export_launches(problem, [Entry(p, e.config) for p, e in zip(empty, entries)], H200, tmp_path / "out")

"""Every operator has problems that somebody would run, where none is named: distinct, bounded in bytes, and served."""

from __future__ import annotations

import math

import pytest
from operators import OPERATORS

import kgen
from kgen import Tensor, dims, f16, f32
from kgen.cli.problems import select, select_one
from kgen.dsl.errors import DefinitionError
from kgen.dsl.family import suites_of
from kgen.dsl.problem import Problem
from kgen.dsl.program import program_of
from kgen.gpu.target import resolve
from kgen.ops.common.sizes import LARGE_BYTES, MOST_BYTES, fill, operand_bytes
from kgen.runtime import dispatch

A, B, C, D, E = dims("A B C D E")


@pytest.mark.parametrize("name", OPERATORS)
def test_the_suites_of_an_operator(name: str) -> None:
    operator = OPERATORS[name]
    suites = suites_of(operator.definition)
    for suite in ("default", *({"small", "large"} & {*suites})):
        problems = select(operator, suite=suite)
        assert problems
        assert len({problem.key for problem in problems}) == len(problems)
        most = LARGE_BYTES if suite == "large" else MOST_BYTES
        assert (
            max(operand_bytes(p.graph, {**p.sizes, "...": p.leading} if p.leading else p.sizes) for p in problems)
            <= most
        )
    last = select_one(operator, None, None, None, None)
    assert last == select(operator)[-1]
    assert max(o.elements for o in last.operands) >= 2**14
    for launch in program_of(last).launches:
        dispatch.default(launch, resolve("H200"))


@pytest.mark.parametrize("name", OPERATORS)
def test_no_default_is_one_size_to_the_power_of_the_rank(name: str) -> None:
    """Products are squares, and matrices may be; of four dimensions and more nobody runs a cube."""
    graph = OPERATORS[name].definition.graphs[0]
    for sizes in suites_of(OPERATORS[name].definition)["default"]:
        named = [sizes[dim] for dim in graph.dims]
        assert len(named) < 4 or len(set(named)) > 1, sizes


@pytest.mark.parametrize("rank", range(1, 6))
@pytest.mark.parametrize("leading", [False, True])
def test_the_rule_for_an_operator_of_the_users(rank: int, leading: bool) -> None:
    """Whatever its rank: as many elements as asked for, as far as bytes allow."""
    shape = ((...,) if leading else ()) + (A, B, C, D, E)[:rank]

    def added(x, y):
        return x + y

    added.__annotations__ = {"x": Tensor[(f32, *shape)], "y": Tensor[(f32, *shape)], "return": Tensor[(f32, *shape)]}
    graph = kgen.operator(added).definition.graphs[0]
    for elements, found in ((2**20, 2**20), (2**30, 2**25)):
        problem = Problem.dense(graph, fill(graph, elements, 4096))
        assert math.prod(problem.operands[0].shape) == found
    assert len(suites_of(kgen.operator(added).definition)["default"]) == 3


def test_an_operator_names_its_own() -> None:
    sizes = {"...": (2, 3), "A": 5}

    @kgen.operator(suites={"default": [sizes], "mine": [sizes, {"...": (1,), "A": 7}]})
    def doubled(x: Tensor[f16, ..., A]) -> Tensor[f16, ..., A]:
        return x * 2

    assert [p.operands[0].shape for p in select(doubled)] == [(2, 3, 5)]
    assert [p.operands[0].shape for p in select(doubled, suite="mine")] == [(2, 3, 5), (1, 7)]
    assert {"small", "large"} < {*suites_of(doubled.definition)}  # the family's, where it names none


@pytest.mark.parametrize("sizes", [{"A": 5}, {"...": (2,)}, {"...": (2,), "A": 5, "B": 6}])
def test_a_suite_has_the_dimensions_of_its_operator(sizes: dict[str, int]) -> None:
    def doubled(x: Tensor[f16, ..., A]) -> Tensor[f16, ..., A]:
        return x * 2

    doubled.__annotations__ = {"x": Tensor[f16, ..., A], "return": Tensor[f16, ..., A]}
    with pytest.raises(DefinitionError, match=r"suite 'mine' has .*; expected sizes of \.\.\., A"):
        kgen.operator(suites={"mine": [sizes]})(doubled)

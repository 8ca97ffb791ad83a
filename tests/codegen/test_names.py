"""Operands may have any name that Python allows: what C++ or the templates call something else is renamed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kgen import emulator
from kgen.codegen.source import Pointer, Scalar
from kgen.dsl.errors import DefinitionError
from kgen.dsl.expr import Expr
from kgen.dsl.family import family_of
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.size import dims
from kgen.dsl.types import f16, f32
from kgen.gpu.compile import compile as nvrtc
from kgen.gpu.target import resolve
from kgen.tuner.execute import Runner
from kgen.tuner.operands import make_operands

M, N, K = dims("M N K")
TARGET = resolve("H200")

#: Locals, constants and functions of the templates, C++'s keywords, CUDA's variables, results of expressions.
NAMES = [
    "column", "row", "warp", "lane", "block", "tile", "shared", "vector", "vectors", "first", "stride", "i", "e", "k", "m", "n",
    "sum", "sums", "results", "finish", "epilogue", "compute", "raster", "Vector", "Tile", "THREADS", "PACK", "STAGES", "M", "N",
    "new", "int", "float", "template", "register", "this", "auto", "threadIdx", "blockIdx", "min", "max", "v0", "out0", "n0",
    "remaining", "Index", "values", "partials", "counters", "copy", "load", "store", "whole", "a_next", "batch0", "ptx",
]  # fmt: skip


def _operator(name: str, contraction: bool) -> Operator:
    def pointwise(given: Expr, other: Expr) -> Expr:
        return given * 2 + other

    def product(a: Expr, b: Expr, given: Expr) -> Expr:
        return a @ b + given

    function: Callable[..., Any] = product if contraction else pointwise
    arguments = {"a": Tensor[f16, M, K], "b": Tensor[f16, K, N]} if contraction else {}
    arguments |= {name: Tensor[f32, M, N]}
    if not contraction:
        arguments |= {"other": Tensor[f32, M, N]}
    code = function.__code__
    renamed = code.replace(co_varnames=tuple(name if v == "given" else v for v in code.co_varnames))
    function.__code__ = renamed
    function.__annotations__ = {**arguments, "return": Tensor[f32, M, N]}
    return Operator(function)


@pytest.mark.parametrize("contraction", [False, True], ids=["pointwise", "product"])
@pytest.mark.parametrize("name", NAMES)
def test_an_operands_name(name: str, contraction: bool) -> None:
    graph = _operator(name, contraction).graphs[0]
    family = family_of(graph)
    problem = family.normalise(Problem.dense(graph, {"M": 5, "N": 9, **({"K": 3} if contraction else {})}))
    for schedule in family.schedules:
        config = schedule.default(problem, TARGET)
        source = config.source(problem)
        assert nvrtc(source, TARGET.arch).warnings == ()
        tensors = make_operands(problem, "integers", 3)
        symbols = {**config.symbols(problem), "SM_COUNT": 2}
        Runner(emulator.compile(source), source, symbols).run(tensors, {})
        given = tensors[name]
        want = tensors["a"].float() @ tensors["b"].float() + given if contraction else given * 2 + tensors["other"]
        assert torch.equal(tensors["out"], want)


def scaled(x: Tensor[f32, N], lane: float, column: float = 2.0) -> Tensor[f32, N]:
    return x * lane + column


def test_a_numbers_name() -> None:
    graph = Operator(scaled).graphs[0]
    problem = family_of(graph).normalise(Problem.dense(graph, {"N": 37}))
    config = family_of(graph).schedules[0].default(problem, TARGET)
    source = config.source(problem)
    assert nvrtc(source, TARGET.arch).warnings == ()
    assert len([p for p in source.params if isinstance(p, Scalar)]) == 2
    assert [p.operand for p in source.params if isinstance(p, Pointer)] == ["x", "out"]
    tensors = make_operands(problem, "integers", 3)
    Runner(emulator.compile(source), source, {**config.symbols(problem), "SM_COUNT": 2}).run(
        tensors, {"lane": 3.0, "column": 0.5}
    )
    assert torch.equal(tensors["out"], tensors["x"] * 3 + 0.5)


def taken(out: Tensor[f32, N]) -> Tensor[f32, N]:
    return out + 1


def test_the_results_name_is_no_operands() -> None:
    with pytest.raises(DefinitionError, match="out"):
        Operator(taken)

"""Operands may have any name that Python allows, and keep it: only what C++ or the kernel calls something else is renamed."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch

import kgen.ops  # noqa: F401 (registers the families)
from kgen import emulator
from kgen.codegen.names import apart, identifier, settled
from kgen.codegen.source import Pointer, Scalar, Source
from kgen.dsl.errors import ConfigError, DefinitionError
from kgen.dsl.expr import Expr
from kgen.dsl.family import family_of
from kgen.dsl.functions import amax
from kgen.dsl.operator import Graph, Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.size import dims
from kgen.dsl.types import f16, f32
from kgen.gpu.compile import compile as nvrtc
from kgen.gpu.target import resolve
from kgen.numerics.operands import make_operands
from kgen.tuner.execute import Runner

M, N, K = dims("M N K")
TARGET = resolve("H200")

#: Locals, constants and functions of the templates, C++'s keywords, CUDA's variables, results of expressions.
NAMES = [
    "w", "gate", "k", "offset", "row", "v", "int", "THREADS", "shared", "x_", "x", "x_row", "w_rows", "map_w", "w_s0", "w_sm",
    "column", "row", "warp", "lane", "block", "tile", "shared", "vector", "vectors", "first", "stride", "i", "e", "k", "m", "n",
    "sum", "sums", "results", "finish", "epilogue", "compute", "raster", "Vector", "Tile", "THREADS", "PACK", "STAGES", "M", "N",
    "new", "int", "float", "template", "register", "this", "auto", "threadIdx", "blockIdx", "min", "max", "v0", "out0", "n0",
    "remaining", "Index", "values", "partials", "counters", "copy", "load", "store", "whole", "a_next", "batch0", "ptx",
]  # fmt: skip


#: As many names at once as the definitions below have operands.
GROUPS = [NAMES[i : i + 8] for i in range(0, len(NAMES), 8)]


def _operator(names: list[str], contraction: bool) -> Operator:
    def pointwise(g0: Expr, g1: Expr, g2: Expr, g3: Expr, g4: Expr, g5: Expr, g6: Expr, g7: Expr) -> Expr:
        return g0 + 2 * g1 + g2 + g3 + g4 + g5 + g6 + g7

    def product(
        a: Expr, b: Expr, g0: Expr, g1: Expr, g2: Expr, g3: Expr, g4: Expr, g5: Expr, g6: Expr, g7: Expr
    ) -> Expr:
        return a @ b + (g0 + 2 * g1 + g2 + g3 + g4 + g5 + g6 + g7)

    function: Callable[..., Any] = product if contraction else pointwise
    arguments = {"a": Tensor[f16, M, K], "b": Tensor[f16, K, N]} if contraction else {}
    arguments |= dict.fromkeys(names, Tensor[f32, M, N])
    code = function.__code__
    renamed = tuple(names[int(v[1])] if v[0] == "g" else v for v in code.co_varnames)
    function.__code__ = code.replace(co_varnames=renamed)
    function.__annotations__ = {**arguments, "return": Tensor[f32, M, N]}
    return Operator(function)


@pytest.mark.parametrize("contraction", [False, True], ids=["pointwise", "product"])
@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_names_of_operands(names: list[str], contraction: bool) -> None:
    graph = _operator(names, contraction).graphs[0]
    assert [s.name for s in graph.inputs][-8:] == names
    family = family_of(graph)
    problem = family.normalise(Problem.dense(graph, {"M": 5, "N": 9, **({"K": 3} if contraction else {})}))
    for schedule in family.schedules:
        if not schedule.applies(problem):
            continue
        config = schedule.default(problem, TARGET)
        source = config.source(problem)
        assert nvrtc(source, TARGET.arch).warnings == ()
        tensors = make_operands(problem, "integers", 3)
        symbols = {**config.symbols(problem), "SM_COUNT": 2}
        Runner(emulator.compile(source), source, symbols).run(tensors, {})
        want = sum(tensors[name] for name in (*names, names[1]))
        if contraction:
            want = want + tensors["a"].float() @ tensors["b"].float()
        assert torch.equal(tensors["out"], want)


def _sources(graph: Graph, sizes: dict[str, int]) -> list[tuple[Any, Problem, Source]]:
    """Each schedule's default config, where it has one, the problem and its source."""
    family = family_of(graph)
    problem = family.normalise(Problem.dense(graph, sizes))
    found = []
    for schedule in (s for s in family.schedules if s.applies(problem)):
        with suppress(ConfigError):  # clusters are for long rows
            config = schedule.default(problem, TARGET)
            found.append((config, problem, config.source(problem)))
    assert found
    return found


def rows(
    w: Tensor[f32, M, N], gate: Tensor[f32, N], k: Tensor[f32, N], offset: Tensor[f32, N], row: Tensor[f32, N],
    v: Tensor[f32, N], int: Tensor[f32, N], THREADS: Tensor[f32, N], shared: Tensor[f32, N], x_: Tensor[f32, N],
    stride: float,
) -> Tensor[f32, M, N]:  # fmt: skip
    return w - amax(w, axis=-1) + gate * stride + k + offset + row + v + 2 * int + THREADS + shared + x_


def columns(w: Tensor[f32, M, N], row: Tensor[f32, N], x: Tensor[f32, N], x_: Tensor[f32, N]) -> Tensor[f32, N]:
    return amax(w, axis=-2) + row + x + 2 * x_


def squared(x: Tensor[f16, M, K], x_right: Tensor[f32, M, M]) -> Tensor[f32, M, M]:
    """The second `x` is called x_right in the kernel, and its strides are symbols."""
    return x @ x.T + x_right


def residual(x: Tensor[f16, M, M], x_beside: Tensor[f16, M, M]) -> Tensor[f32, M, M]:
    """Beside the product `x` is called x_beside_ in the kernel, as the right factor is x_beside."""
    return x @ x_beside + x + 2 * x_beside


WANTED: dict[Callable[..., Any], Callable[[dict[str, torch.Tensor]], torch.Tensor]] = {
    rows: lambda t: (
        t["w"] - t["w"].amax(-1, keepdim=True) + 3 * t["gate"] + 2 * t["int"]
        + sum(t[name] for name in ("k", "offset", "row", "v", "THREADS", "shared", "x_"))
    ),
    columns: lambda t: t["w"].amax(-2) + t["row"] + t["x"] + 2 * t["x_"],
    squared: lambda t: t["x"].float() @ t["x"].float().T + t["x_right"],
    residual: lambda t: t["x"].float() @ t["x_beside"].float() + t["x"] + 2 * t["x_beside"],
}  # fmt: skip


@pytest.mark.parametrize("function", WANTED, ids=lambda function: function.__name__)
def test_names_in_other_families(function: Callable[..., Any]) -> None:
    graph = Operator(function).graphs[0]
    sizes = {"M": 5, "N": 37, "K": 8}
    for config, problem, source in _sources(graph, {name: sizes[name] for name in graph.dims}):
        assert nvrtc(source, TARGET.arch).warnings == ()
        tensors = make_operands(problem, "integers", 3)
        symbols = {**config.symbols(problem), "SM_COUNT": 2}
        Runner(emulator.compile(source), source, symbols).run(tensors, {"stride": 3.0} if function is rows else {})
        assert torch.equal(tensors["out"], WANTED[function](tensors))


@pytest.mark.parametrize("names", GROUPS[:2], ids=lambda names: names[0])
def test_a_name_is_kept_where_the_kernel_has_no_such_word(names: list[str]) -> None:
    for _, _, source in _sources(_operator(names, True).graphs[0], {"M": 5, "N": 9, "K": 3}):
        words = set(re.findall(r"(?<![.\w])[A-Za-z_]\w*", re.sub(r'//.*|"[^"\n]*"', "", source.body)))
        called = {p.operand: p.name for p in source.params if isinstance(p, Pointer) and p.operand}
        assert {name for name in names if called[name] != name} <= words | {"int"}
        assert {name for name in names if called[name] == name} >= {"w", "x_", "w_rows", "map_w"} & {*names}


def test_a_word_of_the_text_is_never_a_name() -> None:
    w, w_s, s, x, x_ = (identifier(name) for name in ("w", "w_s", "s", "x", "x_"))
    text = f"f({w}, {w}_s, map_{w}, {w_s}, {s}, {x}, {x_}); a.s = b->w + map_w; // x of {w}\nx = 1;"
    found, names = settled(text)
    assert found == "f(w, w__s, map_w_, w_s, s, x__, x_); a.s = b->w + map_w; // x of w\nx = 1;"
    assert names[f"{w}_s"] == "w__s"
    assert apart([identifier("int"), identifier("n0")], ["n0"]) == {identifier("int"): "int_", identifier("n0"): "n0_"}


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
        _ = Operator(taken).graphs

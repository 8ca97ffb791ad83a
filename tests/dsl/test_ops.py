"""Rows of ops: each says the truth, every backend's table has them all, and nothing else is to be told of a new one."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kgen.bench import eager
from kgen.codegen.expression import CUDA
from kgen.dsl.expr import Expr, Shape, apply, cast, reduction, scan, where
from kgen.dsl.ops import OPS, POINTWISE, REDUCTIONS, SCANS, accumulator, indexed, operand_dtypes
from kgen.dsl.size import dims
from kgen.dsl.types import DType, bool_, f16, f32, i32
from kgen.export.reference import PLAIN
from kgen.numerics.dtypes import torch_dtype
from kgen.numerics.values import VALUES, Arithmetic
from kgen.ops import operators

GRAPHS = [graph for operator in operators().values() for graph in operator.graphs]
(N,) = dims("N")
COUNT = 400


class Single(Arithmetic):
    """The arithmetic of the dtypes themselves."""

    def held(self, dtype: DType) -> torch.dtype:
        return torch_dtype(dtype)


def leaf(name: str, dtype: DType) -> Expr:
    return Expr("input", (), dtype, Shape((N,)), name)


def node_of(op: str) -> Expr:
    """The op on inputs of the dtype that it takes."""
    row = OPS[op]
    if op == "where":
        return where(leaf("c", bool_), leaf("x", f32), leaf("y", f32))
    if op == "cast":
        return cast(leaf("x", f32), i32)
    if op in REDUCTIONS:
        return reduction(op, leaf("x", f32), -1)
    if op in SCANS:
        return scan(op, leaf("x", f32))
    dtype = {"bools": bool_, "ints": i32}.get(row.takes, f32)
    return apply(op, *(leaf(f"x{i}", dtype) for i in range(len(row.roles))))


def drawn(node: Expr, low: float, high: float, whole: bool = False) -> list[Tensor]:
    """Values of a node's inputs."""
    generator = torch.Generator().manual_seed(3)
    made = [torch.rand(COUNT, generator=generator) * (high - low) + low for _ in node.args]
    made = [x.round() if whole or a.dtype is not f32 else x for x, a in zip(made, node.args)]
    made = [x > 0 if a.dtype is bool_ else x.to(torch_dtype(a.dtype)) for x, a in zip(made, node.args)]
    return [x.reshape(-1, 8) for x in made] if OPS[node.op].kind in ("reduction", "scan") else made


def value(node: Expr, operands: list[Tensor], how: Arithmetic) -> Tensor:
    return VALUES[node.op](node, [x.to(how.held(a.dtype)) for x, a in zip(operands, node.args)], how)


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        pytest.param(CUDA, POINTWISE, id="CUDA"),
        pytest.param(VALUES, OPS, id="float64"),
        pytest.param(PLAIN, OPS, id="plain C++"),
        pytest.param([*eager.CALLS, *eager.LACKING], OPS, id="torch"),
        pytest.param([*eager.FUNCTIONS, "cast"], POINTWISE, id="torch's functions"),
    ],
)
def test_a_table_has_every_op_and_no_other(table: Collection[str], wanted: Collection[str]) -> None:
    assert sorted(table) == sorted(wanted)


@pytest.mark.parametrize("op", eager.LACKING)
def test_why_torch_has_no_call_is_told(op: str) -> None:
    graph = next(graph for graph in GRAPHS if any(node.op == op for node in graph.nodes))
    name = next(getattr(node.attr, "name", "") for node in graph.nodes if node.op == op)
    assert eager.why_not(graph) == eager.LACKING[op].format(name=name)


def test_rows_fit_the_nodes_of_every_operator() -> None:
    seen = {node.op for graph in GRAPHS for node in graph.nodes}
    assert seen <= set(OPS)
    for graph in GRAPHS:
        for node in graph.nodes:
            row = OPS[node.op]
            assert len(row.roles) == len(node.args) or (row.kind == "external" and not row.roles)
            if row.gives != "own":
                assert node.dtype is row.result(*(a.dtype for a in node.args))
            if row.kind == "pointwise":
                assert len(operand_dtypes(node)) == len(node.args)
            if row.sums:
                assert accumulator(node).kind == node.dtype.kind
            if "ids" in row.roles:
                assert indexed(node) in ({*node.shape.dims} if row.kind == "scatter" else {*node.args[0].shape.dims})


@pytest.mark.parametrize("op", sorted(POINTWISE | REDUCTIONS | SCANS))
def test_a_row_is_as_exact_as_it_says(op: str) -> None:
    node, row = node_of(op), OPS[op]
    for whole in (True, False):
        operands = drawn(node, 1, 9, whole)
        exact, own = value(node, operands, Arithmetic()), value(node, operands, Single())
        same = torch.equal(exact.double(), own.double())
        if row.exactness in ("moved", "chosen") or (whole and row.exactness != "rounded"):
            assert same
        if row.exactness == "rounded" and not whole:
            assert not same
        if row.exactness in ("moved", "chosen"):
            among = torch.cat([x.double().abs() for x, a in zip(operands, node.args) if a.dtype is not bool_])
            assert torch.isin(own.double().abs(), among).all()


@pytest.mark.parametrize("op", sorted(op for op in POINTWISE if len(OPS[op].roles) == 2))
def test_operands_change_places_just_where_it_says_so(op: str) -> None:
    node = node_of(op)
    a, b = drawn(node, -9, 9)
    swapped, given = (value(node, x, Single()) for x in ([b, a], [a, b]))
    assert OPS[op].commutes == torch.allclose(swapped.double(), given.double(), equal_nan=True)


@pytest.mark.parametrize("op", sorted(POINTWISE))
def test_ranges_are_no_narrower_than_it_says(op: str) -> None:
    node, row = node_of(op), OPS[op]
    for signs in itertools.product([True, False], repeat=len(node.args)):
        if row.sign(node, signs):
            ranged = [drawn(node, 0 if sign else -9, 9)[i] for i, sign in enumerate(signs)]
            assert (value(node, ranged, Single()) >= 0).all()
    for i in row.rises:
        operands = [x if k == i else x[:1].expand(COUNT) for k, x in enumerate(drawn(node, 0, 9))]
        operands[i] = operands[i].sort().values
        assert (value(node, operands, Single()).diff() >= 0).all()


def test_accumulators() -> None:
    (K,) = dims("K")
    a, ids = Expr("input", (), f16, Shape((N, K)), "a"), leaf("ids", i32)
    assert accumulator(Expr("matmul", (a, a), f32, Shape((N, N)), f16)) is f16
    assert accumulator(Expr("scatter_add", (ids, a), f32, Shape((N, K)), (N, 0, f16))) is f16
    assert accumulator(reduction("sum", a, -1)) is accumulator(reduction("argmax", a, -1)) is f32


def test_an_op_is_added_by_its_row_and_its_texts() -> None:
    command = [sys.executable, str(Path(__file__).with_name("added_op.py"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "added\n", done.stdout + done.stderr

"""GEMM problems: one contraction with a pointwise epilogue, any layout, any leading batch dimensions.

`Gemm` reads a problem as out[b, m, n] = epilogue(sum over k of a[b, m, k] * b[b, k, n], extras[b, m, n]...) with strides for
each of these axes; the schedules of simt.py, mma.py and wgmma.py take it from there. Of fp8 operands, a and b may
have a scale for each of their blocks, of so many rows or columns, and of the same number of k. Grouped products have one batch
axis, that of the groups, along which only b moves: M counts the rows of all groups, and `offsets` says which are whose.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kgen.dsl.errors import ArgumentError
from kgen.dsl.expr import Expr
from kgen.dsl.operator import Graph, of_graph
from kgen.dsl.ops import LEAVES, POINTWISE, PRODUCTS
from kgen.dsl.problem import Operand, Problem, Sizes
from kgen.dsl.product import Factor, blocked, factors
from kgen.dsl.size import Dim
from kgen.dsl.types import DType
from kgen.ops.common.axes import merged_sizes, merged_strides, runs
from kgen.ops.common.sizes import bounded, fill


@of_graph
def contraction(graph: Graph) -> Expr | None:
    """The graph's one matrix product: of inputs as they are or transposed, or of fp8 inputs with scales of their blocks.

    A grouped one is of inputs without scales, the offsets included.
    """
    products = [n for n in graph.nodes if n.op in PRODUCTS]
    found = factors(products[0]) if len(products) == 1 else None
    if not found or any(n.op != "input" for n in products[0].args[2:]):
        return None
    scaled = any(f.scale for f in found)
    served = not scaled or (blocked(products[0]) and products[0].op == "matmul")
    return products[0] if served else None


@functools.lru_cache(maxsize=4096)
def sides(graph: Graph) -> tuple[Factor, Factor]:
    """What the contraction of a graph of this family multiplies."""
    product = contraction(graph)
    assert product is not None
    found = factors(product)
    assert found is not None
    return found


@functools.lru_cache(maxsize=4096)
def matches(graph: Graph) -> bool:
    """Whether the graph is one contraction and then pointwise, all outputs of the contraction's shape."""
    product = contraction(graph)
    if product is None:
        return False
    leaves = LEAVES | PRODUCTS
    return all(n.op in leaves or n.op in POINTWISE for n in _epilogue(graph, product)) and all(
        spec.shape == product.shape for spec in graph.outputs
    )


def _epilogue(graph: Graph, product: Expr) -> list[Expr]:
    """The product and all that is computed from it, with what goes into that beside."""
    found: dict[int, Expr] = {}
    stack = list(graph.results)
    while stack:
        node = stack.pop()
        found[id(node)] = node
        stack.extend(node.args if node is not product else ())
    return list(found.values())


@dataclass(frozen=True)
class Matrix:
    """An operand by the axes of the product: strides over the batch axes and over its two own (`outer` is M or N)."""

    operand: Operand
    batch: tuple[int, ...]
    row: int
    column: int


@dataclass(frozen=True)
class Scale:
    """The scales of A or B, strides over blocks: one for each `outer` rows of A or columns of B, and `depth` of K."""

    matrix: Matrix
    outer: int
    depth: int


@dataclass(frozen=True)
class Gemm:
    """A problem of this family by the axes of the product. a is [M, K], b is [K, N], the others [M, N] (stride 0: broadcast).

    `scales` are those of a and of b, or none; `offsets` those of a grouped product's rows.
    """

    M: int
    N: int
    K: int
    batch: tuple[int, ...]
    a: Matrix
    b: Matrix
    extras: tuple[Matrix, ...]
    outputs: tuple[Matrix, ...]
    accumulate: DType
    scales: tuple[Scale, ...] = ()
    offsets: Operand | None = None

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return (self.a, self.b, *self.extras, *self.outputs)

    @property
    def batches(self) -> int:
        """How many products of M rows there are; of groups, which share M, one."""
        return 1 if self.offsets else math.prod(self.batch)

    @property
    def groups(self) -> int:
        """How many groups a grouped product has; else 1."""
        return max(1, math.prod(self.batch)) if self.offsets else 1

    @property
    def flops(self) -> int:
        return 2 * self.batches * self.M * self.N * self.K


def _strides(operand: Operand, head: tuple[int, ...], last: tuple[int, int], swapped: bool = False) -> Matrix:
    """The operand's strides over `head` + `last`, 0 where it broadcasts; 1 for the contiguous one of axes of size 1."""
    full = (*head, *last)
    missing = len(full) - len(operand.shape)
    kept = [s if n == f and f != 1 else 0 for s, n, f in zip(operand.strides, operand.shape, full[missing:])]
    strides = [0] * missing + kept
    row, column = strides[-2:]
    return Matrix(operand, tuple(strides[:-2]), *((column, row) if swapped else (row, column)))


@functools.lru_cache(maxsize=4096)
def describe(problem: Problem) -> Gemm:
    """The problem by the axes of its product."""
    graph = problem.graph
    product = contraction(graph)
    assert product is not None
    left, right = sides(graph)
    *head, m, n = problem.outputs[0].shape
    k = problem.operand(left.name).shape[-2 if left.transposed else -1]
    grouped = product.op == "grouped_matmul"
    batch = problem.operand(right.name).shape[:1] if grouped else tuple(head)
    a, b = _factor(problem, left.name, left, batch, (m, k)), _factor(problem, right.name, right, batch, (k, n))
    scales: tuple[Scale, ...] = ()
    if left.scale and right.scale:
        (rows, depth), columns = (left.scale.rows, left.scale.columns), right.scale.columns
        blocks = (math.ceil(m / rows), math.ceil(k / depth)), (math.ceil(k / depth), math.ceil(n / columns))
        scales = (
            Scale(_factor(problem, left.scale.name, left, batch, blocks[0]), rows, depth),
            Scale(_factor(problem, right.scale.name, right, batch, blocks[1]), columns, depth),
        )
    extras = _extras(graph)
    return Gemm(
        m,
        n,
        k,
        batch,
        _unit(a, m, k),
        _unit(b, k, n),
        tuple(_strides(problem.operand(name), batch, (m, n)) for name in extras),
        tuple(_strides(o, batch, (m, n)) for o in problem.outputs),
        product.attr,
        scales,
        problem.operand(product.args[2].attr) if grouped else None,
    )


def _factor(problem: Problem, name: str, side: Factor, head: tuple[int, ...], last: tuple[int, int]) -> Matrix:
    """A factor of the product, or its scales, that is stored as `side` says; `last`: its rows and columns."""
    rows, columns = last
    return _strides(problem.operand(name), head, (columns, rows) if side.transposed else last, side.transposed)


@functools.lru_cache(maxsize=4096)
def exchanged(problem: Problem) -> Gemm:
    """The transposed product: out.T = b.T @ a.T, with rows for columns everywhere."""
    g = describe(problem)

    def turn(x: Matrix) -> Matrix:
        return replace(x, row=x.column, column=x.row)

    return replace(
        g,
        M=g.N,
        N=g.M,
        a=turn(g.b),
        b=turn(g.a),
        extras=tuple(map(turn, g.extras)),
        outputs=tuple(map(turn, g.outputs)),
        scales=tuple(replace(s, matrix=turn(s.matrix)) for s in reversed(g.scales)),
    )


def _unit(x: Matrix, rows: int, columns: int) -> Matrix:
    """An axis of size 1 counts as contiguous where no other is: its stride is never used."""
    if x.column == 1 or x.row == 1:
        return x
    if columns <= 1:
        return Matrix(x.operand, x.batch, x.row, 1)
    if rows <= 1:
        return Matrix(x.operand, x.batch, 1, x.column)
    return x


@functools.lru_cache(maxsize=4096)
def _extras(graph: Graph) -> tuple[str, ...]:
    """Names of the inputs that the epilogue reads, in the order of the signature."""
    product = contraction(graph)
    assert product is not None
    reached = {node.attr for node in _epilogue(graph, product) if node.op == "input"}
    return tuple(s.name for s in graph.inputs if s.name in reached)


def normalise(problem: Problem) -> Problem:
    """The problem with its batch dimensions merged, and folded into M where only a is batched (a linear layer on [..., K])."""
    if problem.origin is not None:
        return problem
    graph = problem.graph
    product = contraction(graph)
    assert product is not None
    if product.op == "grouped_matmul":
        g = describe(problem)
        if g.offsets is not None and g.offsets.strides != (1,):
            told = list(g.offsets.strides)
            raise ArgumentError(f"{graph.name}: {g.offsets.name} has strides {told}; expected [1]: use contiguous()")
        return problem.collapsed(problem.operands, (), {"M": g.M, "N": g.N, "K": g.K} | _batch_sizes(g.batch))
    operands, sizes = [*problem.operands], list[int]()
    if max(len(o.shape) for o in operands) > 2:
        operands, sizes = _merged(problem)
        folded = _fold_rows(graph, operands, sizes)
        if folded is not None:
            operands, sizes = folded, sizes[:-1]
    m, n = operands[len(graph.inputs)].shape[-2:]
    left, _ = sides(graph)
    k = problem.operand(left.name).shape[-2 if left.transposed else -1]
    return problem.collapsed(operands, tuple(sizes), {"M": m, "N": n, "K": k} | _batch_sizes(sizes))


def _merged(problem: Problem) -> tuple[list[Operand], list[int]]:
    """The operands with as few batch axes as may be, and the sizes of these."""
    head = problem.outputs[0].shape[:-2]
    spread = {o.name: _heads(o, head) for o in problem.operands}
    made = runs([d for d, n in enumerate(head) if n != 1], head, spread.values())
    sizes = merged_sizes(made, head)
    return [_place(o, sizes, merged_strides(made, spread[o.name])) for o in problem.operands], sizes


def _batch_sizes(sizes: Sequence[int]) -> dict[str, int]:
    return {f"batches{d}": n for d, n in enumerate(sizes)}


def _heads(o: Operand, head: tuple[int, ...]) -> list[int]:
    own = o.shape[:-2]
    kept = [s if n == f else 0 for s, n, f in zip(o.strides, own, head[len(head) - len(own) :])]
    return [0] * (len(head) - len(own)) + kept


def _place(o: Operand, sizes: Sequence[int], strides: Sequence[int]) -> Operand:
    """The operand with merged batch axes; one that no batch axis moves keeps its last two alone."""
    own = 2 if len(o.shape) >= 2 else len(o.shape)
    if not any(strides):
        return Operand(o.name, o.dtype, o.shape[-own:] if own else (), o.strides[-own:] if own else (), o.align)
    return Operand(o.name, o.dtype, (*sizes, *o.shape[-2:]), (*strides, *o.strides[-2:]), o.align)


def _fold_rows(graph: Graph, operands: Sequence[Operand], sizes: Sequence[int]) -> list[Operand] | None:
    """The operands with the last batch axis made part of M; None where b is batched or the strides do not allow it."""
    a, b = sides(graph)
    if not sizes or a.transposed or (a.scale and a.scale.rows > 1):
        return None
    # Not `runs`: the axis joins M in what has it, and b and broadcast operands stay as they are.
    of_b = {b.name, b.scale.name if b.scale else ""}
    # What is b may be a, or read by the epilogue, too: there it has M's axis.
    with_rows = {a.name, a.scale.name if a.scale else "", *_extras(graph)}
    count, folded = sizes[-1], []
    for o in operands:
        rank = len(o.shape)
        if rank <= 2:
            rows_alike = (o.name in of_b and o.name not in with_rows) or rank < 2 or o.shape[0] == 1
            if not rows_alike:
                return None
            folded.append(o)
            continue
        if o.name in of_b or o.shape[-3] != count or o.shape[-2] == 1 or o.strides[-3] != o.strides[-2] * o.shape[-2]:
            return None
        shape = (*o.shape[:-3], count * o.shape[-2], o.shape[-1])
        folded.append(Operand(o.name, o.dtype, shape, (*o.strides[:-3], *o.strides[-2:]), o.align))
    return folded


def shape_dims(graph: Graph) -> tuple[str, ...]:
    """A shape is written as batch sizes, M, N, K by the graph's own names."""
    product = contraction(graph)
    assert product is not None
    m, n = product.shape.dims[-2:]
    k = product.args[0].shape.dims[-1]
    order = [d.name for d in (*product.shape.dims[:-2], m, n, k) if isinstance(d, Dim)]
    return tuple(dict.fromkeys([*(["..."] if product.shape.leading else []), *order, *graph.dims]))


#: N and K of the layers of a language model of 8 and of 70 thousand million parameters.
_LAYERS = ((6144, 4096), (28672, 4096), (4096, 14336), (8192, 28672))
#: Rows, N, K and number of the experts of some mixtures of experts, as one GPU of several has them: many rows each, and few.
_EXPERTS = ((4096, 7168, 4096, 8), (4096, 4096, 7168, 8), (16384, 2048, 768, 128), (256, 2048, 768, 128))
#: The same of whole models.
_ALL_EXPERTS = ((8192, 14336, 4096, 8), (8192, 4096, 7168, 32), (16384, 1536, 2048, 128), (256, 1536, 2048, 128))
_RAGGED = ((1000, 1000, 1000), (4095, 4097, 4104), (4093, 4091, 4099))


def suites(graph: Graph) -> Mapping[str, Sequence[Sizes]]:
    """`default`: squares of 1024 to 8192; `small`, `large`, `skinny` (16 rows), `ragged`, `splitk`; `gemm`: of all kinds."""
    names = [n for n in shape_dims(graph) if n != "..."]
    product = contraction(graph)
    if len(names) == 4 and product is not None and product.op == "grouped_matmul":
        named = {"default": _EXPERTS, "large": _ALL_EXPERTS}
        return {suite: [dict(zip(names, shape)) for shape in shapes] for suite, shapes in named.items()}
    if len(names) == 2 and product is not None and 1 in product.shape.dims[-2:]:  # a vector
        return {"default": bounded(graph, [dict(zip(names, layer)) for layer in (*_LAYERS, (4096, 4096))])}
    if len(names) != 3 or product is None or len(product.shape.dims) != 2:
        return {"default": [fill(graph, 2**24, 1024)]}

    def of(*shapes: tuple[int, int, int]) -> list[Sizes]:
        return [dict(zip(names, shape)) for shape in shapes]

    return {
        "default": bounded(graph, of(*((n, n, n) for n in (1024, 2048, 4096, 8192)))),
        "small": of((256, 256, 256), (512, 512, 512), (1024, 1024, 1024)),
        "large": of((8192, 8192, 8192), (16384, 16384, 16384)),
        "gemv": of(*((1, *layer) for layer in (*_LAYERS, (4096, 4096)))),
        "gemv8": of(*((8, *layer) for layer in (*_LAYERS, (4096, 4096)))),
        "skinny": of((16, 28672, 4096), (16, 6144, 4096), (64, 28672, 4096), (128, 28672, 4096)),
        "ragged": of(*_RAGGED),
        "gemm": of(
            *((n, n, n) for n in (512, 1024, 2048, 4096, 8192, 16384)),
            *((m, n, k) for m in (1, 8, 16, 64, 128, 512, 4096) for n, k in _LAYERS),
            (4096, 4096, 64),
            (128, 128, 32768),
            *_RAGGED,
        ),
        "splitk": of((128, 128, 32768), (512, 512, 16384)),
    }

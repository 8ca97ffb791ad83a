"""What the row-wise schedules see of a problem: few dimensions, the widest vectors, what it leaves to be made of a row."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence

from kgen.dsl.operator import Graph
from kgen.dsl.problem import Operand, Problem, Sizes, common_alignment
from kgen.dsl.size import evaluate
from kgen.ops.common.axes import merged_sizes, merged_strides, runs
from kgen.ops.common.sizes import LARGE_BYTES, MOST_BYTES, distinct, fill
from kgen.ops.rowwise.kernel import accesses
from kgen.ops.rowwise.plan import full_shape, is_full, is_squeezed, plan_of

#: Columns are counted in 32 bits, with room for a step beyond the end.
LONGEST = 2**30


def normalise(problem: Problem) -> Problem:
    """The problem over as few dimensions as possible: those before the row ordered by strides, neighbours merged.

    The last one is the row's. Where an element's place counts (random, arange of rows) the order stays.
    """
    if problem.origin is not None:
        return problem
    graph = problem.graph
    full = full_shape(graph)
    row = full.dims[-1]
    outer = (*problem.leading, *(evaluate(d, problem.sizes) for d in full.dims[:-1]))
    length = evaluate(row, problem.sizes)
    squeezed = [False] * len(graph.inputs) + [is_squeezed(*pair) for pair in zip(graph.outputs, graph.results)]
    specs = (*graph.inputs, *graph.outputs)
    strides = [
        _strides(o, outer, length, s, is_full(spec, row)) for o, s, spec in zip(problem.operands, squeezed, specs)
    ]
    axes = [a for a, n in enumerate(outer) if n != 1]
    if not any(n.op == "random" or (n.op == "arange" and len(n.shape.dims) > 1) for n in graph.nodes):
        leader = strides[len(problem.inputs)]
        axes.sort(key=lambda a: -leader[a])
    made = runs(axes, outer, strides)
    sizes = merged_sizes(made, outer) or [1]
    # Of a single row, what is like the row itself moves from row to row all the same.
    columns = [merged_strides(made, s) or [length * (spec.shape == full)] for s, spec in zip(strides, specs)]
    operands = []
    for o, spec, c, s, without in zip(problem.operands, specs, columns, strides, squeezed):
        last = () if without else (length if is_full(spec, row) else 1,)
        operands.append(Operand(o.name, o.dtype, (*sizes, *last), (*c, *s[len(outer) :][: len(last)]), o.align))
    leading = (*sizes, length)
    return problem.collapsed(operands, leading, {f"n{i}": n for i, n in enumerate(leading)})


def _strides(o: Operand, outer: tuple[int, ...], length: int, squeezed: bool, full: bool) -> tuple[int, ...]:
    """An operand's strides over the outer dimensions and the row's; one that is `full` moves along rows of one column too."""
    shape = (*o.shape, 1) if squeezed else o.shape
    given = (*o.strides, 0) if squeezed else o.strides
    missing = len(outer) + 1 - len(shape)
    kept = [s if n == f and f != 1 else 0 for s, n, f in zip(given, shape, (*outer, length)[missing:])]
    if length == 1 and full:
        kept[-1] = 1
    return (0,) * missing + tuple(kept)


def suites(graph: Graph) -> Mapping[str, Sequence[Sizes]]:
    """`default`: rows of 1024, 4096 and 16384, up to 2^27 elements; `large`: of 256 to 262144; `small`: of 3 to 4096, 2^20."""
    row = str(full_shape(graph).dims[-1])

    def of(elements: int, length: int, most: int = MOST_BYTES) -> Sizes:
        return fill(graph, elements, 1, given={row: length} if row in graph.dims else {}, most=most)

    return {
        "default": distinct(of(2**27, n) for n in (1024, 4096, 16384)),
        "large": [of(2**27, 4**k, LARGE_BYTES) for k in range(4, 10)],
        "small": [of(2**20, n) for n in (3, 256, 1024, 4096)],
    }


@functools.lru_cache(maxsize=1024)
def widest_pack(problem: Problem) -> int:
    """The most elements, at most 16, that every operand along the row lets one vector have."""

    def fits(pack: int) -> bool:
        for a, o in zip(itertools.chain(*accesses(problem)), problem.operands):
            if a.kind in ("full", "column") and not a.strided:
                steps = [s * a.bytes for s, n in zip(o.strides[:-1], o.shape) if n > 1]
                if common_alignment(o.align, *steps) < min(16, pack * a.bytes):
                    return False
        return True

    return next(pack for pack in (16, 8, 4, 2, 1) if fits(pack))


@functools.lru_cache(maxsize=1024)
def shifted_pack(problem: Problem) -> int:
    """The most elements of a vector that starts where the first input's row is aligned; 1 where no such vector serves all."""
    along = [
        (a, o) for a, o in zip(itertools.chain(*accesses(problem)), problem.operands) if a.kind in ("full", "column")
    ]
    full = [(a, o) for a, o in along if a.kind == "full"]
    if any(a.strided for a, _ in along) or not any(o in problem.inputs for _, o in full):
        return 1

    def fits(pack: int) -> bool:
        steps = {tuple(s % pack for s, n in zip(o.strides[:-1], o.shape) if n > 1) for _, o in full}
        return len(steps) == 1 and all(o.align >= min(16, pack * a.bytes) for a, o in full)

    return next(pack for pack in (16, 8, 4, 2, 1) if fits(pack))


def sums_alone(problem: Problem) -> bool:
    """Whether one phase finds all that is asked for: nothing is made of the row once its sums are known."""
    return len(plan_of(problem.graph, True).phases) == 1 and not any(a.kind == "full" for a in accesses(problem)[1])

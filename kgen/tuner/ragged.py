"""Ragged variants: small problems just past the edges of a config's tiles, with the layouts and dtypes of the one tuned.

Where the tiles end is asked of the launch itself: a dimension is grown until the grid changes. So this holds for every
family, and a variant is no larger than it takes to have whole tiles, cut tiles and more than one block.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

from kgen.codegen.source import Source
from kgen.dsl.errors import ArgumentError, KgenError
from kgen.dsl.family import normalised
from kgen.dsl.ops import PRODUCTS, operands_as
from kgen.dsl.problem import NormalProblem, Operand, Problem, common_alignment
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import Dim, evaluate
from kgen.dsl.target import Target

#: Dimensions keep their remainder by this many elements, so that rows stay as aligned as they were.
_STEP = 16
_LONGEST = 1 << 18
_MOST_ELEMENTS = 1 << 20
_GROUPS = 7
#: Of a dimension whose elements share no block, such as attention's heads: more are more of the same.
_FEW = 3
#: Product of all sizes: what the emulator gets through in a second or two.
LARGEST_VOLUME = 1 << 28

Sizes = dict[str, int]


def symbols(config: Schedule, problem: NormalProblem, sm_count: int) -> dict[str, int]:
    """All symbols of a launch."""
    return {**config.symbols(problem), "SM_COUNT": sm_count}


def ragged(
    config: Schedule, problem: NormalProblem, target: Target, *, same_source: bool = False
) -> NormalProblem | None:
    """A variant of a (normalised) problem on which the config's tiles are cut; None where the config is valid on none.

    With `same_source` its kernel is, to the letter, that of the problem, so that the compiled one can be run on it. Rules may
    want the problem to fill the GPU: a config that a GPU of one multiprocessor would take on the variant is good enough.
    """
    source = config.source(problem)
    check = usable(config, problem, target, same_source)
    full = may_change(problem)
    beginning = next((s for s in _beginnings(full) if check(s)), None)
    if beginning is None:
        return None
    beginning = sizes = _with_few(config, source, problem, beginning, check)
    for name, n in full.items():
        grown = {**sizes, name: _past_the_tile(config, source, problem, sizes, name, n)}
        if _is_small(problem, grown) and check(grown):
            sizes = grown
    if check(sizes) is None:
        sizes = beginning
    for name, n in full.items():
        # An odd size where it can be, else one that no tile divides, as far off as the alignment of rows asks for.
        for cut in (1, -1, 2, 4, 8) if n > 2 * _STEP and sizes[name] % 2 == 0 else ():
            if (sizes[name] + cut) % _STEP and check({**sizes, name: sizes[name] + cut}):
                sizes[name] += cut
                break
    found = check(sizes)
    return found if found is not None and found.key != problem.key else None


def usable(
    config: Schedule, problem: NormalProblem, target: Target, same_source: bool
) -> Callable[[Sizes], NormalProblem | None]:
    """A function that gives the problem with other sizes, where the config is right for it, and None else."""
    digest = config.source(problem).digest
    alignment = [o.row_align for o in problem.operands]
    targets = (target, dataclasses.replace(target, sm_count=1))

    def check(sizes: Sizes) -> NormalProblem | None:
        try:
            found = resized(problem, sizes)
            # What only prunes the search of a large problem may go against it.
            if all(config.broken(found, t) for t in targets):
                return None
            if same_source and [o.row_align for o in found.operands] != alignment:
                return None  # before it is rendered: another alignment is another kernel
            return found if not same_source or config.source(found).digest == digest else None
        except KgenError:
            return None

    return check


def _beginnings(full: Sizes) -> Iterator[Sizes]:
    """Sizes to begin with, the smallest first: all small, then one dimension longer, then all."""
    if not all(full.values()):
        return
    small = {name: n if n <= 2 * _STEP else _STEP + n % _STEP for name, n in full.items()}
    yield small
    step = _STEP
    while step < 2 * max(full.values()):
        longer = {name: min(n, n % _STEP + step) for name, n in full.items() if n > small[name]}
        for sizes in (*({**small, name: size} for name, size in longer.items()), {**small, **longer}):
            if volume(sizes) <= LARGEST_VOLUME:
                yield sizes
        step *= 2


def _with_few(
    config: Schedule,
    source: Source,
    problem: NormalProblem,
    sizes: Sizes,
    check: Callable[[Sizes], NormalProblem | None],
) -> Sizes:
    """The sizes with few elements along the dimensions that share no block; still more than lie side by side."""
    full, count = may_change(problem), 1
    alike: Sizes = {}
    for name in [name for name, n in sizes.items() if _FEW < n == full[name]]:
        fewer = {**sizes, **alike, name: _FEW}
        if check(fewer):
            before, after = (_blocks(config, source, problem, s) for s in ({**sizes, **alike}, fewer))
            if after * sizes[name] == before * _FEW:
                alike[name] = _FEW
                count *= _FEW
    beside = max((int(config.values[name]) for name in config.side_by_side), default=0)
    return {**sizes, **alike} if count > beside else sizes


def volume(sizes: Sizes) -> int:
    return math.prod(sizes.values())


def _is_small(problem: NormalProblem, sizes: Sizes) -> bool:
    """Whether the emulator gets through a problem of these sizes: of products each counts, else the elements do."""
    if volume(sizes) <= LARGEST_VOLUME:
        return True
    multiplies = any(n.op in PRODUCTS for n in problem.graph.nodes)
    return not multiplies and max(o.elements for o in resized(problem, sizes).operands) <= _MOST_ELEMENTS


def _past_the_tile(config: Schedule, source: Source, problem: NormalProblem, sizes: Sizes, name: str, full: int) -> int:
    """The least size, by steps, at which one more block is launched; for a dimension that needs none, past the largest tile.

    One that goes with another size, as that of rope's frequencies with a head's, stays as it is.
    """
    small = sizes[name]
    if full <= 2 * _STEP or not _may_differ(problem, {**sizes, name: small + _STEP}):
        return small

    def more_blocks(by: int) -> bool:
        return _blocks(config, source, problem, {**sizes, name: small + by}) != before

    before = _blocks(config, source, problem, sizes)
    step, low = _STEP, 0
    while small + step <= min(full, _LONGEST) and not more_blocks(step):
        step, low = 2 * step, step
    if small + step > min(full, _LONGEST):
        widest = max((v for v in config.values.values() if isinstance(v, int)), default=0)
        return small + min(widest + _STEP, full - small) // _STEP * _STEP
    while step - low > _STEP:
        middle = (low + step) // 2 // _STEP * _STEP
        low, step = (low, middle) if more_blocks(middle) else (middle, step)
    variant = resized(problem, {**sizes, name: small + step})
    fits = max(o.elements for o in variant.operands) <= _MOST_ELEMENTS
    return small + step if fits else small


def _may_differ(problem: NormalProblem, sizes: Sizes) -> bool:
    try:
        resized(problem, sizes)
    except ArgumentError:
        return False
    return True


def _blocks(config: Schedule, source: Source, problem: NormalProblem, sizes: Sizes) -> int:
    """How many blocks the launch has with these sizes, on a GPU of so many multiprocessors that it matters not."""
    variant = resized(problem, sizes)
    x, y, z = source.bind(symbols(config, variant, 1 << 20)).grid
    return x * y * z


def may_change(problem: Problem) -> Sizes:
    """The sizes that may change: the named dimensions, and the leading ones as ...0, ...1. A few groups are as good as many."""
    whole = problem.origin or problem
    sizes = {**whole.sizes, **{f"...{i}": n for i, n in enumerate(whole.leading)}}
    counts = (x.shape.dims[0] for n in whole.graph.nodes for x in operands_as(n, "matrices"))
    return sizes | {d.name: min(sizes[d.name], _GROUPS) for d in counts if isinstance(d, Dim)}


def smaller(problem: Problem) -> Problem:
    """The problem with sizes that no tile divides, each of some 32 at most."""
    sizes = {name: n if n <= 2 * _STEP else _STEP + n % _STEP + 1 for name, n in may_change(problem).items()}
    return resized(problem, sizes)


def resized(problem: Problem, sizes: Mapping[str, int]) -> NormalProblem:
    """The problem with other sizes, normalised; strides keep their order and alignment."""
    whole = problem.origin or problem
    graph = whole.graph
    leading = [sizes[f"...{i}"] for i in range(len(whole.leading))]
    operands = []
    for spec, operand in zip((*graph.inputs, *graph.outputs), whole.operands):
        named = [evaluate(d, sizes) for d in spec.shape.dims]
        own = len(operand.shape) - len(named)
        head = [1 if n == 1 else m for n, m in zip(operand.shape[:own], leading[len(leading) - own :])]
        operands.append(_replaced(operand, (*head, *named)))
    return normalised(Problem.bind(graph, operands))


def _replaced(operand: Operand, shape: tuple[int, ...]) -> Operand:
    """The operand in another shape: dense axes stay dense, gaps stay gaps, and rows as aligned as they were."""
    order = sorted(range(len(shape)), key=lambda axis: (operand.strides[axis], -axis))
    strides = [0] * len(shape)
    reached, dense = 1, 1  # what lies below: in the new tensor, and in the old one
    for axis in order:
        old = operand.strides[axis]
        if old == 0:
            continue
        strides[axis] = reached
        if old != dense and operand.shape[axis] > 1:
            size = operand.dtype.bytes
            wanted = common_alignment(old * size)
            strides[axis] = next(s for s in range(reached + 1, reached + 64) if common_alignment(s * size) == wanted)
        reached = strides[axis] * shape[axis]
        dense = old * operand.shape[axis]
    return Operand(operand.name, operand.dtype, shape, tuple(strides), operand.align)

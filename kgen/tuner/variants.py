"""Variants: the small problems on which a config is verified, chosen so that all of its kernel runs.

"cut": past the edges of its tiles (`ragged`); "odd" where rows that are less aligned make another kernel. "deep":
each loop goes round more than twice: rings of stages, vectors in flight (`Schedule.loops`), and blocks that stay and
take one tile after another. "whole": tiles cut as before, but what the loops go over leaves the remainder by a turn
that it has in the problem, so that what is unchecked there is unchecked here, next to the ends; one block, or
cluster, takes all tiles where it stays, one after the other, whatever their lengths. "padded": the same kernel where
rows have gaps, of sizes that are one more than whole tiles, launched for so many multiprocessors that each tile is
shared by as many blocks as may be; of reductions and scans once more, with loops that go round as in "deep", of scans
of sizes that are one less. The others are launched as for a GPU of so few multiprocessors that blocks do stay, and share what
does not divide. "strided" and "expanded": operands of which no two axes can be taken for one: rows with gaps, batches
in another order; axes of size 1 and stride 0, addresses aligned to no more than an element. Other kernels are only
looked at where they cost little: on the emulator.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from kgen.codegen.source import SM_COUNT, Source
from kgen.dsl.errors import KgenError
from kgen.dsl.family import family_of, normalised
from kgen.dsl.ops import PRODUCTS, REDUCTIONS, SCANS
from kgen.dsl.problem import NormalProblem, Operand, Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import Binary, Size, evaluate, symbols_of
from kgen.dsl.target import Target
from kgen.tuner.ragged import LARGEST_VOLUME, Sizes, may_change, ragged, resized, symbols, usable, volume

_STEP = 16
_LONGEST = 1 << 20
_MOST_SM, _MOST_SHARING = 8, 256
#: More multiprocessors than most variants have tiles, so that as many blocks share one as its rows allow.
_MANY_SM = 16
_Layout = Literal["padded", "strided", "expanded"]


@dataclass(frozen=True)
class Variant:
    """A (normalised) problem, the config that is run on it, and the multiprocessors of the GPU that its launch is made for."""

    config: Schedule
    problem: NormalProblem
    sm_count: int

    @property
    def symbols(self) -> dict[str, int]:
        """All symbols of the launch."""
        return symbols(self.config, self.problem, self.sm_count)


def variants(
    config: Schedule, problem: NormalProblem, target: Target, *, same_source: bool = False
) -> tuple[Variant, ...]:
    """The variants of a (normalised) problem for a config, the smallest first; none where the config is valid on no other.

    With `same_source` those alone whose kernel is, to the letter, that of the problem: the compiled one can be run on them.
    """
    found = []
    cut = ragged(config, problem, target, same_source=True)
    if cut is not None:
        found.append(Variant(config, cut, few(config, cut)))
    deep = _deep(config, cut or problem, problem, target)
    if deep is not None:
        found.append(deep)
    whole = _whole(config, cut, problem, target) if cut is not None else None
    if whole is not None:
        found.append(whole)
    round_again = deep.problem if deep is not None and _reduces(problem) else None
    scans = any(n.op in SCANS for n in problem.graph.nodes)
    for near, beyond in ((cut, 1), (round_again, -1 if scans else 1)):
        padded = _padded(config, near, problem, target, beyond) if near is not None else None
        if padded is not None:
            found.append(padded)
    if not same_source:
        if not found and volume(may_change(problem)) <= LARGEST_VOLUME:  # no smaller one has this kernel
            found.append(Variant(config, problem, few(config, problem)))
        odd = ragged(config, problem, target)  # of less aligned rows, where that is another kernel
        if odd is not None and config.source(odd).digest != config.source(problem).digest:
            found.append(Variant(config, odd, few(config, odd)))
        layouts: tuple[_Layout, ...] = ("strided", "expanded")
        found += [v for layout in layouts if (v := _laid_out(config, problem, target, layout)) is not None]
    return tuple(found)


def few(config: Schedule, problem: NormalProblem) -> int:
    """So few multiprocessors that the blocks of a launch share its work unevenly, and yet lie along all axes of the grid.

    2 where they do not matter.
    """
    source = config.source(problem)
    most = _grid(config, source, problem, 1 << 20)
    for count in _counts(source):
        grid = _grid(config, source, problem, count)
        if 3 <= math.prod(grid) < math.prod(most) and math.prod(most) % math.prod(grid):
            break
    else:
        count = 2
    if most[1] * most[2] > 1:  # several blocks share each result
        while count < _MOST_SHARING and sum(n > 1 for n in _grid(config, source, problem, count)) < sum(
            n > 1 for n in most
        ):
            count *= 2
    return count


def _grid(config: Schedule, source: Source, problem: NormalProblem, sm_count: int) -> tuple[int, ...]:
    """The clusters along each axis of the launch on a GPU of so many multiprocessors."""
    bound = source.bind(symbols(config, problem, sm_count))
    return tuple(n // c for n, c in zip(bound.grid, source.launch.cluster))


def _deep(config: Schedule, cut: NormalProblem, problem: NormalProblem, target: Target) -> Variant | None:
    """The smallest problem of the same kernel, from `cut` on, whose loops go round more than twice; None where it is `cut`."""
    source = config.source(problem)
    stays = any(SM_COUNT.name in symbols_of(size) for size in source.launch.grid)
    count = _least_busy(config, source, problem) if stays else 2

    def stay(p: NormalProblem) -> bool:
        return math.prod(_grid(config, source, p, 1 << 20)) > 2 * math.prod(_grid(config, source, p, count))

    wanted = [_goes_round(config, k, count) for k in range(len(config.loops(problem)))] + [stay] * stays
    wanted += [_has_blocks(problem, size) for size in _numbers_of_blocks(problem)]
    sizes = may_change(cut)
    check = usable(config, problem, target, same_source=True)
    for reached in wanted:
        sizes = _grown(sizes, problem, reached, check) or sizes
    found = check(sizes)
    if found is None or found.key == cut.key or found.key == problem.key:
        return None
    return Variant(config, found, count)


def _whole(config: Schedule, cut: NormalProblem, problem: NormalProblem, target: Target) -> Variant | None:
    """`cut`, but what loops go over is a turn and the remainder by it that the problem has; None where that is `cut`."""
    known, full, sizes = symbols(config, problem, 2), may_change(problem), may_change(cut)
    check = usable(config, problem, target, same_source=True)
    for size, turn in config.loops(problem):
        if symbols_of(turn):  # of another length in a launch of another size
            continue
        length, step = evaluate(size, known), evaluate(turn, known)

        def goes_over(tried: Sizes, size: Size = size) -> int:
            return evaluate(size, symbols(config, resized(problem, tried), 2))

        wanted = min(length, length % step + step)
        for name, n in full.items():
            tried = {**sizes, name: wanted}
            if n == length and goes_over(sizes) != wanted == goes_over(tried):
                sizes = tried if volume(tried) <= LARGEST_VOLUME and check(tried) else sizes
                break
    found = check(sizes)
    if found is None or found.key in (cut.key, problem.key):
        return None
    source = config.source(found)
    one_cluster = next(n for n in itertools.count(1) if math.prod(_grid(config, source, found, n)) > 0)
    return Variant(config, found, one_cluster)


def _reduces(problem: NormalProblem) -> bool:
    """Whether each element is added up once, so that a problem whose loops go round is still a small one."""
    nodes = problem.graph.nodes
    return any(n.op in REDUCTIONS | SCANS for n in nodes) and not any(n.op in PRODUCTS for n in nodes)


def _goes_round(config: Schedule, k: int, sm_count: int) -> Callable[[NormalProblem], bool]:
    """Whether loop `k` of a config goes round more than twice."""

    def reached(problem: NormalProblem) -> bool:
        known = symbols(config, problem, sm_count)
        length, turn = (evaluate(size, known) for size in config.loops(problem)[k])
        return length > 2 * turn

    return reached


def _numbers_of_blocks(problem: NormalProblem) -> list[Size]:
    """The sizes of inputs that have an element for each block of others, such as scales: of several blocks."""
    sizes = dict.fromkeys(d for spec in problem.graph.inputs for d in spec.shape.dims)
    return [d for d in sizes if isinstance(d, Binary) and d.op == "ceil_div" and _count(problem, d) > 2]


def _count(problem: NormalProblem, size: Size) -> int:
    return evaluate(size, (problem.origin or problem).sizes)


def _has_blocks(problem: NormalProblem, size: Size) -> Callable[[NormalProblem], bool]:
    """Whether a number of blocks is more than two, and rows of such numbers as aligned as the problem's."""
    wanted = 3 + (_count(problem, size) - 3) % 4
    return lambda other: _count(other, size) >= wanted


def _least_busy(config: Schedule, source: Source, problem: NormalProblem) -> int:
    """The fewest multiprocessors on which several clusters stay, if there is work for more."""
    ample = {name: n << 10 for name, n in config.symbols(problem).items()}
    a, b, c = source.launch.cluster

    def clusters(count: int) -> int:
        x, y, z = source.bind({**ample, SM_COUNT.name: count}).grid
        return x * y * z // (a * b * c)

    return next((n for n in _counts(source) if clusters(n) >= 3), 2)


def _counts(source: Source) -> range:
    """Numbers of multiprocessors, up to one that has three of the launch's clusters."""
    return range(1, max(_MOST_SM, 4 * math.prod(source.launch.cluster)) + 1)


def _grown(
    sizes: Sizes,
    problem: NormalProblem,
    reached: Callable[[NormalProblem], bool],
    check: Callable[[Sizes], NormalProblem | None],
) -> Sizes | None:
    """The sizes with one of them grown, by steps that keep its remainder, until `reached`; the least work of such."""
    if reached(resized(problem, sizes)):
        return sizes
    options: list[Sizes] = []
    for name, n in sizes.items():

        def enough(by: int, name: str = name, n: int = n) -> bool:
            return reached(resized(problem, {**sizes, name: n + by}))

        step, low = _STEP, 0
        while step < _LONGEST and volume({**sizes, name: n + step}) <= LARGEST_VOLUME and not enough(step):
            step, low = 2 * step, step
        if not enough(step):
            continue
        while step - low > _STEP:
            middle = (low + step) // 2 // _STEP * _STEP
            low, step = (low, middle) if enough(middle) else (middle, step)
        options.append({**sizes, name: n + step})
    return next((o for o in sorted(options, key=volume) if volume(o) <= LARGEST_VOLUME and check(o)), None)


def _padded(
    config: Schedule, near: NormalProblem, problem: NormalProblem, target: Target, beyond: int
) -> Variant | None:
    """The same kernel on rows with gaps near a problem, as many sizes odd as may be; None where that is another kernel.

    Sizes are so many `beyond` whole tiles.
    """
    digest = config.source(problem).digest

    def padded(sizes: Sizes) -> NormalProblem | None:
        try:
            found = _strided(resized(problem, sizes), "padded")
            if config.applies(found) and not config.broken(found, target) and config.source(found).digest == digest:
                return found
        except KgenError:
            pass
        return None

    sizes = may_change(near)
    if padded(sizes) is None:
        return None
    for name, n in sizes.items():
        # One more or one less than whole tiles, which are mostly powers of two; or else an odd size.
        for odd in ((1 << (n - 1).bit_length() - 1) + beyond, n | 1) if n > _STEP else ():
            if padded({**sizes, name: odd}):
                sizes = {**sizes, name: odd}
                break
    found = padded(sizes)
    assert found is not None
    return Variant(config, found, _MANY_SM) if found.key != near.key else None


def _laid_out(config: Schedule, problem: NormalProblem, target: Target, layout: _Layout) -> Variant | None:
    """The problem, small, with operands that are not dense; by this config or else by the default of a schedule that can."""
    full = may_change(problem)
    for odd in (True, False):  # odd sizes, where they may be
        small = {name: n if n <= 2 * _STEP else _STEP + n % _STEP + (n % 2 != odd) for name, n in full.items()}
        try:
            bound = _strided(resized(problem, small), layout)
            choice = next(_servants(config, bound, target), None)
            if choice is not None:
                return Variant(choice, bound, few(choice, bound))
        except KgenError:
            continue
    return None


def _servants(config: Schedule, problem: NormalProblem, target: Target) -> Iterator[Schedule]:
    """The config where it is right for the problem, then the defaults that are, of its own schedule first."""
    if config.applies(problem) and not config.broken(problem, target):
        yield config
    for schedule in sorted(family_of(problem.graph).schedules, key=lambda s: s is not type(config)):
        if schedule.target.runs_on(target.arch) and schedule.applies(problem):
            try:
                yield schedule.default(problem, target)
            except KgenError:
                continue


def _strided(problem: Problem, layout: _Layout) -> NormalProblem:
    """The problem with operands that cannot be folded, and with leading sizes where its operator takes them."""
    whole = problem.origin or problem
    graph = whole.graph
    last = 2 if graph.dims else 67
    heads = {"padded": whole.leading, "strided": (3, last), "expanded": (last, 1, 3)}
    leading = heads[layout] if any(s.shape.leading for s in graph.inputs) else ()
    inputs = len(graph.inputs)
    operands = []
    for k, (spec, operand) in enumerate(zip((*graph.inputs, *graph.outputs), whole.operands)):
        own = operand.shape[len(operand.shape) - len(spec.shape.dims) :]
        head = leading if spec.shape.leading else ()
        shape = (*head, *own)
        order = sorted(range(len(own)), key=lambda a: -operand.strides[len(operand.shape) - len(own) + a])
        axes = [*range(len(head)), *(len(head) + a for a in order)]
        if layout != "expanded":
            if k % 2 and layout == "strided":  # batches the other way round
                axes[: len(head)] = axes[: len(head)][::-1]
            gap, align, still = 16 // operand.dtype.bytes, 16, -1
        else:
            gap, align = 1, operand.dtype.bytes
            movable = [a for a in range(len(shape) - 1) if shape[a] > 1]
            still = movable[k % len(movable)] if movable and k < inputs and k % 2 else -1
        strides, reached = [0] * len(shape), 1
        for place, axis in enumerate(reversed(axes)):
            if axis == still:
                continue
            strides[axis] = reached
            reached = reached * shape[axis]
            if place < len(axes) - 1:
                reached = -(-reached // gap) * gap + gap
        operands.append(Operand(operand.name, operand.dtype, shape, tuple(strides), min(align, operand.align)))
    return normalised(Problem.bind(graph, operands))

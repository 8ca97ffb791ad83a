"""Far problems: elements beyond 2^32 elements of memory that is there only where it is touched, for kernels on the emulator.

All are made from a small problem near by, whose inputs and expected results they share. One has rows so far apart that
offsets need more than 32 bits; one has so many rows that positions do, of which the launch's last blocks alone run; and one
as many as the limits of the source let it count in 32 bits.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kgen import emulator
from kgen.codegen.source import Source
from kgen.dsl.errors import KgenError
from kgen.dsl.family import normalised
from kgen.dsl.operator import Graph
from kgen.dsl.ops import OPS, PRODUCTS, REDUCTIONS, SCANS, operands_as
from kgen.dsl.problem import NormalProblem, Operand, Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import evaluate
from kgen.dsl.target import Target
from kgen.emulator import Options
from kgen.numerics.dtypes import torch_dtype
from kgen.numerics.operands import extent
from kgen.tuner.execute import Runner
from kgen.tuner.ragged import ragged, resized, symbols
from kgen.tuner.verify import Gate, Verdict

#: Elements from the first to the last one at least, so that 32 bits without a sign do not hold it either.
_REACH = 2**32 + 2**20
#: Strides stay multiples of so many elements, for rows to stay aligned.
_STEP = 256
#: More multiprocessors than there can be tiles: a launch that loops over its tiles has a block for each.
_MANY = 2**31
#: Along x, of a grid.
_MOST_BLOCKS = 2**31 - 1
_NARROW = 64
#: Elements of the near problem: with more it is made smaller, or left out.
_MOST_ELEMENTS, _MOST = 1 << 13, 1 << 20
#: Pages that a far operand may take, one for each element of its outermost axis.
_MOST_PAGES = 1 << 14
#: Bytes beside the operands, all of which are there.
_MOST_WORKSPACE = 1 << 28


@dataclass(frozen=True)
class Far:
    """`problem` with far elements, and `near`, that of the elements that count: all, or the last rows where there are `rows`
    before them, which the `blocks` of the launch compute. Both as the caller would put them."""

    problem: Problem
    near: Problem
    rows: int = 0
    blocks: range | None = None

    def __str__(self) -> str:
        return f"the last of {self.problem}" if self.rows else f"{self.near} as {self.problem.key}"


def far_problems(config: Schedule, problem: NormalProblem, target: Target) -> tuple[Far, ...]:
    """The far problems that a config is right for, made from a small problem on which it is: at most one of each kind."""
    near = _small(config, problem, target)
    if near is None:
        return ()
    apart = _far_apart(config, near, target)
    return (*([apart] if apart is not None else []), *_many_rows(config, near, target))


def check_far(config: Schedule, far: Far, options: Options | None = None, source: Source | None = None) -> Verdict:
    """Whether the config's kernel gives on the far problem what the gate expects of the near one. Runs on the emulator.

    `source` is that of the config for the far problem, where it has been made already.
    """
    problem = normalised(far.problem)
    source = source or config.source(problem)
    runner = Runner(
        emulator.compile(source), source, symbols(config, problem, _MANY if far.rows else 2), options, far.blocks
    )
    gate = Gate(far.near)
    # Where a kernel reads and writes is in question, not how it rounds: exact inputs do where there are any.
    gate.cases = [case for case in gate.cases if case.exact] or gate.cases
    return gate.check(_Between(runner, far))


class _Between(Runner):
    """Runs a kernel on far tensors that hold what the near ones do."""

    def __init__(self, runner: Runner, far: Far) -> None:
        self.__dict__.update(runner.__dict__)
        self._far = far
        self._tensors = {o.name: sparse(o) for o in far.problem.operands}
        #: The elements that count, in the near problem's shape.
        self._shown = dict(self._tensors)
        for operand in far.near.operands:
            tensor = self._tensors[operand.name]
            for axis, (n, all_rows) in enumerate(zip(operand.shape, tensor.shape)):
                tensor = tensor.narrow(axis, all_rows - n, n)
            self._shown[operand.name] = tensor

    def run(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, float], stream: int = 0) -> None:
        for name, tensor in self._shown.items():
            once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
            tensor[once].copy_(tensors[name][once])
        super().run(self._tensors, _moved(self._far, scalars), stream)
        for operand in self._far.near.outputs:
            tensors[operand.name].copy_(self._shown[operand.name])


def sparse(operand: Operand) -> Tensor:
    """A tensor of an operand's shape and strides, of zeros, in memory that is there only where it is touched."""
    size = operand.dtype.bytes
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    room = mmap.mmap(-1, max(extent(operand.shape, operand.strides), 1) * size, flags=flags)
    return torch.frombuffer(room, dtype=torch_dtype(operand.dtype)).as_strided(operand.shape, operand.strides)


def _serves(config: Schedule, problem: Problem, target: Target) -> bool:
    try:
        normal = normalised(problem)
        if not config.applies(normal):
            return False
        config.check(normal, target)
        config.source(normal)
    except KgenError:
        return False
    return True


def _small(config: Schedule, problem: NormalProblem, target: Target) -> Problem | None:
    """The problem, where it has few elements, or one of fewer that the config is right for."""
    near = problem.origin or problem
    if max(o.elements for o in near.operands) <= _MOST_ELEMENTS:
        return near
    smaller = resized(near, {name: n if n <= 8 else 8 + n % 8 for name, n in _sizes(near).items()})
    cut = smaller if _serves(config, smaller.origin or smaller, target) else ragged(config, problem, target)
    found = cut and (cut.origin or cut)
    return found if found and max(o.elements for o in found.operands) <= _MOST else None


def _sizes(problem: Problem) -> dict[str, int]:
    return {**problem.sizes, **{f"...{i}": n for i, n in enumerate(problem.leading)}}


def _far_apart(config: Schedule, near: Problem, target: Target) -> Far | None:
    """The near problem with the outermost axis of every operand that the config allows spread out."""
    found = near
    for index, operand in enumerate(near.operands):
        axes = [a for a, n in enumerate(operand.shape) if n > 1 and operand.strides[a] > 0]
        if not axes:
            continue
        axis = max(axes, key=lambda a: operand.strides[a])
        if operand.shape[axis] > _MOST_PAGES:
            continue
        step = -(-_REACH // ((operand.shape[axis] - 1) * _STEP)) * _STEP
        strides = (*operand.strides[:axis], step, *operand.strides[axis + 1 :])
        operands = list(found.operands)
        operands[index] = replace(operand, strides=strides)
        spread = Problem.bind(near.graph, operands)
        if _serves(config, spread, target):
            found = spread
    return Far(found, near) if found is not near else None


def _many_rows(config: Schedule, near: Problem, target: Target) -> Iterator[Far]:
    """The near problem with rows before its own; none where results depend on those, or blocks on one another."""
    graph = near.graph
    for node in graph.nodes:
        reduces = node.op in REDUCTIONS and node.attr != -1
        takes = any(table.shape.leading or not near.leading for table in operands_as(node, "table"))
        drawn = any(offset.op != "scalar" for offset in operands_as(node, "offset"))
        if OPS[node.op].positional or reduces or takes or drawn:
            return
    axis = _outermost(near)
    if axis is None:
        return
    sizes = _sizes(near)
    # One tile across, so that the last blocks have the last rows whatever the order of tiles; and short sums, where the config
    # takes them.
    for kept in ({axis}, {axis, *_summed(graph)}):
        narrow = resized(near, {name: n if name in kept or n <= _NARROW else 48 + n % 16 for name, n in sizes.items()})
        if _serves(config, narrow.origin or narrow, target):
            near = narrow.origin or narrow
            sizes = _sizes(near)
            break
    own = sizes[axis]
    try:
        doubled = resized(near, {**sizes, axis: 2 * own})
    except KgenError:
        return
    whole = doubled.origin or doubled
    a_row = max((b.elements - a.elements) // own for a, b in zip(near.operands, whole.operands))
    beyond = -(-_REACH // (a_row * _STEP)) * _STEP
    for rows in (beyond, _rows_within_limits(config, normalised(near), doubled, own)):
        far = _last_rows(config, near, axis, rows, target) if rows else None
        if far is not None:
            yield far


def _rows_within_limits(config: Schedule, near: NormalProblem, doubled: NormalProblem, own: int) -> int:
    """How many rows the limits of the near problem's source leave beside its own, which `doubled` has twice; 0 if all."""
    known, twice = config.symbols(near), config.symbols(doubled)
    limits = [(limit.value, limit.most) for limit in config.source(near).limits if limit.most is not None]
    grown = [(most, evaluate(value, known), evaluate(value, twice)) for value, most in limits]
    left = [(most - once) * own // (more - once) for most, once, more in grown if more > once]
    return min(left, default=0) // _STEP * _STEP


def _last_rows(config: Schedule, near: Problem, axis: str, rows: int, target: Target) -> Far | None:
    """The near problem with so many rows before its own, where the last blocks of its launch compute those alone."""
    sizes = _sizes(near)
    try:
        found, half = (resized(near, {**sizes, axis: n}) for n in (rows + sizes[axis], rows // 2))
    except KgenError:
        return None
    problem = found.origin or found
    if not _serves(config, problem, target):
        return None
    grids = []
    for one in (near, half.origin or half, problem):
        normal = normalised(one)
        source = config.source(normal)
        bound = source.bind(symbols(config, normal, _MANY))
        x, y, z = bound.grid
        grids.append(x * y * z)
    if source.launch.cooperative or sum(need.bytes for need in bound.workspaces) > _MOST_WORKSPACE:
        return None
    if x > _MOST_BLOCKS or abs(grids[2] - 2 * grids[1]) > 2 * grids[0]:  # else blocks take other rows too
        return None
    return Far(problem, near, rows, range(max(0, grids[2] - grids[0] - 1), grids[2]))


def _outermost(near: Problem) -> str | None:
    """The size of the outputs' first axis, where that is one of the problem's own, and no sum's."""
    if near.leading:
        return "...0" if near.leading[0] > 1 else None
    first = {str(spec.shape.dims[0]) if spec.shape.dims else "" for spec in near.graph.outputs}
    name = first.pop()
    return name if not first and near.sizes.get(name, 1) > 1 and name not in _summed(near.graph) else None


def _summed(graph: Graph) -> set[str]:
    """The dimensions that sums go over."""
    return {str(n.args[0].shape.dims[-1]) for n in graph.nodes if n.op in (*PRODUCTS, *REDUCTIONS, *SCANS)}


def _moved(far: Far, scalars: Mapping[str, float]) -> Mapping[str, float]:
    """The scalars for the far problem: random numbers begin so much earlier that its last rows get the near problem's."""
    moved = dict(scalars)
    for node in far.problem.graph.nodes if far.rows else ():
        for offset in operands_as(node, "offset"):
            before = far.problem.elements_of(node.shape) - far.near.elements_of(node.shape)
            moved[offset.attr] = int(scalars[offset.attr]) - before // 4
    return moved

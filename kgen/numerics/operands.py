"""Operands: the tensors a problem describes, down to strides and alignment, in storages that show a stray write.

Around each operand, and between its elements where it has gaps, memory holds a pattern that `guards_intact` looks for.
Outputs hold it too, so that an element nobody wrote shows: it is NaN for floats.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from kgen.dsl.expr import Expr, walk
from kgen.dsl.operator import Graph, ScalarSpec
from kgen.dsl.ops import OPS, PRODUCTS, SUMS, Role, accumulator, indexed, operands_as
from kgen.dsl.problem import Operand, Problem
from kgen.dsl.product import blocked
from kgen.dsl.ranges import begins, limits, never_negative
from kgen.dsl.size import evaluate as size_of
from kgen.dsl.types import DType, e4m3, e5m2, i32, i64
from kgen.numerics.dtypes import round_to, torch_dtype
from kgen.numerics.terms import added_exponents, exponentiated, longest, summed

Kind = Literal["normal", "integers", "special"]
End = Literal["", "low", "high"]

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

#: Bytes before and after an operand that must come back untouched.
GUARD_BYTES = 4096
#: Significant digits that the tensor cores keep of a sum of fp8 products.
FP8_SUM_DIGITS = 14
#: The largest scale, a power of two, of "integers".
_LARGEST_SCALE = 4
#: So few lines of what is reduced are special one at a time.
_FEW_LINES = 4
#: Ints that are no ids are multiples of it: no two of them are whole tiles apart.
_COUNTED = 24
#: Logarithms of a sum that are as large as any.
_STAYING = 8
#: Logarithms that are as negative, one after another.
_FALL = 12
#: NaN of a line that has several.
_NANS = 4
#: How far from 0 all values of some lines are, where exp is computed of what is reduced.
_ASIDE = 200.0


def sum_digits(node: Expr) -> int:
    """Binary digits of integers that a sum's accumulator holds exactly."""
    if node.dtype.kind == "int":
        return node.dtype.bits - 1
    if OPS[node.op].kind == "product" and node.args[0].dtype in (e4m3, e5m2):
        return FP8_SUM_DIGITS - 1
    return accumulator(node).digits


def extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last one that a strided tensor covers; 0 where it has none."""
    return sum((n - 1) * s for n, s in zip(shape, strides)) + 1 if all(shape) else 0


def scalar_values(graph: Graph, kind: Kind | None = None, end: End = "") -> dict[str, float]:
    """A value for every scalar of a graph: its default, or a fraction that is exact.

    With an `end` that of the scalars' ranges, where they have one; "low" that of one scalar (`low_end`). For inputs of
    a `kind`: numbers of a random stream whose upper 32 bits count, and change within a problem; with "integers"
    fractions, below 0 where they may be; with "normal" ints that fall, such as those of a window, which leave
    something out before it and behind it.
    """
    streams, ids, first = _leading(graph, ("seed", "offset")), _leading(graph, ("ids",)), low_end(graph)
    numbers = [s.name for s in graph.scalars if kind == "normal" and not s.dtype.is_float]
    counted = [name for name in numbers if name not in (*ids, *streams)]

    def value(i: int, spec: ScalarSpec) -> float:
        if kind and spec.name in streams and spec.dtype is i64:
            return (i + 2 << 32) - 3
        if end == "high" and math.isfinite(spec.high):
            return spec.high
        if end == "low" and spec.name == first:
            return spec.low
        if spec.default is not None and kind != "integers" and spec.name not in counted:
            return spec.default
        if spec.dtype.is_float:
            number = (i + 1) / 2
            return min(max(-number if kind == "integers" and spec.low < 0 else number, spec.low), spec.high)
        number = _COUNTED * (len(counted) + 2 - counted.index(spec.name)) if spec.name in counted else i + 2
        return min(max(number, spec.low), spec.high)

    return {spec.name: value(i, spec) for i, spec in enumerate(graph.scalars)}


def low_end(graph: Graph) -> str:
    """The scalar that has a "low" end: the first float that only begins somewhere; empty where there is none."""
    found = (s.name for s in graph.scalars if s.dtype.is_float and math.isfinite(s.low) and not math.isfinite(s.high))
    return next(found, "")


def _leading(graph: Graph, roles: tuple[Role, ...]) -> set[str]:
    """The scalars that operands in one of the roles are made of."""
    operands = tuple(x for n in graph.nodes for role in roles for x in operands_as(n, role))
    return {leaf.attr for leaf in walk(operands) if leaf.op == "scalar"}


def make_operands(
    problem: Problem, kind: Kind = "normal", seed: int = 0, device: str | torch.device = "cpu", guard: int = GUARD_BYTES
) -> dict[str, Tensor]:
    """Tensors for a problem's operands, by name: exactly its shapes, strides and alignment; outputs are poisoned.

    "normal": standard normal floats, integers over their range (at most +-100), random bools. "integers": whole numbers
    so small that sums are exact in the accumulator. Integers that are ids of an axis lie within it; "normal" ranges of an axis
    begin in its first half and end in its second, and ascend; of "normal" values that are added up before exp is taken most
    are near 0, so that the sum is not far from it but behind one stretch of large negative ones; scales of blocks lie between
    0.5 and 1.5, or are powers of two; what only roots and logarithms are taken of, such as a variance, is not negative but
    where "special"; offsets of groups ascend, some groups are empty, some have one row, and with "integers" there may be rows
    behind the last; an external computation's inputs are as its `sample`, and `special`, make them.
    "special": normal floats with NaN, infinities, zeros of both signs, denormals, and values far out among them, so
    few that sums without any are left; where something is reduced, also whole lines of one such value, and of one
    sign (where there is exp); ids at both ends of their axis and beyond. With `guard` bytes around each (and between
    its elements where it has gaps) a pattern that `guards_intact` looks for, and an address that is a multiple of
    `align` and of nothing more.
    """
    generator = torch.Generator(device=device)
    largest, density = _integer_range(problem)
    ids, scales, offsets = ids_of(problem), _scales(problem.graph), _offsets(problem)
    halves = _halves(problem)
    radicands, added = _radicands(problem.graph), added_exponents(problem)
    sampled = {a.attr for n in problem.graph.nodes if n.op == "external" for a in n.args if a.op == "input"}
    made = {}
    for index, operand in enumerate(problem.operands):
        flat, tensor = _allocate(operand, device, guard)
        if index < len(problem.inputs) and tensor.numel():
            generator.manual_seed(seed * 1009 + index)
            if kind == "special" and operand.dtype.is_float and operand.name not in (*scales, *sampled):
                _put(tensor, _special_values(problem, operand, seed, generator))
                made[operand.name] = tensor
                continue
            if operand.name in ids and kind == "special":
                values = _extreme_ids(ids[operand.name], flat.numel(), operand.dtype, generator)
            elif operand.name in halves and kind == "normal":
                values = _integers(*halves[operand.name], flat.numel(), operand.dtype, generator).sort().values
            elif operand.name in ids:
                values = _integers(0, ids[operand.name], flat.numel(), operand.dtype, generator)
            elif operand.name in offsets:
                values = _offset_values(offsets[operand.name], flat.numel(), kind, generator)
            elif operand.name in scales:
                values = _scale_values(operand, flat.numel(), kind, generator)
            else:
                values = _values(operand, flat.numel(), kind, largest, density, generator)
                values = values.abs() if operand.name in radicands else values
                if kind == "normal" and operand.name in added:
                    values = _few_of(values, added[operand.name], generator)
            if _is_dense(tensor):
                flat.copy_(values)
            else:
                covered = _covered(flat, tensor)
                flat.view(_bits(flat).dtype)[covered] = _bits(values)[covered]
        made[operand.name] = tensor
    for node in problem.graph.nodes if kind != "integers" else ():
        if node.op == "external" and node.attr.index == 0 and (node.attr.sample or node.attr.special):
            given = [made[a.attr] for a in node.args if a.op == "input"]
            # What is expanded has no elements of its own to change one by one.
            samples = [x if _distinct(x) else x.clone(memory_format=torch.contiguous_format) for x in given]
            for change in (node.attr.sample, node.attr.special if kind == "special" else None):
                if change:
                    change(*samples)
            for x, sample in zip(given, samples):
                if sample is not x:
                    first = tuple(slice(0, 1 if s == 0 else n) for n, s in zip(x.shape, x.stride()))
                    x[first] = sample[first]
    return made


def _distinct(tensor: Tensor) -> bool:
    return all(n == 1 or s != 0 for n, s in zip(tensor.shape, tensor.stride()))


def _values(
    operand: Operand, count: int, kind: Kind, largest: int, density: float, generator: torch.Generator
) -> Tensor:
    device, dtype = generator.device, operand.dtype
    if dtype.kind == "bool":
        return torch.randint(0, 2, (count,), generator=generator, device=device).bool()
    if kind != "integers" and dtype.is_float:
        wide = torch.float64 if dtype.bits == 64 else torch.float32
        return round_to(torch.randn(count, generator=generator, device=device, dtype=wide), dtype)
    limit = min(100, 2 ** (dtype.bits - 1) - 1)
    if kind == "integers":
        limit = min(largest, 2**dtype.digits if dtype.is_float else limit)
    values = _integers(-limit, limit + 1, count, i32, generator)
    if kind == "integers" and density < 1:
        values *= torch.rand(count, generator=generator, device=device) < density
    return round_to(values, dtype)


def _special_values(problem: Problem, operand: Operand, seed: int, generator: torch.Generator) -> Tensor:
    """Normal values with special ones among them, in the operand's shape: single ones, and whole lines of what is reduced.

    Where there are few lines, the seed says what is special: none or one value, or all.
    """
    device, shape = generator.device, operand.shape
    wide = torch.float64 if operand.dtype.bits == 64 else torch.float32
    limits = torch.finfo(torch_dtype(operand.dtype))
    denormal, least = limits.tiny * limits.eps, limits.tiny * (1 - limits.eps)
    terms, axes = longest(problem, operand)
    pair = exponentiated(problem.graph)
    most = limits.max
    if pair and any(n.attr == operand.name for n in walk(pair[1].args[1:]) if n.op == "input"):
        # Values are added up before they are divided by the sum of their weights, each of up to 1.
        most = min(most, torch.finfo(torch.float32).max / terms)
    far = [math.nan, math.inf, -math.inf, most, -most]
    near = [0.0, -0.0, denormal, -denormal, least, 12.0, -12.0, 100.0, -100.0, 2e4, -2e4]
    values = torch.randn(shape, generator=generator, device=device, dtype=wide)

    def drawn(count: tuple[int, ...], chance: float, among: list[float]) -> tuple[Tensor, Tensor]:
        which = torch.randint(0, len(among), count, generator=generator, device=device)
        hit = torch.rand(count, generator=generator, device=device) < chance
        return hit, torch.tensor(among, dtype=wide, device=device)[which]

    hit, chosen = drawn(shape, min(0.5, 1 / terms), near)
    values = torch.where(hit, chosen, values)
    lines = tuple(1 if axis in axes else n for axis, n in enumerate(shape))
    count, ordinary = math.prod(lines), values
    exponential = axes and any(node.op == "exp" for node in problem.graph.nodes)
    hit, chosen = drawn(shape, min(0.3, 0.5 / terms), far)
    values = torch.where(hit, chosen, values)
    if pair and any(n.attr == operand.name for n in walk(pair[0].args[:1]) if n.op == "input"):
        # Of some rows no exponential is near 1 before the largest is taken off.
        steep = torch.rand((*shape[:-1], 1), generator=generator, device=device) < 0.25
        values = torch.where(steep, values * 64, values)
    begins = math.prod(shape[:-2]) > 1 and any(node.op in PRODUCTS for node in problem.graph.nodes)
    if begins and bool(torch.rand((), generator=generator, device=device) < 0.5):
        # The last matrix of several begins with NaN: what is added first decides.
        place = torch.randint(0, shape[-1], (), generator=generator, device=device)
        values[(*[-1] * (len(shape) - 2), 0, int(place))] = math.nan
    if axes and count >= _FEW_LINES:
        kind = torch.randperm(count, generator=generator, device=device).reshape(lines) % 16
        alike = torch.tensor(far[1:], dtype=wide, device=device)[kind // 4]
        values = torch.where(kind % 4 == 0, alike, values)
        # Several NaN, of which the first one counts.
        values = torch.where(
            (kind == 2) & (torch.rand(shape, generator=generator, device=device) < _NANS / terms), math.nan, values
        )
        # Of one sign, finite, and so far from 0 that exp is 0 or infinite; variances would lose digits there.
        if exponential:
            values = torch.where(kind % 4 == 1, ordinary + torch.where(kind == 5, _ASIDE, -_ASIDE), values)
    elif exponential and seed == 4:
        values = ordinary - _ASIDE
    elif axes and seed % 2:
        values = torch.full_like(values, far[1:][seed // 2 % 4])
    elif axes:
        places = torch.randint(0, values.numel(), (_NANS,), generator=generator, device=device)
        values.view(-1)[places] = far[seed // 2 % 5]
    # A NaN may have either sign; those of an operand have the same.
    negative = bool(torch.rand((), generator=generator, device=device) < 0.5)
    return torch.where(values.isnan(), -values.abs(), values) if negative else values


def special_seeds(problem: Problem) -> int:
    """With how many seeds "special" operands show all values where only few results can have one."""
    return 1 if max(o.elements for o in problem.outputs) >= _FEW_LINES else 2 * _FEW_LINES


def _extreme_ids(size: int, count: int, dtype: DType, generator: torch.Generator) -> Tensor:
    """Ids at both ends of an axis, within it, and beyond it; the first of them is the axis' last, the last its first."""
    limits = torch.iinfo(torch_dtype(dtype))
    among = [0, size - 1, size // 2, size, -1, size + 1, -size, limits.max, limits.min]
    known = torch.tensor([min(max(i, limits.min), limits.max) for i in among], device=generator.device)
    which = torch.randint(0, len(among), (count,), generator=generator, device=generator.device)
    within = _integers(0, size, count, dtype, generator)
    ids = torch.where(
        torch.rand(count, generator=generator, device=generator.device) < 0.5, within, known[which].to(within.dtype)
    )
    ids[0], ids[-1] = min(max(size - 1, 0), limits.max), 0
    return ids


def _put(tensor: Tensor, values: Tensor) -> None:
    """Writes values, rounded, to a tensor whose axes of stride 0 have one place."""
    start = tuple(slice(0, 1 if s == 0 else n) for n, s in zip(tensor.shape, tensor.stride()))
    tensor[start].copy_(values[start].to(tensor.dtype))


def _scale_values(operand: Operand, count: int, kind: Kind, generator: torch.Generator) -> Tensor:
    if kind != "integers":
        values = torch.rand(count, generator=generator, device=generator.device) + 0.5
    else:
        values = torch.exp2(_integers(0, _LARGEST_SCALE.bit_length(), count, i32, generator).float())
    return round_to(values, operand.dtype)


def _offset_values(rows: int, count: int, kind: Kind, generator: torch.Generator) -> Tensor:
    """Where the groups of so many rows begin, and where the last one ends; every fourth is empty, every fourth has one row."""
    values = _integers(0, rows + 1, count, i32, generator).sort().values
    if kind != "integers":
        values[-1] = rows
    values[0] = 0
    for extra, first in enumerate((2, 4)):
        ends, begins = values[first:-1:4], values[first - 1 : -2 : 4]
        ends.copy_(torch.minimum(ends, begins + extra))
    return values


def _offsets(problem: Problem) -> dict[str, int]:
    """The inputs that say where groups begin, with the number of all groups' rows."""
    sizes = {**problem.sizes, **(problem.origin or problem).sizes}
    found = ((n, offsets) for n in problem.graph.nodes for offsets in operands_as(n, "offsets"))
    return {offsets.attr: size_of(n.shape.dims[0], sizes) for n, offsets in found if offsets.op == "input"}


def _scales(graph: Graph) -> set[str]:
    """The inputs that are repeated to scale blocks of others."""
    return {n.args[0].attr for n in graph.nodes if n.op == "repeat" and n.args[0].op == "input" and n.dtype.is_float}


def _radicands(graph: Graph) -> set[str]:
    """The float inputs of which nothing is read but roots and logarithms, maybe with something added that is not negative."""
    inner: set[int] = set()  # nodes whose values go into a root, and the inputs in them
    for node in graph.nodes:
        value = node.args[0] if node.op in ("sqrt", "rsqrt", "log") else None
        while value is not None:
            inner.add(id(value))
            sides = value.args if value.op == "add" else ()
            others = [a for a, b in zip(sides, sides[::-1]) if b.op == "scalar" or never_negative(b)]
            value = value.args[0] if value.op == "cast" else others[0] if others else None
    roots = {n.attr: n for n in graph.nodes if n.op == "input" and n.dtype.is_float and id(n) in inner}
    read = [(a.attr, n) for n in graph.nodes for a in n.args if a.op == "input" and a.attr in roots]
    outer = {name for name, n in read if id(n) not in inner and n.op not in ("sqrt", "rsqrt", "log")}
    return roots.keys() - outer - {r.attr for r in graph.results if r.op == "input"}


def _few_of(values: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """The values, of which a few of each `count` stay as they are and the others are so small that their sum is no larger.

    But for one stretch, of which a sum falls so far that nothing is left of its exp, nor a number of the reciprocal.
    """
    stays = torch.rand(values.shape, generator=generator, device=generator.device) * count < _STAYING
    place = torch.arange(values.numel(), device=values.device) % count
    falls = (place >= _FALL) & (place < 2 * _FALL)
    return torch.where(falls, -_FALL + values, torch.where(stays, values, values / count))


def _integers(low: int, high: int, count: int, dtype: DType, generator: torch.Generator) -> Tensor:
    """Integers from `low` to below `high`."""
    own = torch_dtype(dtype)
    return torch.randint(low, max(high, low + 1), (count,), generator=generator, device=generator.device, dtype=own)


def ids_of(problem: Problem) -> dict[str, int]:
    """The integer inputs that lead to ids (of take, scatter_add, or compared with arange), with the size of their axis.

    Of those that say how many elements of an axis there are, or where they begin, one more: all may be there, or none.
    """
    sizes, nodes = {**problem.sizes, **(problem.origin or problem).sizes}, problem.graph.nodes
    found = {name: size_of(dim, sizes) + 1 for name, dim in (*limits(nodes).items(), *begins(nodes).items())}
    for node in problem.graph.nodes:
        ids: Expr
        if "ids" in OPS[node.op].roles:
            (ids,), dim = operands_as(node, "ids"), indexed(node)
        elif node.op == "eq" and node.args[0].op == "arange":  # such as a class among its scores
            ids, dim = node.args[1], node.args[0].shape.dims[0]
        else:
            continue
        for leaf in walk((ids,)):
            if leaf.op == "input" and leaf.dtype.kind == "int":
                found[leaf.attr] = min(size_of(dim, sizes), 2 ** (leaf.dtype.bits - 1))
    return found


def _halves(problem: Problem) -> dict[str, tuple[int, int]]:
    """The inputs that say where ranges of an axis begin and end, with from where to before where in it that is."""
    ids, first = ids_of(problem), begins(problem.graph.nodes)
    axes = set(first.values())
    last = [name for name, dim in limits(problem.graph.nodes).items() if dim in axes]
    return {n: (0, ids[n] // 2 + 1) for n in first} | {n: (ids[n] // 2, ids[n]) for n in last}


def _integer_range(problem: Problem) -> tuple[int, float]:
    """The largest integer, and the share of non-zero ones, with which the longest sum stays exact."""
    sums = [n for n in problem.graph.nodes if n.op in SUMS]
    if not sums:
        return 16, 1.0
    whole = problem.origin or problem
    sizes = {**problem.sizes, **whole.sizes}
    room, factors = [], []
    for node in sums:
        length = summed(node, whole, sizes)
        room.append(2.0 ** min(sum_digits(node), 24) / max(length, 1))
        depth = blocked(node)
        if depth:
            room[-1] = min(room[-1], 2.0 ** (FP8_SUM_DIGITS - 1) / min(max(length, 1), depth)) / _LARGEST_SCALE**2
        factors.append(2 if node.op in PRODUCTS else 1)
    ratio = min(r ** (1 / f) for r, f in zip(room, factors))
    return (min(16, int(ratio)), 1.0) if ratio >= 1 else (1, 0.7 * ratio)


def _allocate(operand: Operand, device: str | torch.device, guard: int) -> tuple[Tensor, Tensor]:
    """The flat stretch from an operand's first to its last element, and the operand; all bytes hold the pattern."""
    size, dtype = operand.dtype.bytes, torch_dtype(operand.dtype)
    length = extent(operand.shape, operand.strides)
    storage = torch.full(
        (length * size + 2 * guard + 64,), pattern(operand.dtype), dtype=torch.uint8, device=torch.device(device)
    )
    start = guard
    if guard or operand.align < 16:
        start += (operand.align - (storage.data_ptr() + guard)) % (2 * operand.align)
    flat = storage[start : start + length * size].view(dtype)
    if not length:
        return flat, torch.empty_strided(operand.shape, operand.strides, dtype=dtype, device=flat.device)
    return flat, flat.as_strided(operand.shape, operand.strides)


def pattern(dtype: DType) -> int:
    """The byte that unwritten memory of a dtype is filled with: NaN for floats."""
    return 0xFF if dtype.is_float else 0xA5


def poison(tensor: Tensor) -> None:
    """Fills a tensor with NaN, or for integers and bools with a pattern, so that what is not written shows."""
    byte = 0xFF if tensor.is_floating_point() else 0xA5
    word = int.from_bytes(bytes([byte]) * tensor.element_size(), "little", signed=tensor.element_size() > 1)
    _bits(tensor).fill_(word)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(_BITS[tensor.element_size()])


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one dtype and shape hold the same bits, NaN included."""
    return torch.equal(_bits(a), _bits(b))


def _is_dense(tensor: Tensor) -> bool:
    return tensor.numel() == extent(tuple(tensor.shape), tensor.stride())


def _covered(flat: Tensor, tensor: Tensor) -> Tensor:
    """Which elements of the flat stretch belong to the tensor."""
    mask = torch.zeros(flat.numel(), dtype=torch.bool, device=flat.device)
    unique = [1 if s == 0 else n for n, s in zip(tensor.shape, tensor.stride())]
    mask.as_strided(unique, tensor.stride()).fill_(True)
    return mask


def guards_intact(tensor: Tensor) -> bool:
    """Whether every byte of the storage of a tensor from `make_operands` that is not the tensor's still has its pattern."""
    if not tensor.numel():
        return True
    byte = 0xFF if tensor.is_floating_point() else 0xA5
    storage = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    size = tensor.element_size()
    start = tensor.storage_offset() * size
    length = extent(tuple(tensor.shape), tensor.stride())
    outside = bool((storage[:start] == byte).all()) and bool((storage[start + length * size :] == byte).all())
    if not outside or _is_dense(tensor):
        return outside
    flat = tensor.as_strided((length,), (1,), tensor.storage_offset())
    gaps = flat.view(torch.uint8).view(length, size)[~_covered(flat, tensor)]
    return bool((gaps == byte).all())


def workspace(device: torch.device, size: int, zeroed: bool) -> Tensor:
    """`size` bytes that a kernel needs beside its operands."""
    make = torch.zeros if zeroed else torch.empty
    return make(max(size, 1), dtype=torch.uint8, device=device)

"""Reference: what an operator must compute, by torch: exactly (float64, int64), and as torch's own kernels would.

`evaluate` is the meaning of a graph: floats in float64, integers in int64, rounded only where the graph casts. `native` takes
the same steps in the operator's own dtypes, which says how large an error is to be expected. `make_operands` allocates what a
problem describes, down to strides and alignment, inside larger storages whose other bytes are a pattern (`guards_intact`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from kgen.dsl.errors import ArgumentError
from kgen.dsl.expr import REDUCTIONS, Expr
from kgen.dsl.operator import Graph, ScalarSpec
from kgen.dsl.problem import Operand, Problem
from kgen.dsl.size import evaluate as size_of
from kgen.dsl.types import DTYPES, DType, compute_dtype, e4m3, e5m2, f16, tf32

Kind = Literal["normal", "integers"]

_TORCH = {
    "f64": torch.float64,
    "f32": torch.float32,
    "tf32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "i8": torch.int8,
    "bool": torch.bool,
}
_UNSIGNED_VIEW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

#: Bytes before and after an operand that must come back untouched.
GUARD_BYTES = 4096
#: Significant digits that the tensor cores keep of a sum of fp8 products.
FP8_SUM_DIGITS = 14


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch dtype with the same values in memory; tf32 is float32 there."""
    return _TORCH[dtype.name]


def from_torch(dtype: torch.dtype) -> DType:
    """The dtype of tensors with this torch dtype; float32 is f32. Raises ArgumentError for one kgen does not have."""
    for name, known in _TORCH.items():
        if known is dtype:
            return DTYPES[name]
    raise ArgumentError(f"tensors of {dtype} are not supported; expected one of {', '.join(map(str, _TORCH.values()))}")


def round_to(x: Tensor, dtype: DType) -> Tensor:
    """`x` in `dtype`: floats to nearest even, fp8 saturating, floats to integers towards zero and saturating."""
    target = torch_dtype(dtype)
    if dtype.kind == "bool":
        return x != 0
    if dtype.kind == "int" and x.is_floating_point():
        limits = torch.iinfo(target)
        # The largest float64 below 2^63 stands for it: 2^63 itself does not fit.
        high = float(limits.max) if limits.bits < 64 else 2.0**63 - 1024
        return x.to(torch.float64).nan_to_num(0.0).trunc().clamp(float(limits.min), high).to(target)
    if dtype in (e4m3, e5m2) and x.dtype is not target:
        limit = torch.finfo(target).max
        return x.to(torch.float64).clamp(-limit, limit).to(target)
    return x.to(target)


# Evaluation.

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    name: getattr(torch, name)
    for name in "neg abs exp exp2 expm1 log log2 log1p sqrt rsqrt tanh erf sigmoid sin cos floor ceil round reciprocal".split()
}
_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    name: getattr(torch, name) for name in ("add", "sub", "mul", "div", "pow", "maximum", "minimum")
}
_COMPARE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    name: getattr(torch, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")
}
_LOGICAL = {"and": torch.logical_and, "or": torch.logical_or}
#: Operations whose result is exact wherever it is representable.
_EXACT_OPS = frozenset(
    {"input", "scalar", "const", "add", "sub", "mul", "neg", "abs", "maximum", "minimum", "where", "cast", "transpose"}
    | {"matmul", "sum", "amax", "amin", "floor", "ceil", "round", *_COMPARE, *_LOGICAL, "not"}
)


class _Arithmetic:
    """The exact arithmetic: every float in float64, every integer in int64."""

    def held(self, dtype: DType) -> torch.dtype:
        """What a value of `dtype` is kept in."""
        return {"float": torch.float64, "int": torch.int64, "bool": torch.bool}[dtype.kind]

    def load(self, x: Tensor, dtype: DType) -> Tensor:
        return x.to(self.held(dtype))

    def cast(self, x: Tensor, dtype: DType) -> Tensor:
        return round_to(x, dtype).to(self.held(dtype))

    def matmul(self, node: Expr, a: Tensor, b: Tensor) -> Tensor:
        return _integer_matmul(a, b) if node.dtype.kind == "int" else torch.matmul(a, b)

    def done(self, node: Expr, value: Tensor, args: list[Tensor]) -> None:
        """Called with every value as it is computed."""


class _Proof(_Arithmetic):
    """The exact arithmetic that also watches whether a kernel's arithmetic has to come to the same values."""

    def __init__(self) -> None:
        self.holds = True

    def done(self, node: Expr, value: Tensor, args: list[Tensor]) -> None:
        if not self.holds:
            return
        if node.op not in _EXACT_OPS:
            self.holds = False
        elif node.op in ("matmul", "sum"):
            self.holds = _largest_sum(node, args) <= 2.0 ** _sum_digits(node)
        elif node.dtype.is_float and node.op not in ("input", "transpose"):
            held = round_to(value, compute_dtype(node.dtype) if node.op != "cast" else node.dtype)
            self.holds = bool((held.to(torch.float64) == value).all())


class _Native(_Arithmetic):
    """The operator's own dtypes, by torch's kernels. `wide`: results are kept in more bits than the matrices have."""

    def __init__(self, graph: Graph) -> None:
        self.result_bits = max(spec.dtype.bits for spec in graph.outputs)

    def held(self, dtype: DType) -> torch.dtype:
        return torch_dtype(dtype)

    def load(self, x: Tensor, dtype: DType) -> Tensor:
        return x.to(torch_dtype(dtype))

    def matmul(self, node: Expr, a: Tensor, b: Tensor) -> Tensor:
        source, total = node.args[0].dtype, node.attr
        if node.dtype.kind == "int":
            return _integer_matmul(a, b).to(torch_dtype(node.dtype))
        if source in (e4m3, e5m2):
            return _stepwise_matmul(a, b, 32, lambda x: _truncate(x, FP8_SUM_DIGITS))
        if total is f16:
            return _stepwise_matmul(a, b, 16, lambda x: x.half().float())
        if source is tf32:
            with _cuda_matmul(tf32=True):
                return torch.matmul(_round_digits(a, tf32.digits), _round_digits(b, tf32.digits))
        with _cuda_matmul(tf32=False):
            if source.bits < 32 <= self.result_bits:
                return _widened_matmul(a, b)
            return torch.matmul(a, b).to(torch_dtype(node.dtype))


def _run(graph: Graph, tensors: Mapping[str, Tensor], scalars: Mapping[str, float], how: _Arithmetic) -> list[Tensor]:
    """The results of a graph by the given arithmetic; each value is dropped after its last use."""
    nodes = graph.nodes
    device = next(iter(tensors.values())).device
    last = {id(arg): i for i, node in enumerate(nodes) for arg in node.args}
    last.update({id(result): len(nodes) for result in graph.results})
    values: dict[int, Tensor] = {}
    scalar_types = {spec.name: spec.dtype for spec in graph.scalars}
    for i, node in enumerate(nodes):
        args = [values[id(arg)] for arg in node.args]
        if node.op == "input":
            value = how.load(tensors[node.attr], node.dtype)
        elif node.op == "scalar":
            given = torch.tensor(scalars[node.attr], dtype=torch_dtype(scalar_types[node.attr]), device=device)
            value = given.to(how.held(compute_dtype(node.dtype)))
        elif node.op == "const":
            value = torch.tensor(node.attr, dtype=how.held(node.dtype), device=device)
        else:
            value = _apply(node, args, how)
        how.done(node, value, args)
        values[id(node)] = value
        for arg in node.args:
            if last[id(arg)] == i:
                values.pop(id(arg), None)
    return [_fitted(graph, k, values[id(result)], tensors) for k, result in enumerate(graph.results)]


def _apply(node: Expr, args: list[Tensor], how: _Arithmetic) -> Tensor:
    op = node.op
    if op == "transpose":
        return args[0].mT
    if op == "cast":
        return how.cast(args[0], node.dtype)
    if op == "matmul":
        return how.matmul(node, args[0], args[1])
    if op in _LOGICAL:
        return _LOGICAL[op](args[0], args[1])
    if op == "not":
        return torch.logical_not(args[0])
    if op in _COMPARE:
        common = torch.promote_types(*(how.held(compute_dtype(a.dtype)) for a in node.args))
        return _COMPARE[op](args[0].to(common), args[1].to(common))
    held = how.held(compute_dtype(node.dtype))
    if op == "where":
        return torch.where(args[0], args[1].to(held), args[2].to(held))
    args = [a.to(held) for a in args]
    if op in REDUCTIONS:
        return _reduce(op, args[0], node.attr)
    return _UNARY[op](args[0]) if op in _UNARY else _BINARY[op](args[0], args[1])


def _reduce(op: str, x: Tensor, axis: int | None) -> Tensor:
    function: Any = getattr(torch, op)
    if axis is None:
        return function(x.reshape(-1), dim=0)  # type: ignore[no-any-return]
    return function(x, dim=axis, keepdim=True)  # type: ignore[no-any-return]


def _fitted(graph: Graph, index: int, value: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    """A result in the shape its output is declared with: a reduced last axis dropped, broadcast ones spread."""
    spec, node = graph.outputs[index], graph.results[index]
    if len(node.shape.dims) == len(spec.shape.dims) + 1:
        value = value.squeeze(-1)
    return value.expand(tensors[spec.name].shape) if spec.name in tensors else value


def evaluate(graph: Graph, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]) -> tuple[Tensor, ...]:
    """The graph's results in float64 or int64 (bool stays), on the tensors' device, not rounded to the outputs' dtypes.

    `tensors` are the inputs by name; outputs may be among them and then give the shape to broadcast to.
    """
    return tuple(_run(graph, tensors, scalars, _Arithmetic()))


def evaluate_exactly(
    graph: Graph, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]
) -> tuple[Tensor, ...] | None:
    """As `evaluate`, where these very values leave no rounding to any order of the operator's own arithmetic; else None.

    Then every right kernel gives the same bits: each step's result is representable, each sum is small enough that all its
    partial sums are exact in the accumulator.
    """
    proof = _Proof()
    results = _run(graph, tensors, scalars, proof)
    return tuple(results) if proof.holds else None


def native(graph: Graph, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]) -> tuple[Tensor, ...]:
    """The graph op by op by torch in its own dtypes, rounded to the outputs' dtypes: the error that is to be expected.

    Matrix products are torch.matmul in the storage dtype (f32 results of narrower matrices keep f32). Accumulation in f16,
    and the fp8 tensor cores' shortened sums, which torch does not offer everywhere, are followed step by step.
    """
    results = _run(graph, tensors, scalars, _Native(graph))
    return tuple(round_to(value, spec.dtype) for value, spec in zip(results, graph.outputs))


# Matrix products.


def _integer_matmul(a: Tensor, b: Tensor) -> Tensor:
    """The exact product of integer matrices as int64: by float64 while that is exact, else on the CPU."""
    a, b = a.to(torch.int64), b.to(torch.int64)
    if not a.numel() or not b.numel():
        return torch.matmul(a.double(), b.double()).to(torch.int64)
    if a.shape[-1] * int(a.abs().max()) * int(b.abs().max()) < 2**53:
        return torch.matmul(a.double(), b.double()).to(torch.int64)
    return torch.matmul(a.cpu(), b.cpu()).to(a.device)


def _stepwise_matmul(a: Tensor, b: Tensor, step: int, rounded: Callable[[Tensor], Tensor]) -> Tensor:
    """a @ b in f32 with the sum rounded after every `step` of K, as an instruction of that depth does."""
    a, b = a.float(), b.float()
    with _cuda_matmul(tf32=False):
        total = torch.matmul(a[..., :0], b[..., :0, :])
        for k in range(0, a.shape[-1], step):
            total = rounded(total + torch.matmul(a[..., k : k + step], b[..., k : k + step, :]))
    return total


def _widened_matmul(a: Tensor, b: Tensor) -> Tensor:
    """The product of narrow matrices kept in f32: by tensor cores where torch offers that, else from f32 copies."""
    if a.is_cuda and a.dim() == b.dim() == 2:
        try:
            return torch.mm(a, b, out_dtype=torch.float32)
        except (TypeError, RuntimeError):
            pass  # this torch, or this GPU, has no such kernel
    return torch.matmul(a.float(), b.float())


def _round_digits(x: Tensor, digits: int) -> Tensor:
    """Float32 values rounded to nearest, ties away from zero, to `digits` significant binary digits."""
    cut = 24 - digits
    bits = x.float().contiguous().view(torch.int32)
    return torch.where(x.isfinite(), ((bits + (1 << (cut - 1))) >> cut << cut).view(torch.float32), x.float())


def _truncate(x: Tensor, digits: int) -> Tensor:
    cut = 24 - digits
    return (x.contiguous().view(torch.int32) >> cut << cut).view(torch.float32)


class _cuda_matmul:
    """Sets how torch multiplies matrices on a GPU, and puts the setting back."""

    def __init__(self, tf32: bool) -> None:
        self.tf32 = tf32

    def __enter__(self) -> None:
        matmul = torch.backends.cuda.matmul
        self.before = (matmul.allow_tf32, matmul.allow_fp16_reduced_precision_reduction)
        matmul.allow_tf32, matmul.allow_fp16_reduced_precision_reduction = self.tf32, False

    def __exit__(self, *exception: object) -> None:
        matmul = torch.backends.cuda.matmul
        matmul.allow_tf32, matmul.allow_fp16_reduced_precision_reduction = self.before


def _sum_digits(node: Expr) -> int:
    """Binary digits of integers that a sum's accumulator holds exactly."""
    if node.dtype.kind == "int":
        return node.dtype.bits - 1
    if node.op == "matmul":
        return FP8_SUM_DIGITS - 1 if node.args[0].dtype in (e4m3, e5m2) else int(node.attr.digits)
    return compute_dtype(node.dtype).digits


def _largest_sum(node: Expr, args: list[Tensor]) -> float:
    """A bound on every partial sum of a contraction of integers; infinity where the values are not integers."""
    if any(a.numel() == 0 for a in args):
        return 0.0
    values = [a.double() for a in args]
    if not all(bool((v == v.round()).all()) for v in values):
        return math.inf
    if node.op == "sum":
        return float(_reduce("sum", values[0].abs(), node.attr).max())
    a, b = (v.abs() for v in values)
    quick = float(a.max()) * float(b.max()) * a.shape[-1]
    return quick if quick <= 2.0 ** _sum_digits(node) else float(torch.matmul(a, b).max())


# Operands.


def extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last one that a strided tensor covers; 0 where it has none."""
    return sum((n - 1) * s for n, s in zip(shape, strides)) + 1 if all(shape) else 0


def scalar_values(graph: Graph, kind: Kind = "normal") -> dict[str, float]:
    """A value for every scalar of a graph: its default, or a fraction that is exact; for "integers" always the latter."""

    def value(i: int, spec: ScalarSpec) -> float:
        if spec.default is not None and kind == "normal":
            return spec.default
        return (i + 1) / 2 if spec.dtype.is_float else i + 2

    return {spec.name: value(i, spec) for i, spec in enumerate(graph.scalars)}


def make_operands(
    problem: Problem, kind: Kind = "normal", seed: int = 0, device: str | torch.device = "cpu", guard: int = GUARD_BYTES
) -> dict[str, Tensor]:
    """Tensors for a problem's operands, by name: exactly its shapes, strides and alignment; outputs are poisoned.

    "normal": standard normal floats, integers over their range (at most +-100), random bools. "integers": whole numbers so
    small that sums are exact in the accumulator. With `guard` bytes around each (and between its elements where it has
    gaps) a pattern that `guards_intact` looks for, and an address that is a multiple of `align` and of nothing more.
    """
    generator = torch.Generator(device=device)
    largest, density = _integer_range(problem)
    made = {}
    for index, operand in enumerate(problem.operands):
        flat, tensor = _allocate(operand, device, guard)
        if index < len(problem.inputs) and tensor.numel():
            generator.manual_seed(seed * 1009 + index)
            values = _values(operand, flat.numel(), kind, largest, density, generator)
            if _is_dense(tensor):
                flat.copy_(values)
            else:
                covered = _covered(flat, tensor)
                flat.view(_bits(flat).dtype)[covered] = _bits(values)[covered]
        made[operand.name] = tensor
    return made


def _values(
    operand: Operand, count: int, kind: Kind, largest: int, density: float, generator: torch.Generator
) -> Tensor:
    device, dtype = generator.device, operand.dtype
    if dtype.kind == "bool":
        return torch.randint(0, 2, (count,), generator=generator, device=device).bool()
    if kind == "normal" and dtype.is_float:
        wide = torch.float64 if dtype.bits == 64 else torch.float32
        return round_to(torch.randn(count, generator=generator, device=device, dtype=wide), dtype)
    limit = min(100, 2 ** (dtype.bits - 1) - 1)
    if kind == "integers":
        limit = min(largest, 2**dtype.digits if dtype.is_float else limit)
    values = torch.randint(-limit, limit + 1, (count,), generator=generator, device=device, dtype=torch.int32)
    if kind == "integers" and density < 1:
        values *= torch.rand(count, generator=generator, device=device) < density
    return round_to(values, dtype)


def _integer_range(problem: Problem) -> tuple[int, float]:
    """The largest integer, and the share of non-zero ones, with which the longest sum stays exact."""
    sums = [n for n in problem.graph.nodes if n.op in ("matmul", "sum", "mean")]
    if not sums:
        return 16, 1.0
    whole = problem.origin or problem
    sizes = {**problem.sizes, **whole.sizes}
    room, factors = [], []
    for node in sums:
        last = node.args[0].shape.dims[-1:]
        length = size_of(last[0], sizes) if last and node.attr is not None else max(o.elements for o in whole.inputs)
        room.append(2.0 ** min(_sum_digits(node), 24) / max(length, 1))
        factors.append(2 if node.op == "matmul" else 1)
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
    return tensor.view(_UNSIGNED_VIEW[tensor.element_size()])


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

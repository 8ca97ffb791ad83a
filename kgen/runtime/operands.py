"""What an operator was called with: its tensors and numbers, checked, as a Problem. Errors name operand, got and expected."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kgen.dsl.errors import ArgumentError
from kgen.dsl.operator import Graph, Operator, ScalarSpec, TensorSpec, of_graph
from kgen.dsl.problem import Operand, Problem, common_alignment, dense_strides
from kgen.dsl.size import Dim, Size, evaluate, symbols_of
from kgen.dsl.types import DType
from kgen.numerics.dtypes import torch_dtype
from kgen.runtime.overlap import overlap, overlaps_itself

_DEVICES = ("cuda", "cpu")
#: The only classes whose memory is what their shape and strides say.
_CLASSES = (torch.Tensor, torch.nn.Parameter)


def problem_of(definition: Operator, inputs: Sequence[Any], outputs: Sequence[Any]) -> Problem:
    """The problem of calling the operator on these tensors. Without `outputs` they are dense ones, yet to be allocated."""
    names = [*definition.tensors, *(spec.name for spec in definition.graphs[0].outputs)]
    if len(outputs) not in (0, len(definition.outputs)):
        raise ArgumentError(f"{definition.name} has {len(definition.outputs)} outputs; out holds {len(outputs)}")
    for name, x in zip(names, (*inputs, *outputs)):
        check_tensor(f"{definition.name}: {name}", x)
    device = inputs[0].device
    for name, x in zip(names, (*inputs, *outputs)):
        if x.device != device:
            raise ArgumentError(
                f"{definition.name}: {name} is on {x.device}, {names[0]} on {device}; expected all on one device"
            )
    graph = graph_of(definition, inputs, outputs)
    operands = [_operand(spec, x) for spec, x in zip(graph.inputs, inputs)]
    bound = Problem.bind(graph, operands)  # of the inputs alone: this gives the outputs' sizes
    given = [_operand(spec, x) for spec, x in zip(graph.outputs, outputs)]
    expected = [_dense(bound, spec, given) for spec in graph.outputs]
    for want, got in zip(expected, given):
        if got.shape != want.shape:
            raise ArgumentError(f"{graph.name}: {got.name} has shape {list(got.shape)}; expected {list(want.shape)}")
        if overlaps_itself(got.shape, got.strides):
            raise ArgumentError(
                f"{graph.name}: elements of {got.name} share memory (strides {list(got.strides)} for shape "
                f"{list(got.shape)}); expected a tensor of distinct elements, such as {got.name}.contiguous()"
            )
    if _told_by_inputs(graph):
        return bound.with_outputs(given or expected)
    return Problem.bind(graph, [*operands, *given])


def check_tensor(what: str, x: Any) -> None:
    """Raises ArgumentError where `x` is not a tensor whose memory is what its shape, strides and dtype say."""
    if not isinstance(x, torch.Tensor):
        raise ArgumentError(f"{what} is a {type(x).__name__}; expected a torch tensor or an array")
    if type(x) not in _CLASSES:
        raise ArgumentError(f"{what} is a {type(x).__name__}; expected a plain torch.Tensor or Parameter")
    if x.is_quantized:
        raise ArgumentError(f"{what} is quantised ({x.dtype}); expected a plain tensor: use dequantize()")
    if x.layout is not torch.strided or x.is_nested:
        kind = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
        raise ArgumentError(f"{what} is a {kind} tensor; expected a dense, strided one")
    if x.device.type not in _DEVICES:
        raise ArgumentError(f"{what} is on the device {x.device}; expected {' or '.join(_DEVICES)}")
    if x.is_neg() or x.is_conj():
        raise ArgumentError(
            f"{what} is a lazily negated view; expected plain values: use resolve_neg() or resolve_conj()"
        )
    try:
        address = x.data_ptr()
    except RuntimeError as error:
        raise ArgumentError(f"{what} has no memory of its own (inside vmap or functionalisation?): {error}") from error
    if x.numel() and address % x.element_size():
        raise ArgumentError(
            f"{what} starts at an address that is no multiple of its element's {x.element_size()} bytes; use clone()"
        )


def graph_of(definition: Operator, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Graph:
    """The graph for these tensors' dtypes; a signature's tf32 is float32 here. The first that fits."""
    for graph in definition.graphs:
        specs = (*graph.inputs, *graph.outputs)
        if all(torch_dtype(spec.dtype) is x.dtype for spec, x in zip(specs, (*inputs, *outputs))):
            return graph

    def told(specs: Sequence[TensorSpec], dtypes: Sequence[torch.dtype]) -> str:
        return ", ".join(f"{spec.name} {str(t).removeprefix('torch.')}" for spec, t in zip(specs, dtypes))

    first = definition.graphs[0]
    got = told((*first.inputs, *first.outputs), [x.dtype for x in (*inputs, *outputs)])
    choices = []
    for graph in definition.graphs:
        specs = (*graph.inputs, *graph.outputs)[: len(inputs) + len(outputs)]
        choices.append(told(specs, [torch_dtype(spec.dtype) for spec in specs]))
    raise ArgumentError(f"{definition.name} got dtypes {got}; expected {'; or '.join(dict.fromkeys(choices))}")


def is_short(spec: TensorSpec, x: torch.Tensor) -> bool:
    """Whether a tensor leaves out the last axis of its operand, which is declared as 1: `x: Tensor[f16, K, 1]` of shape [K]."""
    dims = spec.shape.dims
    return x.dim() == len(dims) - 1 and dims[-1] == 1


def _operand(spec: TensorSpec, x: torch.Tensor) -> Operand:
    x = x.unsqueeze(-1) if is_short(spec, x) else x
    return _operand_of(spec.name, spec.dtype, tuple(x.shape), x.stride(), common_alignment(x.data_ptr()))


@functools.lru_cache(maxsize=256)  # of a layer's weight it is the same in every call, with what was found of it
def _operand_of(name: str, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], align: int) -> Operand:
    # Axes of size 1 may have any stride in torch, and so may those of a tensor without elements: they mean nothing, so they must
    # not make two problems of one. What nothing was expanded from has no address to read.
    free = 0 in shape
    told = tuple(d if free or n == 1 else s for n, s, d in zip(shape, strides, dense_strides(shape)))
    return Operand(name, dtype, shape, told, align)


@functools.lru_cache(maxsize=256)
def _symbols_of(sizes: tuple[Size, ...]) -> frozenset[str]:
    return frozenset().union(*map(symbols_of, sizes))


@of_graph
def _told_by_inputs(graph: Graph) -> bool:
    """Whether the shapes of the outputs follow from those of the inputs."""
    inputs = {d for spec in graph.inputs for d in spec.shape.dims if isinstance(d, Dim)}
    return all(_symbols_of(spec.shape.dims) <= {d.name for d in inputs} for spec in graph.outputs)


def _dense(bound: Problem, spec: TensorSpec, given: Sequence[Operand]) -> Operand:
    """An output as it will be allocated. A size that no input tells is that of the first output given that has it."""
    sizes = dict(bound.sizes)
    for known, operand in zip(bound.graph.outputs, given):
        for d, n in zip(reversed(known.shape.dims), reversed(operand.shape)):
            if isinstance(d, Dim):
                sizes.setdefault(d.name, n)
    unknown = _symbols_of(spec.shape.dims) - sizes.keys()
    if unknown:
        told = ", ".join(sorted(unknown))
        raise ArgumentError(f"{bound.graph.name}: no input tells {told} of {spec}; give it by out=")
    named = tuple(evaluate(d, sizes) for d in spec.shape.dims)
    shape = (*bound.leading, *named) if spec.shape.leading else named
    return Operand(spec.name, spec.dtype, shape, dense_strides(shape))


def scalar_values(graph: Graph, given: Mapping[str, Any]) -> tuple[float, ...]:
    """A value for each number of an operator's graph, in its order."""
    known = [spec.name for spec in graph.scalars]
    for name in given:
        if name not in known:
            told = f"takes no number {name!r}; it has {', '.join(known) or 'none'}"
            if name in [spec.name for spec in graph.inputs]:
                told = f"got {name} twice, by position and by name"
            raise ArgumentError(f"{graph.name} {told}")
    return tuple(_scalar(graph.name, spec, given) for spec in graph.scalars)


def _scalar(name: str, spec: ScalarSpec, given: Mapping[str, Any]) -> float:
    value = given.get(spec.name, spec.default)
    if value is None:
        kind = "a float" if spec.dtype.is_float else "an int"
        raise ArgumentError(f"{name} needs {spec.name}, {kind}; give it by name")
    try:
        return spec.value(value)
    except ArgumentError as error:
        raise ArgumentError(f"{name}: {error}") from None


def check_shared_memory(problem: Problem, addresses: Sequence[int], in_place: frozenset[str]) -> None:
    """Raises ArgumentError where an output shares memory with another operand in a way that would change the result.

    An input among `in_place` is read at the index that is written, so it may be the output itself: same elements, same order.
    """
    count = len(problem.inputs)
    for i, (y, at) in enumerate(zip(problem.outputs, addresses[count:]), count):
        for x, start in zip(problem.operands[:i], addresses):
            same = start == at and (x.shape, x.strides, x.dtype.bits) == (y.shape, y.strides, y.dtype.bits)
            if same and x.name in in_place:
                continue
            if overlap(start, x.shape, x.strides, x.dtype.bytes, at, y.shape, y.strides, y.dtype.bytes):
                raise ArgumentError(
                    f"{problem.graph.name}: {y.name} shares memory with {x.name}; expected memory of its own"
                    + (f", or exactly the tensor {x.name}" if x.name in in_place else "")
                )

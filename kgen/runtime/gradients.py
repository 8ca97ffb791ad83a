"""The gradients of a call, from those of its results: the tensors that a backward graph takes, and what comes back from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kgen.dsl.gradient import Backward, Source, backward
from kgen.dsl.operator import Graph, TensorSpec
from kgen.dsl.size import Dim, evaluate
from kgen.numerics.dtypes import torch_dtype

#: What computes a graph's results: of the graph, its inputs in order, and the sizes of the dimensions that these do not tell.
Run = Callable[[Graph, Sequence[Tensor], dict[str, int]], Sequence[Tensor]]


def gradients(
    graph: Graph,
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Tensor | None],
    given: Sequence[Tensor | None],
    wanted: Sequence[bool],
    run: Run,
    shapes: Sequence[Sequence[int]],
    result_shapes: Sequence[Sequence[int]],
) -> list[Tensor | None]:
    """The gradients of the wanted inputs, in their shapes and dtypes, None of the others.

    `outputs` are the graph's results, and `given` their gradients, or None for zeros. What `needed` does not name of inputs and
    outputs may be None; `shapes` and `result_shapes` are those of all. Sizes may be symbols of torch.
    """
    there = tuple(k for k, g in enumerate(given) if g is not None)
    places = tuple(i for i, want in enumerate(wanted) if want and graph.inputs[i].dtype.is_float)
    found: list[Tensor | None] = [None] * len(shapes)
    if not there or not places:
        return found
    made = backward(graph, there, places)
    call = _Call(graph, inputs, outputs, made, shapes, result_shapes)
    results: Sequence[Tensor] = ()
    if made.graph is not None:
        tensors = [call.taken(source, spec, given) for source, spec in zip(made.sources, made.graph.inputs)]
        results = run(made.graph, tensors, call.untold(made.graph))
    for i, gradient in zip(places, made.gradients):
        if gradient is None:
            like: Any = given[there[0]]
            found[i] = like.new_zeros(shapes[i], dtype=torch_dtype(graph.inputs[i].dtype))
        elif isinstance(gradient, Source):
            value: Any = given[gradient.index]
            found[i] = call.as_input(
                i, call.seen(value, graph.outputs[gradient.index], _shape_of(graph, gradient.index)), False
            )
        else:
            found[i] = call.as_input(i, results[gradient], True)
    return found


def _shape_of(graph: Graph, index: int) -> TensorSpec:
    """An output with the axes of size 1 that its value has."""
    spec, node = graph.outputs[index], graph.results[index]
    return TensorSpec(spec.name, spec.dtype, node.shape if len(node.shape.dims) > len(spec.shape.dims) else spec.shape)


def _is_short(spec: TensorSpec, rank: int) -> bool:
    """As `is_short` of a tensor of that rank."""
    return rank == len(spec.shape.dims) - 1 and spec.shape.dims[-1] == 1


def _there(x: Tensor | None) -> Tensor:
    assert x is not None, "a gradient takes what `needed` names"
    return x


class _Call:
    """The sizes of one call."""

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        made: Backward,
        shapes: Sequence[Sequence[int]],
        result_shapes: Sequence[Sequence[int]],
    ) -> None:
        self.graph, self.inputs, self.outputs, self.made = graph, inputs, outputs, made
        self.shapes = shapes
        self.sizes: dict[str, int] = {}
        heads = []
        self.short = any(_is_short(spec, len(shape)) for spec, shape in zip(graph.inputs, shapes))
        for spec, shape in zip((*graph.inputs, *graph.outputs), (*shapes, *result_shapes)):
            whole = (*shape, 1) if self.short and _is_short(spec, len(shape)) else tuple(shape)
            own = len(whole) - len(spec.shape.dims)
            for d, n in zip(spec.shape.dims, whole[own:]):
                if isinstance(d, Dim):
                    self.sizes.setdefault(d.name, n)
            heads += [whole[:own]] if spec.shape.leading else []
        alike = heads[1:] == heads[:-1]  # torch's function takes longer than all else here
        self.lead = tuple(heads[0] if alike else torch.broadcast_shapes(*heads)) if heads else ()

    def seen(self, x: Tensor, own: TensorSpec, spec: TensorSpec) -> Tensor:
        """A tensor of the spec `own` with the axes of size 1 that another one of it has."""
        if self.short and _is_short(own, x.dim()):
            x = x.unsqueeze(-1)
        if own.shape.dims == spec.shape.dims:
            return x
        named = [evaluate(d, self.sizes) for d in spec.shape.dims]
        return x.reshape([*x.shape[: x.dim() - len(own.shape.dims)], *named])

    def taken(self, source: Source, spec: TensorSpec, given: Sequence[Tensor | None]) -> Tensor:
        """The tensor that the backward graph takes as an input."""
        graph, k = self.graph, source.index
        if source.kind == "input":
            own = graph.inputs[k]
            x = self.seen(_there(self.inputs[k]), own, own)
        else:
            own = _shape_of(graph, k)
            x = self.seen(_there(self.outputs[k] if source.kind == "output" else given[k]), graph.outputs[k], own)
        if not own.shape.leading or self.made.lead == "kept":
            return x
        named = x.shape[x.dim() - len(own.shape.dims) :]
        x = x.expand(*self.lead, *named)
        count = math.prod(self.lead)
        if self.made.lead == "folded":
            return x.reshape(count * named[0], *named[1:])
        return x.reshape(count, *named)

    def untold(self, graph: Graph) -> dict[str, int]:
        """The sizes of a backward graph's dimensions that none of its inputs tells."""
        told = {d.name for spec in graph.inputs for d in spec.shape.dims if isinstance(d, Dim)}
        dims = [name for name in graph.dims if name not in told]
        return {name: self.sizes[name] if name in self.sizes else math.prod(self.lead) for name in dims}

    def as_input(self, place: int, value: Tensor, made: bool) -> Tensor:
        """A gradient as the input's: with its axes, each of its own size, and in its dtype. `made`: by the backward graph."""
        shape, spec = tuple(self.shapes[place]), self.graph.inputs[place]
        named = [evaluate(d, self.sizes) for d in spec.shape.dims]
        whole = [*self.lead, *named] if spec.shape.leading else named
        if spec.shape.leading and made and self.made.lead != "kept" and value.dim():
            rest = value.shape[1:]
            if value.shape[0] == 1:
                value = value.reshape(rest)
            elif self.made.lead == "folded":
                value = value.reshape(*self.lead, named[0], *rest)
            else:
                value = value.reshape(*self.lead, *rest)
        if value.dim() > len(whole):  # axes of size 1 that the input has not
            value = value.reshape(whole)
        value = value.to(torch_dtype(spec.dtype))
        if tuple(value.shape) != tuple(whole):
            value = value.expand(whole)
        if tuple(value.shape) == shape:
            return value
        if self.short and _is_short(spec, len(shape)):
            return value.sum_to_size(*shape, 1).reshape(shape)
        return value.sum_to_size(shape)

"""The gradients of a call, from those of its results: the tensors that a backward graph takes, and what comes back from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kgen.dsl.gradient import Backward, Source, backward
from kgen.dsl.operator import Graph, TensorSpec
from kgen.dsl.size import Dim, evaluate
from kgen.numerics.dtypes import torch_dtype

#: What is done to a tensor, one after the other: functions of it and one more argument.
Moves = tuple[tuple[Callable[[Tensor, Any], Tensor], Any], ...]


@dataclass(frozen=True)
class Way:
    """How the gradients of calls of one kind are made, for given gradients of their results: what calls have in common.

    `taken`: for each input of the backward graph its place among the values that there are, and what is done to it. `sizes`: of
    the graph's dimensions that its inputs do not tell. `made`: for each input of the call its gradient, None where there is none.
    """

    graph: Graph | None
    taken: tuple[tuple[int, Moves], ...]
    sizes: Mapping[str, int]
    made: tuple[Made | None, ...]

    def inputs(self, values: Sequence[Any]) -> tuple[Tensor, ...]:
        """What the backward graph takes, of a call's values."""
        return tuple([_moved(values[place], moves) if moves else values[place] for place, moves in self.taken])

    def gradients(self, values: Sequence[Any], results: Sequence[Tensor]) -> list[Tensor | None]:
        """The gradients of a call's inputs, of its values and the backward graph's results."""
        return [None if made is None else made.of(values, results) for made in self.made]

    def told(self, calls: Any, names: Sequence[str]) -> tuple[Any, ...] | None:
        """The same for the extension: `calls` of the backward graph, the tensors that these take, the names of their numbers, and
        the gradients, as places with the shapes that they take one after the other.

        None where the graph's inputs do not tell all sizes, a gradient is none of its results, or more is done than to reshape.
        """
        moves = [moves for _, moves in self.taken] + [made.moves for made in self.made if made is not None]
        if self.sizes or any(made is not None and made.is_value for made in self.made):
            return None
        if any(move is not Tensor.reshape for one in moves for move, _ in one):
            return None
        taken = tuple((place, _shapes(moves)) for place, moves in self.taken)
        shown = tuple(None if made is None else (made.place, _shapes(made.moves)) for made in self.made)
        return calls, taken, tuple(names), shown


@dataclass(frozen=True)
class Made:
    """The gradient of an input: one of the results or, where `is_value`, of the values; moved to the input's shape and dtype."""

    place: int
    is_value: bool
    moves: Moves

    def of(self, values: Sequence[Tensor], results: Sequence[Tensor]) -> Tensor:
        """The gradient."""
        found = values[self.place] if self.is_value else results[self.place]
        return _moved(found, self.moves) if self.moves else found


def _shapes(moves: Moves) -> tuple[tuple[int, ...], ...]:
    return tuple(shape for _, shape in moves)


def _moved(x: Tensor, moves: Moves) -> Tensor:
    for move, given in moves:
        x = move(x, given)
    return x


def way_of(
    graph: Graph,
    values: Sequence[Source],
    there: tuple[int, ...],
    wanted: tuple[int, ...],
    shapes: Sequence[Sequence[int]],
    result_shapes: Sequence[Sequence[int]],
) -> Way:
    """The way to the gradients of the inputs `wanted` from those of the outputs `there`, in the inputs' shapes and dtypes.

    `values`: what there is of a call. `shapes` and `result_shapes` are those of all inputs and results. Sizes may be symbols of
    torch.
    """
    found: list[Made | None] = [None] * len(shapes)
    if not there or not wanted:
        return Way(None, (), {}, tuple(found))
    backwards = backward(graph, there, wanted)
    call = _Call(graph, backwards, shapes, result_shapes)
    for i, gradient in zip(wanted, backwards.gradients):
        place, is_value = values.index(Source("gradient", there[0])), True
        if gradient is None:
            moves: Moves = ((_zeros, (shapes[i], torch_dtype(graph.inputs[i].dtype))),)
        elif isinstance(gradient, Source):
            k, place = gradient.index, values.index(gradient)
            own = _Value(tuple(result_shapes[k]), torch_dtype(graph.outputs[k].dtype))
            moves = call.as_input(i, call.seen(own, graph.outputs[k], _shape_of(graph, k)), False).moves
        else:
            assert backwards.graph is not None
            spec, place, is_value = backwards.graph.outputs[gradient], gradient, False
            moves = call.as_input(i, call.result(spec), True).moves
        found[i] = Made(place, is_value, moves)
    if backwards.graph is None:
        return Way(None, (), {}, tuple(found))
    taken = tuple((values.index(source), x.moves) for source, x in zip(backwards.sources, call.taken))
    return Way(backwards.graph, taken, call.untold, tuple(found))


def _zeros(like: Tensor, given: tuple[Sequence[int], torch.dtype]) -> Tensor:
    return like.new_zeros(given[0], dtype=given[1])


def _shape_of(graph: Graph, index: int) -> TensorSpec:
    """An output with the axes of size 1 that its value has."""
    spec, node = graph.outputs[index], graph.results[index]
    return TensorSpec(spec.name, spec.dtype, node.shape if len(node.shape.dims) > len(spec.shape.dims) else spec.shape)


def _is_short(spec: TensorSpec, rank: int) -> bool:
    """As `is_short` of a tensor of that rank."""
    return rank == len(spec.shape.dims) - 1 and spec.shape.dims[-1] == 1


@dataclass(frozen=True)
class _Value:
    """A tensor of calls to come: its shape and dtype, and what was done to it. What changes nothing is left out."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    moves: Moves = ()

    def by(self, move: Callable[..., Tensor], shape: Sequence[int]) -> _Value:
        """Its `reshape`, `expand` or `sum_to_size` to a shape."""
        same = len(shape) == len(self.shape) and all(
            type(n) is type(m) is int and n == m for n, m in zip(shape, self.shape)
        )
        return self if same else _Value(tuple(shape), self.dtype, (*self.moves, (move, tuple(shape))))

    def to(self, dtype: torch.dtype) -> _Value:
        """Cast."""
        return self if dtype is self.dtype else _Value(self.shape, dtype, (*self.moves, (Tensor.to, dtype)))


class _Call:
    """The sizes of one call."""

    def __init__(
        self,
        graph: Graph,
        made: Backward,
        shapes: Sequence[Sequence[int]],
        result_shapes: Sequence[Sequence[int]],
    ) -> None:
        self.graph, self.made = graph, made
        self.shapes, self.result_shapes = shapes, result_shapes
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
        self.taken = [self._taken(source) for source in made.sources]
        #: The sizes of the backward graph's dimensions; and of those that none of its inputs tells.
        self._known: dict[str, int] = {}
        self.untold: dict[str, int] = {}
        if made.graph is not None:
            for spec, x in zip(made.graph.inputs, self.taken):
                for d, n in zip(reversed(spec.shape.dims), reversed(x.shape)):
                    if isinstance(d, Dim):
                        self._known.setdefault(d.name, n)
            for name in (name for name in made.graph.dims if name not in self._known):
                self.untold[name] = self.sizes[name] if name in self.sizes else math.prod(self.lead)

    def seen(self, x: _Value, own: TensorSpec, spec: TensorSpec) -> _Value:
        """A tensor of the spec `own` with the axes of size 1 that another one of it has."""
        if self.short and _is_short(own, len(x.shape)):
            x = x.by(Tensor.reshape, (*x.shape, 1))
        if own.shape.dims == spec.shape.dims:
            return x
        named = [evaluate(d, self.sizes) for d in spec.shape.dims]
        return x.by(Tensor.reshape, [*x.shape[: len(x.shape) - len(own.shape.dims)], *named])

    def _taken(self, source: Source) -> _Value:
        """What the backward graph takes as an input."""
        graph, k = self.graph, source.index
        if source.kind == "input":
            spec = own = graph.inputs[k]
        else:
            spec, own = graph.outputs[k], _shape_of(graph, k)
        shape = (self.shapes if source.kind == "input" else self.result_shapes)[k]
        x = self.seen(_Value(tuple(shape), torch_dtype(spec.dtype)), spec, own)
        if not own.shape.leading or self.made.lead == "kept":
            return x
        named = x.shape[len(x.shape) - len(own.shape.dims) :]
        x = x.by(Tensor.expand, (*self.lead, *named))
        count = math.prod(self.lead)
        if self.made.lead == "folded":
            return x.by(Tensor.reshape, (count * named[0], *named[1:]))
        return x.by(Tensor.reshape, (count, *named))

    def result(self, spec: TensorSpec) -> _Value:
        """A result of the backward graph."""
        named = [evaluate(d, {**self._known, **self.untold}) for d in spec.shape.dims]
        return _Value((*(self.lead if spec.shape.leading else ()), *named), torch_dtype(spec.dtype))

    def as_input(self, place: int, value: _Value, made: bool) -> _Value:
        """A gradient as the input's: with its axes, each of its own size, and in its dtype. `made`: by the backward graph."""
        shape, spec = tuple(self.shapes[place]), self.graph.inputs[place]
        named = [evaluate(d, self.sizes) for d in spec.shape.dims]
        whole = (*self.lead, *named) if spec.shape.leading else tuple(named)
        if spec.shape.leading and made and self.made.lead != "kept" and value.shape:
            rest = value.shape[1:]
            if value.shape[0] == 1:
                value = value.by(Tensor.reshape, rest)
            elif self.made.lead == "folded":
                value = value.by(Tensor.reshape, (*self.lead, named[0], *rest))
            else:
                value = value.by(Tensor.reshape, (*self.lead, *rest))
        if len(value.shape) > len(whole):  # axes of size 1 that the input has not
            value = value.by(Tensor.reshape, value.shape[len(value.shape) - len(whole) :])
        value = value.to(torch_dtype(spec.dtype))
        if value.shape != whole:
            value = value.by(Tensor.expand, whole)
        if value.shape == shape:
            return value
        if self.short and _is_short(spec, len(shape)):
            return value.by(Tensor.sum_to_size, (*shape, 1)).by(Tensor.reshape, shape)
        return value.by(Tensor.sum_to_size, shape)

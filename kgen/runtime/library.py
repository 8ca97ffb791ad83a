"""Operators as custom operators of torch, for whatever traces calls or dispatches on tensors: nobody has to register anything.

Code that torch.compile or torch.export trace, tensors without memory (fake, meta) and dispatch modes (make_fx, checkpointing that
selects) see `torch.ops.kgen.NAME_DIGEST`: an operator of torch with its shapes, its gradient and its rule for vmap, made when the
first of them asks. It takes an operator's tensors, then its numbers, then the sizes that no input tells; it writes nothing, so
that `out=` is a copy that a compiler leaves out where it can. Its name says what it computes: two of one name are one.

A call through torch's dispatcher costs more host time than the operator's own, so an ordinary call is not made through it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kgen.dsl.errors import ArgumentError
from kgen.dsl.operator import Graph, Operator
from kgen.dsl.size import Dim, evaluate
from kgen.numerics.dtypes import torch_dtype
from kgen.runtime.operands import graph_of, is_short
from kgen.runtime.registry import Launchable

_LIBRARY = torch.library.Library("kgen", "FRAGMENT")


def untold(definition: Operator) -> dict[str, tuple[int, int]]:
    """The dimensions that outputs have and no input, with the output and the axis where they stand."""
    told = {d.name for t in definition.tensors.values() for d in t.shape.dims if isinstance(d, Dim)}
    found: dict[str, tuple[int, int]] = {}
    for k, spec in enumerate(definition.outputs):
        for axis, d in enumerate(spec.shape.dims):
            if isinstance(d, Dim) and d.name not in told:
                found.setdefault(d.name, (k, axis - len(spec.shape.dims)))
    return found


def size_name(dim: str) -> str:
    """What the argument for a size is called."""
    return f"size_{dim}"


def schema(operator: Launchable) -> str:
    """The signature in torch's notation."""
    definition = operator.definition
    arguments = [f"Tensor {name}" for name in definition.tensors]
    for spec in definition.scalars:
        default = "" if spec.default is None else f"={spec.default}"
        arguments.append(f"{'float' if spec.dtype.is_float else 'SymInt'} {spec.name}{default}")
    arguments += [f"SymInt {size_name(name)}=-1" for name in untold(definition)]
    count = len(definition.outputs)
    result = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
    return f"{operator.key}({', '.join(arguments)}) -> {result}"


def define(
    operator: Launchable, save: Callable[..., None], back: Callable[..., Any], batched: Callable[..., Any]
) -> None:
    """Makes it `torch.ops.kgen.KEY`: with what autograd keeps of a call, what it passes back, and its rule for vmap."""
    key, definition = operator.key, operator.definition
    split, like = splitter(definition), _gradients_of(definition)
    _LIBRARY.define(schema(operator), tags=(torch.Tag.pt2_compliant_tag,))

    def orders_of(tensors: Sequence[Tensor]) -> list[tuple[int, tuple[int, ...]]]:
        return [(k, order) for k, i in like if (order := _order(tensors[i]))]

    def run(*given: Any) -> Any:
        tensors, numbers, sizes = split(given)
        orders = orders_of(tensors)
        outputs = _ordered(empty_results(definition, tensors, sizes), orders) if orders else ()
        results = operator.launch(tensors, numbers, sizes, outputs)
        return results[0] if len(results) == 1 else results

    def fake(*given: Any) -> Any:
        tensors, _, sizes = split(given)
        results = _ordered(empty_results(definition, tensors, sizes), orders_of(tensors))
        return results[0] if len(results) == 1 else results

    for device in ("CPU", "CUDA"):
        _LIBRARY.impl(key, run, device)
    torch.library.register_fake(f"kgen::{key}", fake, lib=_LIBRARY)
    torch.library.register_autograd(f"kgen::{key}", back, setup_context=save, lib=_LIBRARY)
    torch.library.register_vmap(f"kgen::{key}", batched, lib=_LIBRARY)


#: Of what torch's operator was called with: tensors, numbers by name, and untold sizes by dimension.
Given = tuple[tuple[Tensor, ...], dict[str, Any], dict[str, int]]


def splitter(definition: Operator) -> Callable[[Sequence[Any]], Given]:
    """What tells apart what torch's operator is called with: all, or all but these numbers and sizes that have defaults."""
    count, dims = len(definition.tensors), list(untold(definition))
    names, defaults = [s.name for s in definition.scalars], [s.default for s in definition.scalars]
    whole = count + len(names)

    def split(given: Sequence[Any]) -> Given:
        numbers = dict(zip(names, (*given[count:whole], *defaults[len(given) - count :])))
        sizes = dict(zip(dims, given[whole:]))
        for name in dims:
            if sizes.get(name, -1) == -1:
                raise ArgumentError(f"{definition.name}: no input tells {name}; give it by out=")
        return tuple(given[:count]), numbers, sizes

    return split


def _gradients_of(definition: Operator) -> list[tuple[int, int]]:
    """The outputs that lie as an input does, both by place: its gradients, if they have rows of heads or more.

    So what the input was a view of takes them without a transpose: a projection that was split into heads, say.
    """
    graph = definition.graphs[0]
    inputs = {f"grad_{spec.name}": (i, spec.shape) for i, spec in enumerate(graph.inputs)}
    pairs = [(k, spec.shape, *inputs[spec.name]) for k, spec in enumerate(graph.outputs) if spec.name in inputs]
    return [(k, i) for k, own, i, shape in pairs if own == shape and len(shape.dims) + shape.leading > 2]


def hint(size: Any) -> int:
    """A size; of a symbol, the one that it had: no guard is made of it."""
    return size if isinstance(size, int) else int(size.node.hint or 1)


def _order(x: Tensor) -> tuple[int, ...] | None:
    """The order of a tensor's axes in memory, the outermost first; None where it is theirs, or its rows are not contiguous."""
    if x.is_contiguous():
        return None
    strides, lengths = (
        [n if isinstance(n, int) else int(n.node.hint or 0) for n in of] for of in (x.stride(), x.shape)
    )
    several = [axis for axis, n in enumerate(lengths) if n != 1]
    wanted = sorted(several, key=lambda axis: -strides[axis])
    if wanted == several or strides[-1] != 1 or wanted[-1] != x.dim() - 1:
        return None
    places = iter(wanted)
    return tuple(next(places) if n != 1 else axis for axis, n in enumerate(lengths))


def _ordered(results: Sequence[Tensor], orders: Sequence[tuple[int, tuple[int, ...]]]) -> tuple[Tensor, ...]:
    """The same tensors without values, those at some places with their axes in another order in memory."""
    found = list(results)
    for k, order in orders:
        dense = found[k].new_empty([found[k].shape[axis] for axis in order])
        found[k] = dense.permute([order.index(axis) for axis in range(len(order))])
    return tuple(found)


def empty_results(definition: Operator, tensors: Sequence[Tensor], sizes: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Outputs of the right shape and dtype without values; sizes may be symbols of torch."""
    graph: Graph = graph_of(definition, tensors, ())
    for spec, x in zip(graph.inputs, tensors):
        if x.device != tensors[0].device:
            raise ArgumentError(
                f"{definition.name}: {spec.name} is on the device {x.device}, {graph.inputs[0].name} on {tensors[0].device}; "
                f"expected all on one device"
            )
    known: dict[str, Any] = {}
    heads = []
    short = any(map(is_short, graph.inputs, tensors))
    for spec, x in zip(graph.inputs, tensors):
        x = x.unsqueeze(-1) if is_short(spec, x) else x
        named = len(spec.shape.dims)
        for dim, size in zip(spec.shape.dims, x.shape[x.dim() - named :]):
            known.setdefault(str(dim), size)
        heads.append(x.shape[: x.dim() - named])
    known.update(sizes)
    leading = torch.broadcast_shapes(*heads)
    results = []
    for spec in graph.outputs:
        dims = spec.shape.dims[: len(spec.shape.dims) - (short and spec.shape.dims[-1:] == (1,))]
        shape = [evaluate(d, known) for d in dims]
        whole = [*(leading if spec.shape.leading else ()), *shape]
        results.append(tensors[0].new_empty(whole, dtype=torch_dtype(spec.dtype)))
    return tuple(results)

"""Calls that torch has to see: under autograd, functorch, torch.compile, modes of its dispatcher, on tensors without memory.

A call of which a gradient is wanted keeps what that takes; gradients are calls of operators again.

`Plain` is for ordinary calls with tensors that require gradients. What calls of one kind keep, and how their gradients are
made, is a `Step`, worked out once; with it the extension for warm calls does as `Plain` does. `Func` is for tensors of functorch
(vmap, torch.func.grad), where torch wants a function of another form that costs more host time. Neither has a forward-mode
derivative: there torch raises.
What is traced, or has no memory, goes to an operator of torch (kgen.runtime.library) that is made when it is first asked for.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kgen.dsl.any_order import is_spared, unordered
from kgen.dsl.errors import ArgumentError
from kgen.dsl.gradient import Source, needed, training
from kgen.dsl.operator import Graph, Operator
from kgen.numerics.dtypes import torch_dtype
from kgen.runtime import autocast, library
from kgen.runtime.gradients import Way, way_of
from kgen.runtime.operands import graph_of, problem_of
from kgen.runtime.registry import Launchable, constant_to_dynamo, of_key

#: Modes of torch's dispatcher; transforms of functorch; where its `_current_level` is not below 0, forward-mode differentiation.
WATCHERS: Any = (
    torch._C._len_torch_dispatch_stack,
    torch._C._are_functorch_transforms_active,
    torch.autograd.forward_ad,
)
_modes, _functorch, _forward_ad = WATCHERS
_transform = torch._C._functorch.peek_interpreter_stack
#: The transform that knows no functions of Python, but operators.
_FUNCTIONALIZE = torch._C._functorch.TransformType.Functionalize
_no_dispatch = torch.Tensor.__torch_dispatch__
#: Steps an operator keeps. Beyond it all are dropped, and made anew as they are needed.
_LIMIT = 4096
#: Of gradients that autograd batches by itself (is_grads_batched, vectorize=True), not by functorch.
_is_batch = torch._C._functorch.is_legacy_batchedtensor


def is_watched() -> bool:
    """Whether torch has to see a call: a mode of its dispatcher, a transform of functorch, or forward-mode differentiation."""
    return bool(_modes()) or _functorch() or _forward_ad._current_level >= 0


def call(operator: Launchable, tensors: Sequence[Any], numbers: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """A call by the way that its tensors want: its results, one or a tuple."""
    if torch.compiler.is_compiling() or not is_plain(tensors):
        if not torch.compiler.is_compiling() and any(isinstance(x, Tensor) and x.is_nested for x in tensors):
            raise ArgumentError(f"{operator.__name__}: a tensor is nested; expected dense ones, such as its values()")
        named = {**numbers, **{library.size_name(name): n for name, n in sizes.items()}}
        return traced(operator.key, len(operator.definition.outputs), tuple(tensors), None, named)
    results = None
    if _functorch():
        results = Func.apply(operator, dict(numbers), dict(sizes), *tensors)  # type: ignore[no-untyped-call]
    elif _forward_ad._current_level >= 0 or _wants_gradient(tensors):
        results = Plain.apply(operator, numbers, sizes, *tensors)  # type: ignore[no-untyped-call]
    if results is None:
        results = operator.launch(tensors, numbers, sizes)
    count = len(operator.definition.outputs)
    return results[0] if count == 1 else tuple(results[:count])


def trained(operator: Launchable, *tensors: Tensor, **numbers: Any) -> Any:
    """The results of an ordinary call with tensors that require gradients."""
    results = _apply_plain(operator, numbers, {}, *tensors)
    count = len(operator.definition.outputs)
    return results[0] if count == 1 else results[:count]


def aside(operator: Launchable, operands: Sequence[Any], numbers: Mapping[str, Any]) -> Any:
    """A call of which a gradient is wanted, or with tensors without memory; `operands` are inputs, and outputs where given.

    Outputs that alone tell the result's sizes are copied to, so that gradients pass; others are refused, as by torch.
    """
    count = len(operator.definition.tensors)
    if len(operands) == count:
        return call(operator, operands, numbers, {})
    inputs, outputs = tuple(operands[:count]), tuple(operands[count:])
    if not is_plain(operands):
        return traced(operator.key, len(operator.definition.outputs), inputs, outputs, numbers)
    if not _wants_gradient(operands):
        operator.launch(inputs, numbers, {}, outputs)
        return outputs[0] if len(outputs) == 1 else outputs
    problem_of(operator.definition, inputs, outputs)  # refuses what does not fit
    untold = library.untold(operator.definition)
    if untold and not any(y.requires_grad for y in outputs):
        sizes = {name: outputs[k].shape[axis] for name, (k, axis) in untold.items()}
        results = call(operator, inputs, numbers, sizes)
        _written(operator.__name__, outputs, results if isinstance(results, tuple) else (results,))
        return outputs[0] if len(outputs) == 1 else outputs
    raise ArgumentError(
        f"{operator.__name__}: out= was given with a tensor that requires a gradient, which torch cannot follow; call it "
        f"without out=, under torch.no_grad(), or with a detached tensor"
    )


def training_form(operator: Launchable) -> Launchable:
    """The operator with what its gradient wants kept as further results; itself where that is nothing."""
    graphs = operator.definition.graphs
    whole = [training(graph) for graph in graphs]
    alike = len({tuple(spec.name for spec in graph.outputs) for graph in whole}) == 1
    if operator.own_gradient is not None or not alike or all(a is b for a, b in zip(graphs, whole)):
        return operator
    return operator.derived(whole, f"{operator.__name__} with what its gradient wants.")


def _reads(operator: Launchable, graph: Graph, wanted: tuple[int, ...]) -> tuple[Sequence[int], Sequence[int]]:
    """The inputs and the outputs, by place, that the gradients of the inputs `wanted` are made of."""
    if operator.own_gradient is None:
        return needed(graph, wanted)
    names = set(operator.own_gradient.definition.tensors)
    inputs, outputs = ([k for k, s in enumerate(specs) if s.name in names] for specs in (graph.inputs, graph.outputs))
    return inputs, outputs


def is_seen(tensors: Sequence[Any]) -> bool:
    """Whether torch has to see a call with these tensors, or wants its gradient."""
    return is_watched() or any(map(_is_strange, tensors)) or _wants_gradient(tensors)


def _wants_gradient(tensors: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in tensors)


def is_plain(tensors: Sequence[Any]) -> bool:
    """Whether they have memory, if only under a transform of functorch, and no mode has to see them."""
    if _modes() or any(map(_is_strange, tensors)):
        return False
    return not _functorch() or _transform().key() != _FUNCTIONALIZE


def _is_strange(x: Any) -> bool:
    """Whether a tensor is another class's to compute with, or has no memory: the operator of torch is made for these."""
    if not isinstance(x, Tensor):
        return False
    return x.device.type == "meta" or type(x).__torch_dispatch__ is not _no_dispatch or _is_batch(x)


# Operators of torch.

#: Operators that are torch's too, by key: these stay.
_registered: dict[str, Launchable] = {}
_registering = threading.Lock()


def torch_op(operator: Launchable) -> Any:
    """The operator as torch's own."""
    return getattr(torch.ops.kgen, _ensure(operator.key)).default


def _ensure(key: str) -> str:
    """Makes the operator of that key one of torch's, if it is not yet."""
    with _registering:
        if key not in _registered:
            operator = of_key(key)
            _define(operator)
            _registered[key] = operator
    return key


def _define(operator: Launchable) -> None:
    definition = operator.definition
    count, split = len(definition.tensors), library.splitter(definition)

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors, numbers, _ = split(inputs)
        results = output if isinstance(output, tuple) else (output,)
        Step(operator, ctx.needs_input_grad[:count], tensors, results).keep(ctx, numbers, tensors, results)

    def back(ctx: Any, *grads: Any) -> Any:
        rest = len(definition.scalars) + len(library.untold(definition))
        return (*ctx.step.gradients(ctx.numbers, ctx.saved_tensors, grads), *itertools.repeat(None, rest))

    def of_batch(info: Any, dims: tuple[Any, ...], *given: Any) -> Any:
        op, rest = getattr(torch.ops.kgen, operator.key).default, given[count:]
        return batched(definition, info.batch_size, dims[:count], given[:count], lambda x: op(*x, *rest))

    library.define(operator, save, back, of_batch)


@constant_to_dynamo  # as torch.compiler.assume_constant_result, which imports Dynamo: a second of a process's first call
def _op_name(key: str) -> str:
    return _ensure(key)


@constant_to_dynamo
def _training_name(key: str) -> str:
    return _ensure(of_key(key).training.key)


@constant_to_dynamo
def _untold_axes(key: str) -> str:
    """The sizes that no input tells: each with the output and the axis, counted from the end, that has it."""
    return " ".join(f"{name}:{k}:{axis}" for name, (k, axis) in library.untold(of_key(key).definition).items())


@constant_to_dynamo
def _tensor_names(key: str) -> str:
    return " ".join(of_key(key).definition.tensors)


@constant_to_dynamo
def _cast_dtypes(key: str, given: str, low: str) -> str:
    """The names of the dtypes that autocast to `low` casts inputs of the dtypes `given` to."""
    dtypes = [getattr(torch, t.removeprefix("torch.")) for t in (*given.split(), low)]
    found = autocast.wanted(of_key(key).definition, tuple(dtypes[:-1]), dtypes[-1])
    return " ".join(str(t).removeprefix("torch.") for t in found)


def traced(key: str, count: int, given: tuple[Any, ...], out: Any, named: Mapping[str, Any]) -> Any:
    """A call of the operator of that key, which has so many outputs, as a call of torch's: what Dynamo traces."""
    sizes = {}
    outputs = () if out is None else out if isinstance(out, (tuple, list)) else (out,)
    if not outputs and (autocast.is_on("cpu") or autocast.is_on("cuda")):
        names = _tensor_names(key).split()
        tensors = [given[i] if i < len(given) else named[name] for i, name in enumerate(names)]
        device = tensors[0].device.type
        if autocast.is_on(device):
            dtypes = _cast_dtypes(key, " ".join([str(x.dtype) for x in tensors]), str(torch.get_autocast_dtype(device)))
            cast = [x.to(getattr(torch, t)) for x, t in zip(tensors, dtypes.split())]
            given = (*cast, *given[len(names) :])
            named = {name: value for name, value in named.items() if name not in names}
    for text in _untold_axes(key).split() if out is not None else ():
        name, k, axis = text.split(":")
        sizes[library.size_name(name)] = outputs[int(k)].shape[int(axis)]
    grad = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in (*given, *named.values()))
    name = _training_name(key) if grad else _op_name(key)
    results = getattr(torch.ops.kgen, name).default(*given, **named, **sizes)
    results = results[:count] if isinstance(results, (tuple, list)) else (results,)
    if outputs:
        results = _written(key.rpartition("_")[0], outputs, results)
    return results[0] if count == 1 else tuple(results)


def _written(name: str, outputs: Sequence[Tensor], results: Sequence[Tensor]) -> Sequence[Tensor]:
    """The outputs that were given, with the results in them."""
    if len(outputs) != len(results):
        raise ArgumentError(f"{name} has {len(results)} outputs; out holds {len(outputs)}")
    for y, result in zip(outputs, results):
        if y.shape != result.shape or y.dtype != result.dtype:
            raise ArgumentError(
                f"{name}: out is {y.dtype} of shape {list(y.shape)}; expected {result.dtype} of {list(result.shape)}"
            )
        y.copy_(result)
    return outputs


# Functions of autograd.


def _trained(operator: Launchable, tensors: Sequence[Tensor], numbers: Any, sizes: Any) -> tuple[Any, ...]:
    """The results of its training form. What does not fit is refused in the operator's own name."""
    try:
        return operator.training.launch(tensors, numbers, sizes)
    except ArgumentError as error:
        refused = error
    operator.launch(tensors, numbers, sizes)
    raise refused


class Plain(torch.autograd.Function):
    """A call of an operator's training form, with tensors that require gradients."""

    @staticmethod
    def forward(ctx: Any, operator: Launchable, numbers: Any, sizes: Any, *tensors: Tensor) -> Any:
        results = _trained(operator, tensors, numbers, sizes)
        whole, needs = operator.training, ctx.needs_input_grad[3:]
        key = (needs, *sizes.values(), *[x.shape for x in tensors], *[x.dtype for x in tensors])
        step = whole.steps.get(key)
        if step is None:
            if len(whole.steps) >= _LIMIT:
                whole.steps.clear()
            step = whole.steps[key] = Step(whole, needs, tensors, results)
        step.keep(ctx, numbers, tensors, results)
        if not sizes:
            operator.keep_step(tensors, step)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return (None, None, None, *ctx.step.gradients(ctx.numbers, ctx.saved_tensors, grads))


#: `Plain.apply` without a look for transforms of functorch.
_apply_plain: Any = super(torch.autograd.Function, Plain).apply


class Func(torch.autograd.Function):
    """The same in the form that functorch takes."""

    @staticmethod
    def forward(operator: Launchable, numbers: Any, sizes: Any, *tensors: Tensor) -> Any:
        return _trained(operator, tensors, numbers, sizes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        operator, numbers, _, *tensors = inputs
        Step(operator.training, ctx.needs_input_grad[3:], tensors, output).keep(ctx, numbers, tensors, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return (None, None, None, *ctx.step.gradients(ctx.numbers, ctx.saved_tensors, grads))

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], operator: Launchable, numbers: Any, sizes: Any, *tensors: Tensor
    ) -> Any:
        whole = operator.training
        again = functools.partial(call, whole, numbers=numbers, sizes=sizes)
        results, dims = batched(whole.definition, info.batch_size, in_dims[3:], tensors, again)
        one = len(whole.definition.outputs) == 1
        return ((results,), (dims,)) if one else (results, dims)


class Step:
    """What calls of one kind keep for their gradients, and how these are made of it: worked out once.

    `needs`: of each tensor whether its gradient is wanted.
    """

    def __init__(
        self, operator: Launchable, needs: Sequence[bool], tensors: Sequence[Tensor], results: Sequence[Tensor]
    ) -> None:
        self.operator, self.needs = operator, needs
        self.graph = graph_of(operator.definition, tensors, ())
        self.wanted = tuple(i for i, need in enumerate(needs) if need and self.graph.inputs[i].dtype.is_float)
        self.inputs, self.outputs = _reads(operator, self.graph, self.wanted)
        self.shapes, self.result_shapes = [x.shape for x in tensors], [y.shape for y in results]
        #: What there is for the gradients: what is kept, then the gradients of the results.
        self.values = [
            *(Source("input", i) for i in self.inputs),
            *(Source("output", k) for k in self.outputs),
            *(Source("gradient", k) for k in range(len(results))),
        ]
        self._ways: dict[tuple[bool, ...], tuple[Way, Launchable | None, Sequence[str]]] = {}
        #: What the extension makes gradients by (`Way.told`), by the keys of `_ways` as bits; None where they are Python's.
        self.told: dict[int, tuple[Any, ...] | None] = {}

    def keep(self, ctx: Any, numbers: Mapping[str, Any], tensors: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Has torch keep what `gradients` takes of a call."""
        ctx.set_materialize_grads(False)
        ctx.step, ctx.numbers = self, numbers
        ctx.save_for_backward(*[tensors[i] for i in self.inputs], *[results[k] for k in self.outputs])

    def gradients(
        self, numbers: Mapping[str, Any], saved: Sequence[Tensor], grads: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """The gradients of a call's tensors, from those of its results, None for zeros."""
        grads = [g.resolve_neg() if g is not None and g.is_neg() else g for g in grads]
        values = (*saved, *grads)
        if self.operator.own_gradient is not None:
            return self._by_hand(numbers, values, grads)
        kind = (torch.are_deterministic_algorithms_enabled(), *[g is not None for g in grads])
        way, backwards, names = self._ways.get(kind) or self._way(kind)
        if backwards is None:
            return way.gradients(values, ())
        given, numbers = way.inputs(values), {name: numbers[name] for name in names if name in numbers}
        found = NotImplemented if way.sizes else backwards.repeated(given, numbers)
        if found is NotImplemented:
            found = call(backwards, given, numbers, way.sizes)
        elif (bits := sum(known << i for i, known in enumerate(kind))) not in self.told:
            self.told[bits] = way.told(backwards.extended(), names)
        return way.gradients(values, found if isinstance(found, (tuple, list)) else (found,))

    def _way(self, kind: tuple[bool, ...]) -> tuple[Way, Launchable | None, Sequence[str]]:
        """The way for given gradients, with the operator of its graph and the numbers which that takes."""
        deterministic, *given = kind
        there = tuple(k for k, known in enumerate(given) if known)
        way = way_of(self.graph, self.values, there, self.wanted, self.shapes, self.result_shapes)
        made, backwards = way.graph, None
        if made is not None:
            if not deterministic and is_spared(made):
                made = unordered(made)  # which a call takes where it is faster by the model
            backwards = self.operator.derived([made], f"A derived gradient, {made.name}.")
        found = self._ways[kind] = way, backwards, [] if made is None else [spec.name for spec in made.scalars]
        return found

    def _by_hand(
        self, numbers: Mapping[str, Any], values: Sequence[Any], grads: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """The gradients by the operator that the user gave for them. It takes zeros for results without a gradient."""
        own, graph = self.operator.own_gradient, self.graph
        assert own is not None
        like = next((g for g in grads if g is not None), None)
        if like is None:
            return [None] * len(self.needs)
        there = {}
        for source, value in zip(self.values, values):
            specs = graph.inputs if source.kind == "input" else graph.outputs
            there[("grad_" if source.kind == "gradient" else "") + specs[source.index].name] = value
        for spec, shape in zip(graph.outputs, self.result_shapes):
            if there[f"grad_{spec.name}"] is None:
                there[f"grad_{spec.name}"] = like.new_zeros((), dtype=torch_dtype(spec.dtype)).expand(shape)
        numbers = {spec.name: numbers[spec.name] for spec in own.definition.scalars}
        found = call(own, [there[name] for name in own.definition.tensors], numbers, {})
        made = iter(found if isinstance(found, tuple) else (found,))
        by_place = [next(made) if spec.dtype.is_float else None for spec in graph.inputs]
        return [g if want else None for g, want in zip(by_place, self.needs)]


def batched(
    definition: Operator,
    count: int,
    dims: Sequence[int | None],
    tensors: Sequence[Tensor],
    again: Callable[[Sequence[Tensor]], Any],
) -> tuple[Any, Any]:
    """The results, by calls of `again`, for tensors with a batch axis each, or None; and where theirs is.

    One call with one more leading axis where the operator has these, else one for each of the batch.
    """
    specs = [t.shape for t in definition.tensors.values()]
    outputs = [t.shape for t in definition.outputs]
    moved = [x if d is None else x.movedim(d, 0) for x, d in zip(tensors, dims)]
    leads = all(s.leading for s, d in zip(specs, dims) if d is not None) and all(s.leading for s in outputs)
    heads = [x.dim() - len(s.dims) - (d is not None) for x, s, d in zip(moved, specs, dims)]
    if leads and all(h >= 0 for h in heads) and not _draws(definition):
        most = max((h for h, s in zip(heads, specs) if s.leading), default=0)
        for i, (x, head, d) in enumerate(zip(moved, heads, dims)):
            if d is not None:
                moved[i] = x.reshape(count, *(1,) * (most - head), *x.shape[1:])
        found = again(moved)
    else:
        each = [again([x if d is None else x[i] for x, d in zip(moved, dims)]) for i in range(count)]
        found = (
            torch.stack(each)
            if isinstance(each[0], Tensor)
            else tuple(torch.stack(list(column)) for column in zip(*each))
        )
    return found, 0 if isinstance(found, Tensor) else (0,) * len(found)


def _draws(definition: Operator) -> bool:
    """Whether random numbers follow from the places of elements, which another axis would change."""
    return any(node.op == "random" for node in definition.graphs[0].nodes)


def check_by_hand(operator: Launchable, own: Operator) -> None:
    """Raises ArgumentError where an operator cannot be the gradient of another."""
    graph = operator.definition.graphs[0]
    known = [spec.name for spec in (*graph.inputs, *graph.outputs)] + [f"grad_{spec.name}" for spec in graph.outputs]
    floats = [spec.name for spec in graph.inputs if spec.dtype.is_float]
    wrong = [name for name in own.tensors if name not in known]
    numbers = [spec.name for spec in own.scalars if spec.name not in [s.name for s in graph.scalars]]
    if wrong or numbers:
        raise ArgumentError(
            f"{own.name}, the gradient of {graph.name}, takes {', '.join(wrong + numbers)}; expected some of "
            f"{', '.join([*known, *(s.name for s in graph.scalars)])}"
        )
    if len(own.outputs) != len(floats):
        raise ArgumentError(
            f"{own.name}, the gradient of {graph.name}, gives {len(own.outputs)} results; expected one for each of "
            f"{', '.join(floats)}"
        )

"""KernelOperator: an operator to call on torch tensors, to look at as CUDA C++, and to tune.

    y = kgen.linear_gelu(x, w, b)                     # runs the best kernel known, on torch's current stream
    print(kgen.linear_gelu.source(M=64, N=64, K=64))
    kgen.linear_gelu.tune(M=4096, N=4096, K=4096, budget="60s")

On CUDA tensors a kernel runs on their GPU, on CPU tensors the same kernel runs on the emulator. Called with traced values, in
the definition of another operator, an operator stands for its mathematics: so `kgen.gelu` is one name for both. Gradients are
derived from the definition, or given by `@operator.gradient`.

A call does not go through torch.library: a custom op of torch costs 8.5 us of host time before anything happens, more than
the whole call here. Where torch has to see it (torch.compile, modes, fake tensors, functorch) it does: `kgen.runtime.autograd`.

Nothing here needs torch before the first call on tensors.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from kgen.codegen.source import joined
from kgen.dsl.choice import Value
from kgen.dsl.config_text import parse_config
from kgen.dsl.errors import ArgumentError, ConfigError, DefinitionError, KgenError, told_of
from kgen.dsl.expr import Expr, caller_location
from kgen.dsl.family import normalised, schedules
from kgen.dsl.gradient import backward_graphs
from kgen.dsl.naming import named_arguments, named_graph, named_problem
from kgen.dsl.operator import Graph, Operator
from kgen.dsl.problem import WIDEST_ACCESS, Problem, Sizes
from kgen.dsl.program import launches_of, program_of, several_launches
from kgen.dsl.restriction import UNRESTRICTED, Named, Restriction, restriction_of
from kgen.dsl.schedule import Schedule, SearchSpace
from kgen.dsl.types import DType
from kgen.runtime import registry
from kgen.runtime.copies import Constant, restricted
from kgen.runtime.registry import Launchable, Quiet, enter

if TYPE_CHECKING:
    from kgen.dsl.target import Target
    from kgen.runtime.autograd import Step
    from kgen.runtime.plan import Plan
    from kgen.tuner.outcome import Outcome
    from kgen.tuner.progress import Progress


def _compiling() -> bool:
    """Whether Dynamo traces this code. The first call on tensors puts torch's own function in its place."""
    return "torch" in sys.modules and sys.modules["torch"].compiler.is_dynamo_compiling()


# Whether torch has to see a call (kgen.runtime.autograd.is_watched): of three functions of torch, which take their places at the
# first call on tensors. They are asked one by one, since a warm call counts tenths of microseconds.
_modes: Callable[[], Any] = bool
_functorch: Callable[[], Any] = bool
_forward: Any = Quiet
#: Whether torch.autocast is on, for whichever device.
_autocast: Callable[[], bool] = bool


def _watch() -> None:
    """Has warm calls ask torch: before the first of them there was a call without a plan."""
    global _compiling, _modes, _functorch, _forward, _autocast
    from torch._C import _is_any_autocast_enabled
    from torch.compiler import is_dynamo_compiling

    from kgen.runtime.autograd import WATCHERS

    _compiling, (_modes, _functorch, _forward) = is_dynamo_compiling, WATCHERS
    _autocast = _is_any_autocast_enabled


#: Plans an operator keeps. Beyond it all are dropped, and made anew as they are needed.
_LIMIT = 4096
_OFFSET = WIDEST_ACCESS - 1

#: The default of an argument that may be anything, so that None is refused as any other value of the wrong kind.
_ABSENT: Any = object()


class KernelOperator(Constant):
    """An operator that runs. `definition` is its meaning.

    `config`, where given, is used in place of the best one known; `restriction` says which configs may be.
    """

    def __init__(
        self, definition: Operator, config: Schedule | None = None, restriction: Restriction = UNRESTRICTED
    ) -> None:
        self.definition, self.pinned, self.restriction = definition, config, restriction
        self.__name__ = definition.name
        self.__module__, self.__qualname__ = definition.function.__module__, definition.function.__qualname__
        self.__doc__ = definition.__doc__
        self._count = len(definition.tensors)
        self._plans: dict[tuple[Any, ...], Plan] = {}
        #: Of the extension: the same plans, and their launches.
        self._calls: Any = None
        self._derived: dict[tuple[Graph, ...], KernelOperator] = {}
        self.steps: dict[tuple[Any, ...], Step] = {}
        self.own_gradient: Launchable | None = None
        #: The definition that it is derived of, by however many steps; its own where there is none.
        self.root = definition
        self._name()

    def _name(self) -> None:
        """Gives it the key that torch knows it by, which says what it computes."""
        own = self.own_gradient.definition.graphs if self.own_gradient is not None else ()
        meaning = [graph.digest for graph in (*self.definition.graphs, *own)]
        meaning += [repr(self.pinned), repr(self.restriction)] if self.pinned or self.restriction else []
        self.key = f"{self.__name__}_{hashlib.sha256(' '.join(meaning).encode()).hexdigest()[:12]}"
        enter(self)

    def __call__(self, *given: Any, out: Any = None, **named: Any) -> Any:
        """Computes the operator on torch tensors; its numbers follow by position or by name.

        `out` is the output to write, or a tuple of them; without it they are allocated, dense, by torch. Tensors may have
        any strides and alignment; all are on one device. `out` may be an input itself where its elements are read one by
        one at the index written. Arrays of other libraries are tensors too: see `kgen.runtime.foreign`.
        Raises ArgumentError where the arguments do not fit the signature.
        """
        if _compiling():
            return self._traced(given, out, named)
        if self._calls is not None and _forward._current_level < 0:
            found = self._calls(given, out, named)
            if found is not NotImplemented:
                return found
        if len(given) != self._count:
            given, named = named_arguments(self.definition, given, named)
        outputs = () if out is None else out if isinstance(out, (tuple, list)) else (out,)
        operands = (*given, *outputs)
        seen = not self._plans or _modes() or _functorch() or _forward._current_level >= 0  # fake ones have no address
        plan, _, addresses = (None, (), []) if seen else self._known(operands)
        if plan is None or (plan.castable and _autocast()):
            return self._first(given, tuple(outputs), named)
        found = plan(operands, addresses, named)
        self._met(given, out, plan)
        return found

    def __repr__(self) -> str:
        pinned = f" with {self.pinned!r}" if self.pinned else f" of {self.restriction}" if self.restriction else ""
        inputs = ", ".join(f"{name}: {t.dtype}{t.shape}" for name, t in self.definition.tensors.items())
        return f"<kgen operator {self.__name__}({inputs}){pinned}>"

    def using(
        self, config: Schedule | str | Named | Sequence[Named] = _ABSENT, /, **fields: Value | Collection[Value]
    ) -> KernelOperator:
        """The same operator with this config for every call, or with configs among these alone.

        A config is a Schedule or its printed form; one that is not valid for a call raises ConfigError there. A schedule, or
        `kgen.MmaGemm.where(...)`, or several of them, are what is chosen and tuned among; so are `fields`, a value or several
        each: `hgemm.using(BM=128, stages=(3, 4))`. Raises ConfigError where no schedule has such a field or value.
        """
        graph, restriction = self.definition.graphs[0], self.restriction
        if self.launches != (self,):
            raise several_launches(graph)
        if config is not _ABSENT and not isinstance(config, (type, SearchSpace, tuple, list)):
            if fields:
                raise ConfigError(
                    f"{self.__name__}: a whole config leaves {', '.join(fields)} no choice; expected one of both"
                )
            return restricted(self, self._config(config), restriction)
        if config is not _ABSENT:
            restriction = restriction.among(config, graph)
        return restricted(self, None, restriction.pinned(graph, **fields))

    def problem(
        self,
        sizes: Sizes | None = None,
        /,
        *,
        leading: int | Sequence[int] = (),
        dtype: str | DType | Sequence[str | DType] | None = None,
        layouts: Mapping[str, str] | None = None,
        **dims: int,
    ) -> Problem:
        """The problem of dense, aligned operands of these sizes, by dimension: `hgemm.problem(M=64, N=64, K=64)`.

        `leading` are the sizes of `...`. `dtype` lists the distinct dtypes of inputs and outputs in their order, or (where
        no list is that) the first of them: "bf16"; without it the signature's first choice holds. `layouts` names the
        operands that are "col": stored with their last two axes swapped.
        """
        return named_problem(self.definition, sizes, leading, dtype, layouts, dims)

    def source(
        self,
        sizes: Sizes | None = None,
        /,
        *,
        config: Schedule | str | None = None,
        target: Target | str | None = None,
        leading: int | Sequence[int] = (),
        dtype: str | DType | Sequence[str | DType] | None = None,
        layouts: Mapping[str, str] | None = None,
        **dims: int,
    ) -> str:
        """The CUDA C++ of the kernel for a problem (see `problem`), or of its launches' kernels, in order: one translation
        unit that needs nothing of kgen.

        `config` is the config or its printed form; without it, the one that a call would use. `target` is the GPU, as a
        Target or by name; without it, this machine's first GPU, or one of sm_90a where there is none.
        """
        from kgen.runtime import dispatch
        from kgen.runtime.machine import target_of

        problem = self.problem(sizes, leading=leading, dtype=dtype, layouts=layouts, **dims)
        if problem.empty:
            raise ArgumentError(f"{problem} has no element to compute, so there is no kernel; expected sizes above 0")
        gpu = target_of(target)
        given = self._config(config) if config is not None else self.pinned
        program = program_of(problem)
        if not program.single and (given is not None or self.restriction):
            raise several_launches(problem.graph)
        sources = []
        for launch in program.launches:
            normal = normalised(launch)
            chosen = given or dispatch.choose(normal, gpu, dispatch.default_store(), self.restriction).config
            dispatch.check(chosen, normal, gpu)
            sources.append(chosen.source(normal))
        return joined(sources)

    def tune(
        self,
        sizes: Sizes | None = None,
        /,
        *,
        budget: str = "60s",
        gpu: int | str | Target | None = None,
        progress: Progress | None = None,
        leading: int | Sequence[int] = (),
        dtype: str | DType | Sequence[str | DType] | None = None,
        layouts: Mapping[str, str] | None = None,
        **dims: int,
    ) -> Outcome:
        """Searches the best config of a problem (see `problem`) and stores it; calls from now on use it.

        Where it takes several launches each is tuned, and the last one's outcome has the others'. `budget` is a time or a number
        of trials, for each launch: "60s", "2m", "200". `gpu` is an index, or the name of a GPU that need not be here: then
        configs are ranked by the cost model, checked on the emulator, and modelled. A GPU's worker stays for 20 s.
        """
        problem = self.problem(sizes, leading=leading, dtype=dtype, layouts=layouts, **dims)
        from kgen.runtime.tuning import tune_problem

        outcome = tune_problem(problem, budget=budget, gpu=gpu, progress=progress, restriction=self.restriction)
        self.forget()
        return outcome

    def _config(self, config: object) -> Schedule:
        if isinstance(config, Schedule):
            return config
        if not isinstance(config, str):
            raise ConfigError(
                f"a config is a Schedule or its printed form, got {type(config).__name__} {told_of(config)}"
            )
        own = {space.schedule.__name__: space.schedule for space in self.restriction.spaces}
        return parse_config(config, {**schedules(), **own})

    @functools.cached_property
    def launches(self) -> tuple[KernelOperator, ...]:
        """The launches that compute it, in order, as operators of their own: itself alone, unless no one kernel serves it.

        Each is called, tuned and looked at as any operator; what is tuned of one is what calls of the whole use.
        """
        parts = launches_of(self.definition)
        return (self,) if parts == (self.definition,) else tuple(map(KernelOperator, parts))

    def forget(self) -> None:
        """Makes the next calls look up their configs anew, for what was tuned since."""
        self._plans, self.steps = {}, {}
        if self._calls is not None:
            self._calls.forget()
        for made in tuple(self._derived.values()):
            made.forget()

    def _traced(self, given: tuple[Any, ...], out: Any, named: Mapping[str, Any]) -> Any:
        from kgen.runtime.autograd import traced

        return traced(self.key, len(self.definition.outputs), given, out, named)

    def _first(self, given: tuple[Any, ...], outputs: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """A call of a new kind: on traced values the definition; of tensors that torch has to see, or whose gradients are
        wanted, the way they want; else the plan for all to come."""
        if any(isinstance(value, Expr) for value in (*given, *named.values())):
            return self._inline(*given, **named)
        from kgen.runtime import autocast, autograd, foreign

        _watch()
        self.extended()
        if any(map(foreign.is_foreign, (*given, *outputs))):
            return foreign.call(self, self.definition, given, outputs, named)
        cast = autocast.cast(self.definition, given) if _autocast() and not outputs else None
        given = given if cast is None else tuple(cast)
        if autograd.is_seen(given):
            return autograd.aside(self, (*given, *outputs), named)
        return self._run(given, outputs, named)

    def _known(self, operands: Sequence[Any]) -> tuple[Plan | None, tuple[Any, ...], list[int]]:
        """The plan for these operands, if there is one; its key, all that a kernel may depend on but numbers; and addresses."""
        key: list[Any] = []
        addresses: list[int] = []
        try:
            for x in operands:
                address = x.data_ptr()
                addresses.append(address)
                strides = x.is_contiguous() or x.stride()
                key += (x.__class__, x.shape, strides, x.dtype, x.get_device(), address & _OFFSET)
            return self._plans.get(tuple(key)), tuple(key), addresses
        except (AttributeError, TypeError, RuntimeError):
            return None, (), addresses

    def extended(self) -> Any:
        """What makes its warm calls, of the extension; None before that is loaded."""
        if self._calls is None and registry.extension is not None:
            from kgen.runtime.autograd import trained

            self._calls = registry.extension.Calls(self._count, functools.partial(trained, self))
        return self._calls

    def _met(self, given: Sequence[Any], out: Any, plan: Plan) -> None:
        """Has the extension make calls with operands of this kind."""
        if self.extended() is not None and (launch := plan.native(registry.extension)) is not NotImplemented:
            self._calls.keep(given, out, plan, launch)

    def _run(self, given: tuple[Any, ...], outputs: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """A call on ordinary tensors."""
        from kgen.runtime import first

        operands = (*given, *outputs)
        plan, key, addresses = self._known(operands)
        if plan is None:
            _watch()
            return first.first_call(self, key, operands, addresses, named)
        found = plan(operands, addresses, named)
        self._met(given, outputs or None, plan)
        return found

    def keep(self, key: tuple[Any, ...], plan: Plan) -> None:
        """Has calls with operands of this kind run the plan."""
        from kgen.runtime import autocast, autograd

        plan.aside = functools.partial(autograd.aside, self)
        plan.castable = autocast.is_castable(self.definition, plan.problem)
        if len(self._plans) >= _LIMIT:
            self._plans = {}
        self._plans[key] = plan
        if self._calls is not None:
            self._calls.forget()  # it may have another for this kind

    # Gradients.

    def keep_step(self, tensors: tuple[Any, ...], step: Step) -> None:
        """Has the extension make calls with tensors of this kind, whose gradients are wanted."""
        own, calls, count = self.extended(), step.operator.extended(), len(self.definition.outputs)
        if own is not None:
            own.keep_step(tensors, calls, step, tuple(step.inputs), tuple(step.outputs), count)

    def launch(
        self,
        tensors: Sequence[Any],
        numbers: Mapping[str, Any],
        sizes: Mapping[str, int],
        outputs: Sequence[Any] = (),
    ) -> tuple[Any, ...]:
        """The results on ordinary tensors, without gradients, whatever torch is at. `sizes`: those that no input tells."""
        import torch

        if torch.is_grad_enabled():
            with torch.no_grad():
                return self.launch(tensors, numbers, sizes, outputs)
        if sizes:
            from kgen.runtime.library import empty_results

            outputs = empty_results(self.definition, tensors, sizes)
        given, outputs = tuple(tensors), tuple(outputs)
        found = self._calls(given, outputs or None, numbers) if self._calls is not None else NotImplemented
        if found is NotImplemented:
            found = self._run(given, outputs, numbers)
        return found if isinstance(found, tuple) else (found,)

    def repeated(self, tensors: tuple[Any, ...], numbers: Mapping[str, Any]) -> Any:
        """The results of a warm call by the extension, with their gradients; NotImplemented where it is Python's."""
        if self._calls is None or _forward._current_level >= 0:
            return NotImplemented
        return self._calls(tensors, None, numbers)

    def derived(self, graphs: Sequence[Graph], summary: str) -> KernelOperator:
        """The operator of graphs that are derived of this one's: its training form, its gradients. The same one each time."""
        key = tuple(graphs)
        if key not in self._derived:
            made = KernelOperator(Operator.of_graphs(graphs, summary, {}))
            made.root = self.root
            self._derived[key] = made
        return self._derived[key]

    @property
    def torch_op(self) -> Any:
        """The operator as torch's, registered: what saved programs call, and what policies of checkpointing name."""
        from kgen.runtime.autograd import torch_op

        return torch_op(self)

    @functools.cached_property
    def training(self) -> Launchable:
        """The operator with what its gradient wants kept as further results; itself where that is nothing."""
        from kgen.runtime.autograd import training_form

        return training_form(self)

    def gradient(self, function: Callable[..., Any]) -> KernelOperator:
        """Makes an operator of a typed function and this operator's gradient: a decorator.

        It takes what it needs by name, inputs, outputs (`out`, or `out0` and so on) and their gradients (`grad_out`), and
        returns a gradient for each input of floats, in order. ArgumentError where it takes or gives anything else.
        """
        from kgen.runtime.autograd import check_by_hand

        own = KernelOperator(Operator(function))
        check_by_hand(self, own.definition)
        self.take_gradient(own)
        return own

    def take_gradient(self, own: Launchable) -> None:
        """Makes an operator this one's gradient."""
        self.own_gradient = own
        self.__dict__.pop("training", None)
        self.forget()
        self._name()

    def backward_graphs(
        self, *wanted: str, dtype: str | DType | Sequence[str | DType] | None = None
    ) -> tuple[Graph, Graph | None]:
        """The graph that a call runs whose gradients are wanted, and that of the gradients of these inputs: of all without names.

        None where the gradients are those of the results as they are. Raises NoDerivative where there are none.
        """
        if self.own_gradient is not None:
            return named_graph(self.definition, dtype), self.own_gradient.definition.graphs[0]
        return backward_graphs(named_graph(self.definition, dtype), wanted)

    def _inline(self, *given: Any, **named: Any) -> Any:
        """The definition on traced values. Its errors name the line that called, before the one inside."""
        for value in (*given, *named.values()):
            if not isinstance(value, (Expr, int, float)):
                raise DefinitionError(
                    f"{caller_location()}: in {self.__name__}(...): got a {type(value).__name__} beside traced values; "
                    f"expected traced values and numbers alone"
                )
        try:
            return self.definition.function(*given, **named)
        except (DefinitionError, TypeError) as error:
            raise DefinitionError(f"{caller_location()}: in {self.__name__}(...): {error}") from error


@overload
def operator(function: Callable[..., Any], /) -> KernelOperator: ...


@overload
def operator(
    *,
    suites: Mapping[str, Sequence[Sizes]] | None = None,
    space: Named | Sequence[Named] | None = None,
    schedules: Sequence[Named] | None = None,
) -> Callable[[Callable[..., Any]], KernelOperator]: ...


def operator(
    function: Callable[..., Any] = _ABSENT,
    /,
    *,
    suites: Mapping[str, Sequence[Sizes]] | None = None,
    space: Named | Sequence[Named] | None = None,
    schedules: Sequence[Named] | None = None,
) -> KernelOperator | Callable[[Callable[..., Any]], KernelOperator]:
    """Makes an operator of a typed Python function: decorator, `@operator` or `@operator(suites={"default": [...]})`.

    `suites` are named lists of sizes for the command line, see `Operator`. `space` is what its configs are chosen and tuned
    among: a schedule, `kgen.MmaGemm.where(BM=(64, 128))`, or several of these; `schedules` is another word for several. Without
    them all of its family's are. Schedules on templates of one's own serve this operator alone. Raises DefinitionError, with
    file and line, where its annotations, its types, those sizes or those schedules do not fit.
    """
    if space is not None and schedules is not None:
        raise DefinitionError(f"{caller_location()}: space and schedules were both given; expected one of them")
    named = space if space is not None else schedules

    def make(function: Callable[..., Any]) -> KernelOperator:
        definition = Operator(function, suites=suites)
        if named is None:
            return KernelOperator(definition)
        try:
            return KernelOperator(definition, restriction=restriction_of(definition, named))
        except KgenError as error:
            raise DefinitionError(f"{definition.where}: {error}") from error

    return make if function is _ABSENT else make(function)

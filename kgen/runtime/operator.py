"""KernelOperator: an operator to call on torch tensors, to look at as CUDA C++, and to tune.

    y = kgen.linear_gelu(x, w, b)                     # runs the best kernel known, on torch's current stream
    print(kgen.linear_gelu.source(M=64, N=64, K=64))
    kgen.linear_gelu.tune(M=4096, N=4096, K=4096, budget="60s")

On CUDA tensors a kernel runs on their GPU, on CPU tensors the same kernel runs on the emulator. Called with traced values, in
the definition of another operator, an operator stands for its mathematics: so `kgen.gelu` is one name for both. It computes
no gradients.

A call does not go through torch.library: a custom op of torch costs 8.5 us of host time before anything happens, more than
the whole call here. `kgen.runtime.library.register` makes one of an operator where torch.compile should see it.

Nothing here needs torch before the first call on tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union, overload

from kgen import ops
from kgen.codegen.source import joined
from kgen.dsl.choice import Value
from kgen.dsl.config_text import parse_config
from kgen.dsl.errors import ArgumentError, ConfigError, DefinitionError, KgenError, told_of
from kgen.dsl.expr import Expr, caller_location
from kgen.dsl.family import normalised, schedules
from kgen.dsl.operator import Graph, Operator
from kgen.dsl.problem import WIDEST_ACCESS, Problem
from kgen.dsl.program import launches_of, program_of, several_launches
from kgen.dsl.restriction import UNRESTRICTED, Named, Restriction, restriction_of
from kgen.dsl.schedule import Schedule, SearchSpace
from kgen.dsl.types import DType, from_torch
from kgen.dsl.types import dtype as dtype_named

if TYPE_CHECKING:
    from kgen.dsl.target import Target
    from kgen.runtime.plan import Plan
    from kgen.tuner.outcome import Outcome
    from kgen.tuner.progress import Progress

#: Plans an operator keeps. Beyond it all are dropped, and made anew as they are needed.
_LIMIT = 4096
_OFFSET = WIDEST_ACCESS - 1

#: The default of an argument that may be anything, so that None is refused as any other value of the wrong kind.
_ABSENT: Any = object()

#: Sizes by dimension; a tuple under "..." for the leading ones.
Sizes = Mapping[str, Union[int, tuple[int, ...]]]


class KernelOperator:
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

    def __call__(self, *given: Any, out: Any = None, **named: Any) -> Any:
        """Computes the operator on torch tensors; its numbers follow by position or by name.

        `out` is the output to write, or a tuple of them; without it they are allocated, dense, by torch. Tensors may have
        any strides and alignment; all are on one device. `out` may be an input itself where its elements are read one by
        one at the index written. Raises ArgumentError where the arguments do not fit the signature.
        """
        # A warm call is this look-up and the plan it leads to. The key holds all that a kernel may depend on; numbers are
        # arguments of the launch. Whatever is no tensor, or a strange one, has no key.
        if len(given) != self._count:
            given, named = self._split(given, named)
        outputs = () if out is None else out if isinstance(out, (tuple, list)) else (out,)
        operands = (*given, *outputs)
        key: list[Any] = []
        addresses: list[int] = []
        try:
            for x in operands:
                address = x.data_ptr()
                addresses.append(address)
                strides = x.is_contiguous() or x.stride()
                key += (x.__class__, x.shape, strides, x.dtype, x.get_device(), address & _OFFSET)
            plan = self._plans.get(tuple(key))
        except (AttributeError, TypeError, RuntimeError):
            plan = None
        if plan is None:
            return self._first(given, operands, named)
        return plan(operands, addresses, named)

    def __repr__(self) -> str:
        pinned = f" with {self.pinned!r}" if self.pinned else f" of {self.restriction}" if self.restriction else ""
        inputs = ", ".join(f"{name}: {t.dtype}{t.shape}" for name, t in self.definition.tensors.items())
        return f"<kgen operator {self.__name__}({inputs}){pinned}>"

    def __reduce__(self) -> str:
        return self.__qualname__  # it is a constant of its module: copies are the same object, pickles name it

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
            return KernelOperator(self.definition, self._config(config), restriction)
        if config is not _ABSENT:
            restriction = restriction.among(config, graph)
        return KernelOperator(self.definition, None, restriction.pinned(graph, **fields))

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
        for what, value in (("sizes", sizes), ("layouts", layouts)):
            if value is not None and not isinstance(value, Mapping):
                raise ArgumentError(
                    f"{self.__name__}: {what} is a {type(value).__name__}; expected a dictionary by "
                    f"{'dimension, or sizes by name: M=64' if what == 'sizes' else 'operand'}"
                )
        graph = self._graph(dtype)
        given: dict[str, Any] = {**(sizes or {}), **dims}
        if not isinstance(leading, tuple) or leading:
            given["..."] = leading
        names = [spec.name for spec in (*graph.inputs, *graph.outputs)]
        for name, layout in (layouts or {}).items():
            if name not in names:
                raise ArgumentError(f"{graph.name} has no operand {name!r}; expected one of {', '.join(names)}")
            if layout not in ("row", "col"):
                raise ArgumentError(f"{graph.name}: layout {layout!r} of {name}; expected row or col")
        return Problem.dense(graph, given, layouts)

    def _graph(self, dtype: str | DType | Sequence[str | DType] | None) -> Graph:
        if dtype is None:
            return self.definition.graphs[0]
        given = dtype.replace(",", " ").split() if isinstance(dtype, str) else dtype
        named: list[Any] = [from_torch(t) for t in (given if isinstance(given, Sequence) else (given,))]
        wanted = [t if isinstance(t, DType) else dtype_named(t) for t in named]
        graphs = self.definition.graphs
        lists = [list(dict.fromkeys(spec.dtype for spec in (*g.inputs, *g.outputs))) for g in graphs]
        fitting = [g for g, found in zip(graphs, lists) if found == wanted]
        fitting += [g for g, found in zip(graphs, lists) if found[: len(wanted)] == wanted]
        if fitting:
            return fitting[0]
        choices = [",".join(t.name for t in found) for found in lists]
        told = ",".join(t.name for t in wanted)
        raise ArgumentError(
            f"{self.__name__} is not defined for {told or 'no dtype'}; expected one of {'; '.join(choices)}"
        )

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

        problem = self.problem(sizes, leading=leading, dtype=dtype, layouts=layouts, **dims)
        if problem.empty:
            raise ArgumentError(f"{problem} has no element to compute, so there is no kernel; expected sizes above 0")
        gpu = _target(target)
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
        of trials, for each launch: "60s", "2m", "200". `gpu` is an index, or the name of a GPU that need not
        be here: then configs are ranked by the cost model and checked on the emulator, and count as modelled.
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
        self._plans = {}

    def _first(self, given: tuple[Any, ...], operands: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """A call of a new kind: on traced values the definition, on tensors that prove sound the plan for all to come."""
        if any(isinstance(value, Expr) for value in (*given, *named.values())):
            return self._inline(*given, **named)
        from kgen.runtime.call import make_plan

        plan = make_plan(self.definition, self.pinned, self.restriction, operands)
        key: list[Any] = []
        for x in operands:
            strides = x.is_contiguous() or x.stride()
            key += (x.__class__, x.shape, strides, x.dtype, x.get_device(), x.data_ptr() & _OFFSET)
        result = plan(operands, [x.data_ptr() for x in operands], named)
        if len(self._plans) >= _LIMIT:
            self._plans = {}
        self._plans[tuple(key)] = plan
        return result

    def _split(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The tensors and the numbers of a call: numbers may be given by position after the tensors, tensors by name."""
        names = [*self.definition.tensors, *(s.name for s in self.definition.scalars)]
        if len(given) > len(names):
            raise ArgumentError(f"{self.__name__} takes {len(names)} arguments ({', '.join(names)}), got {len(given)}")
        values = dict(zip(names, given))
        for name, value in named.items():
            if name in values:
                raise ArgumentError(f"{self.__name__} got {name} twice, by position and by name")
            values[name] = value
        missing = [name for name in self.definition.tensors if name not in values]
        if missing:
            raise ArgumentError(
                f"{self.__name__} takes {self._count} tensors ({', '.join(self.definition.tensors)}); "
                f"missing {', '.join(missing)}"
            )
        return tuple(values.pop(name) for name in self.definition.tensors), values

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


def tune(operator: KernelOperator | Operator | str, /, *arguments: Any, **named: Any) -> Outcome:
    """`operator.tune(...)` of an operator or of the shipped one with that name."""
    if isinstance(operator, str):
        operator = shipped(operator)
    if isinstance(operator, Operator):
        operator = KernelOperator(operator)
    if not isinstance(operator, KernelOperator):
        raise ArgumentError(f"tune expects an operator or the name of a shipped one, got {operator!r}")
    return operator.tune(*arguments, **named)


def shipped(name: str) -> KernelOperator:
    """The shipped operator of that name or alias; always the same object. Raises an error that is an AttributeError too."""
    return _shipped(ops.operator(name).name)


@functools.cache
def _shipped(name: str) -> KernelOperator:
    found = KernelOperator(ops.operator(name))
    found.__module__ = "kgen"
    return found


def _target(target: Target | str | None) -> Target:
    from kgen.dsl.target import GENERIC, Target
    from kgen.gpu.target import detect, resolve

    if target is None:
        return detect(0) or GENERIC["sm_90a"]
    if not isinstance(target, (str, Target)):
        raise ArgumentError(f"a target is the name of a GPU, such as 'H200' or 'sm_90a', or a Target, got {target!r}")
    return resolve(target) if isinstance(target, str) else target

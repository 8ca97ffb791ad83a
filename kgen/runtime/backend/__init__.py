"""torch.compile(model, backend="kgen"): what kgen's language can say of a model runs on its kernels, the rest on torch's.

    model = torch.compile(model, backend="kgen")
    print(kgen.runtime.backend.explain(model, *inputs))

AOTAutograd's graphs, forward and backward, are searched for regions that one kernel computes: products with what is pointwise
after them, reductions with what is pointwise around them, look-ups in tables, attention. Each becomes a call of an operator of
torch (kgen.runtime.library). All else, and what is merely pointwise, is left to Inductor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kgen.dsl.errors import ArgumentError, DefinitionError, KgenError, told_of
from kgen.dsl.target import Target
from kgen.runtime.backend.report import Report

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule

    from kgen.runtime.backend.transform import Wanted
    from kgen.tuner.outcome import Outcome

__all__ = ["Report", "backend", "explain", "tune"]


def backend(
    gm: GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compiles a graph of Dynamo's: what `torch.compile(model, backend="kgen")` calls.

    `mode` is as for Inductor. Of `options`, "rest" is what computes what is left to torch: "inductor", or "eager";
    "emulate": whether kgen takes what is on the CPU, too, where its kernels run on the emulator, which is slow. Others are
    Inductor's. Raises ArgumentError where an option has another value.
    """
    from torch._inductor import list_options
    from torch.fx import GraphModule

    from kgen.runtime.backend import attention
    from kgen.runtime.backend.transform import transform

    if not isinstance(gm, GraphModule) or not isinstance(inputs, (list, tuple)):
        told = f"{type(gm).__name__} and {type(inputs).__name__}"
        raise ArgumentError(
            f"backend kgen: {told}; expected a graph of Dynamo's and its inputs: torch.compile calls it"
        )
    if not (mode is None or isinstance(mode, str)) or not (options is None or isinstance(options, Mapping)):
        raise ArgumentError(
            f"backend kgen: mode {told_of(mode)}, options {told_of(options)}; expected a str and a dict"
        )
    given = dict(options or {})
    rest, emulate = given.pop("rest", "inductor"), given.pop("emulate", False)
    if rest not in ("inductor", "eager") or not isinstance(emulate, bool):
        raise ArgumentError(
            f"backend kgen: rest is {rest!r}, emulate {emulate!r}; expected inductor or eager, True or False"
        )
    given = {str(name).replace("-", "_"): value for name, value in given.items()}
    if unknown := [name for name in given if name not in list_options()]:
        raise ArgumentError(
            f"backend kgen: no option is called {', '.join(unknown)}; expected rest, emulate or one of Inductor's, which "
            f"torch._inductor.list_options() has"
        )
    wanted = _on_any if emulate else _on_gpu
    attention.differentiate(gm, wanted)
    if rest == "eager":
        return _eager(gm, inputs, functools.partial(transform, wanted=wanted, report=Report()))
    return _inductor(gm, inputs, wanted, mode, given)


def _on_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def _on_any(device: torch.device) -> bool:
    return device.type in ("cuda", "cpu")


def _inductor(
    gm: GraphModule, inputs: Sequence[Any], wanted: Wanted, mode: str | None, options: Mapping[str, Any]
) -> Callable[..., Any]:
    import torch
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    from kgen.runtime.backend.transform import transform

    def inner(graph: GraphModule, example_inputs: Sequence[Any], **more: Any) -> Any:
        transform(graph, wanted, Report())
        _make_known(graph)
        return compile_fx_inner(graph, example_inputs, **more)

    patches = {**(list_mode_options(mode) if mode else {}), **options}
    # What AOTAutograd has on disk calls operators that a new process has not defined; Inductor's own cache is asked after that.
    with torch._functorch.config.patch(enable_autograd_cache=False):
        found: Any = compile_fx(gm, list(inputs), inner_compile=inner, config_patches=patches)
    return found  # type: ignore[no-any-return]


def _make_known(graph: GraphModule) -> None:
    """Makes the operators of kgen's in a graph known to Inductor, as it makes what it meets and does not know.

    Before torch 2.13 that prints all that the operator is computed of, whether anybody reads it or not: a text that doubles with
    every residual connection on the way, so that twelve blocks of GPT-2 never came to an end.
    """
    from torch._inductor.lowering import lowerings, make_fallback, tag_to_layout_constraint
    from torch._library.utils import get_layout_constraint_tag

    for node in graph.graph.nodes:
        if getattr(node.target, "namespace", None) == "kgen" and node.target not in lowerings:
            constraint = tag_to_layout_constraint(get_layout_constraint_tag(node.target, with_default=True))
            make_fallback(node.target, layout_constraint=constraint, warn=False)


def _eager(gm: GraphModule, inputs: Sequence[Any], change: Callable[[GraphModule], None]) -> Callable[..., Any]:
    """Graphs as Inductor gets them, changed, op by op."""
    import torch
    from torch._inductor.compile_fx import compile_fx

    def inner(graph: GraphModule, example_inputs: Sequence[Any], **more: Any) -> Any:
        change(graph)
        return _boxed(graph)

    with torch._functorch.config.patch(enable_autograd_cache=False):
        found: Any = compile_fx(gm, list(inputs), inner_compile=inner)
    return found  # type: ignore[no-any-return]


def _boxed(graph: GraphModule) -> Callable[[list[Any]], Any]:
    """A graph that takes its inputs as a list, which it empties."""

    def run(arguments: list[Any]) -> Any:
        own = list(arguments)
        arguments.clear()
        return graph(*own)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def explain(model: Callable[..., Any], *inputs: Any, backward: bool = False, **named: Any) -> Report:
    """What the backend makes of a model called with these inputs: a report, which prints as a table.

    The model runs once, by torch's own ops, on the device where it is. With `backward` its result, one number or the sum of a
    tensor, is differentiated, too; of a result of several its `loss`. Raises DefinitionError where it does not run.
    """
    if not callable(model):
        raise ArgumentError(f"explain: {told_of(model)} is no model; expected a module or a function of tensors")
    import copy

    import torch

    from kgen.runtime.backend import attention
    from kgen.runtime.backend.transform import transform
    from kgen.runtime.first import by_torch

    report = Report()

    def change(graph: GraphModule) -> None:
        transform(copy.deepcopy(graph), _on_any, report)

    def compiler(gm: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        attention.differentiate(gm, _on_any)
        return _eager(gm, examples, change)

    torch._dynamo.reset()
    try:
        with by_torch():
            result = torch.compile(model, backend=compiler)(*inputs, **named)
            if backward:
                _loss(result).sum().backward()
    except KgenError:
        raise
    except Exception as error:  # whatever a model may raise
        cause = getattr(error, "inner_exception", error)  # of Dynamo's, which has a page around it
        first = str(cause).strip().partition("\n")[0]
        raise DefinitionError(f"the model cannot be compiled: {type(cause).__name__}: {first}") from error
    finally:
        torch._dynamo.reset()
    return report


def _loss(result: Any) -> torch.Tensor:
    """What is differentiated of a model's result."""
    import torch

    found = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", result)
    if not isinstance(found, torch.Tensor) or not found.requires_grad:
        raise DefinitionError(
            f"backward: the model's result is {told_of(result)}; expected a tensor, or one called loss, that requires a gradient"
        )
    return found


def tune(report: Report, *, budget: str = "60s", gpu: int | str | Target | None = None) -> list[Outcome]:
    """Tunes what a report has taken, each problem once: `tune(explain(model, *inputs, backward=True), budget="20s")`.

    `budget` is for each, a time or a number of trials, and `gpu` as for an operator. Models that are compiled after that, or in
    another process, use what was found; operators that have run keep their plans.
    """
    from kgen.runtime.tuning import tune_problem

    return [tune_problem(problem, budget=budget, gpu=gpu) for problem in report.problems if not problem.empty]

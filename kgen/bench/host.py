"""Host time: what one warm call costs the CPU, beside the same computed by torch's own calls."""

from __future__ import annotations

import gc
import itertools
import json
import operator as python
import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

import torch
import torch.fx

from kgen.bench import eager
from kgen.bench.environment import environment
from kgen.bench.result import SUBJECT, Ratio
from kgen.bench.subject import callable_on_tensors
from kgen.bench.table import Table
from kgen.dsl.errors import DeviceError
from kgen.dsl.problem import Problem
from kgen.gpu.target import detect
from kgen.numerics.operands import make_operands, scalar_values
from kgen.tuner.race import interval

#: The schema's name in the JSON.
SCHEMA = "kgen.bench.overhead/2"
_TORCH = "torch"
Name = TypeVar("Name", bound=Hashable)
#: torch's functions with out= where another is called.
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    python.add: torch.add, python.sub: torch.sub, python.mul: torch.mul, python.truediv: torch.div, python.pow: torch.pow,
    python.neg: torch.neg, torch.nn.functional.softmax: torch.softmax,
}  # fmt: skip


@dataclass(frozen=True)
class HostTime:
    """Seconds of host time for one call: the median over batches with its 95% interval."""

    seconds: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Overhead:
    """Host time of a warm call of kgen and of torch, and of those that write to given outputs; `batches` of `calls` were timed.

    torch has no time with out= where its function takes none, and none at all where torch cannot compute the problem.
    """

    problem: str
    returning: Mapping[str, HostTime]
    writing: Mapping[str, HostTime]
    batches: int
    calls: int
    environment: Mapping[str, Any]

    def ratio(self, *, out: bool = False) -> Ratio | None:
        """torch's time over kgen's, with out= where torch takes it: above 1, kgen's call is the cheaper."""
        ours = (self.writing if out else self.returning)[SUBJECT]
        theirs = (self.writing.get(_TORCH) if out else None) or self.returning.get(_TORCH)
        if theirs is None:
            return None
        return Ratio(theirs.seconds / ours.seconds, theirs.lower / ours.upper, theirs.upper / ours.lower)

    def to_json(self) -> str:
        """As JSON, with its schema's name."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2, allow_nan=False) + "\n"


def overhead(
    operator: Callable[..., Any], problem: Problem, device: int = 0, *, batches: int = 100, calls: int = 50
) -> Overhead:
    """Measures `operator(...)` and `operator(..., out=)` beside torch's calls for the same graph.

    Batches alternate, and the GPU is idle when one begins. A batch should launch fewer kernels than the launch queue has room
    for (about 1000): then the host never waits for the GPU. The problem should be small all the same. Gradients are not turned
    off: torch's bookkeeping for them is part of what a user pays.
    """
    target = detect(device)
    if target is None:
        raise DeviceError(f"no GPU {device}: the host time of launches is measured on a GPU")
    from kgen.runtime import native

    with torch.cuda.device(device), eager.matmul_precision(problem.graph):
        scalars = scalar_values(problem.graph)
        operands = make_operands(problem, "normal", 0, f"cuda:{device}", guard=0)
        inputs = [operands[o.name] for o in problem.inputs]
        outputs = [operands[o.name] for o in problem.outputs]
        out = outputs[0] if len(outputs) == 1 else tuple(outputs)
        ours = partial(callable_on_tensors(operator), *inputs, **scalars)
        ours()
        if building := native.begin():
            building.join()
        candidates: dict[tuple[str, bool], Callable[[], object]] = {
            (SUBJECT, False): ours,
            (SUBJECT, True): partial(ours, out=out),
        }
        if eager.why_not(problem.graph) is None:
            function = only_work(eager.function(problem, scalars), inputs)
            candidates[_TORCH, False] = partial(function, *inputs)
            if theirs := into_given(function, inputs, outputs):
                candidates[_TORCH, True] = theirs
        times = measure(candidates, partial(torch.cuda.synchronize, device), batches, calls)
    returning, writing = ({who: found for (who, out), found in times.items() if out == form} for form in (False, True))
    return Overhead(str(problem), returning, writing, batches, calls, environment(device, target))


def only_work(function: Any, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
    """What `eager.function` made, as a user would write it: without casts that return their operand, and with mm of matrices."""
    module: torch.fx.GraphModule = function.__self__
    idle: list[torch.fx.Node] = []

    class Interpreter(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            found = super().run_node(n)
            if n.op == "call_method" and n.target == "to" and found is self.env[n.args[0]]:  # type: ignore[index]
                idle.append(n)
            if n.target is torch.matmul and all(self.env[x].dim() == 2 for x in n.args):  # type: ignore[index]
                n.target = torch.mm
            return found

    Interpreter(module, garbage_collect_values=False).run(*inputs)
    for node in idle:
        node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
        module.graph.erase_node(node)
    module.recompile()
    forward: Callable[..., Any] = module.forward
    return forward


def into_given(
    function: Any, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> Callable[[], object] | None:
    """The one call of torch that a function is, into the given output; None where it is several or takes no out=."""
    graph: torch.fx.Graph = function.__self__.graph
    steps = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    if len(steps) != 1 or len(outputs) != 1 or steps[0].op != "call_function":
        return None
    (step,) = steps
    given = dict(zip((node for node in graph.nodes if node.op == "placeholder"), inputs))
    arguments = [given[x] if isinstance(x, torch.fx.Node) else x for x in step.args]
    named = {name: given[x] if isinstance(x, torch.fx.Node) else x for name, x in step.kwargs.items() if name[0] != "_"}
    call = partial(_FUNCTIONS.get(step.target, step.target), *arguments, **named, out=outputs[0])
    try:
        call()
    except (TypeError, RuntimeError):
        return None
    return call


def overhead_table(taken: Sequence[Overhead]) -> Table:
    """Microseconds of kgen's calls and of torch's, and torch's over kgen's: above 1x, kgen's call is the cheaper."""

    def cells(one: Overhead, out: bool) -> tuple[str, ...]:
        times, ratio = one.writing if out else one.returning, one.ratio(out=out)
        told = [f"{times[name].seconds * 1e6:.2f} us" if name in times else "-" for name in (SUBJECT, _TORCH)]
        return (*told, f"{ratio.value:.2f}x" if ratio else "-")

    rows = [(one.problem, *cells(one, False), *cells(one, True)) for one in taken]
    header = ("host time of a call", SUBJECT, _TORCH, "", f"{SUBJECT}, out=", f"{_TORCH}, out=", "")
    notes = ("where torch takes no out=, the last ratio is over its other time",) if any(
        _TORCH in one.returning and _TORCH not in one.writing for one in taken
    ) else ()  # fmt: skip
    return Table(header, tuple(rows), notes)


def measure(
    candidates: Mapping[Name, Callable[[], object]], synchronize: Callable[[], object], batches: int, calls: int
) -> dict[Name, HostTime]:
    """Host time of one call of each candidate. Garbage is collected between the batches, not in them."""
    for call in candidates.values():
        for _ in range(20):
            call()
    samples: dict[Name, list[float]] = {name: [] for name in candidates}
    order, names, collecting = random.Random(0), list(candidates), gc.isenabled()
    gc.disable()
    try:
        for _ in range(batches):
            for name in order.sample(names, len(names)):
                synchronize()
                call = candidates[name]
                start = time.perf_counter()
                for _ in itertools.repeat(None, calls):
                    call()
                samples[name].append((time.perf_counter() - start) / calls)
    finally:
        synchronize()
        if collecting:
            gc.enable()
    return {name: HostTime(*interval(taken)) for name, taken in samples.items()}

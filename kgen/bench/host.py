"""Host overhead: what one warm call costs the CPU, beside torch's own call that writes into a given output."""

from __future__ import annotations

import gc
import itertools
import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from kgen.bench import eager, patterns
from kgen.bench.environment import environment
from kgen.bench.result import SUBJECT, Ratio
from kgen.bench.subject import callable_on_tensors
from kgen.dsl.errors import DeviceError
from kgen.dsl.problem import Problem
from kgen.gpu.target import detect
from kgen.numerics.operands import make_operands
from kgen.tuner.race import interval

#: The schema's name in the JSON.
SCHEMA = "kgen.bench.overhead/1"


@dataclass(frozen=True)
class HostTime:
    """Seconds of host time for one call: the median over batches with its 95% interval."""

    seconds: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Overhead:
    """Host time of a warm call of kgen and of `opponent`, a torch call with out=. `batches` of `calls` were timed."""

    problem: str
    opponent: str
    kgen: HostTime
    torch: HostTime
    batches: int
    calls: int
    environment: Mapping[str, Any]

    @property
    def ratio(self) -> Ratio:
        """torch's time over kgen's: above 1, kgen's call is the cheaper."""
        ours, theirs = self.kgen, self.torch
        return Ratio(theirs.seconds / ours.seconds, theirs.lower / ours.upper, theirs.upper / ours.lower)

    def to_json(self) -> str:
        """As JSON, with its schema's name."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2, allow_nan=False) + "\n"


def overhead(
    operator: Callable[..., Any], problem: Problem, device: int = 0, *, batches: int = 200, calls: int = 100
) -> Overhead:
    """Measures `operator(..., out=)` beside torch.mm(out=) for a product of two matrices, else torch.add(out=).

    Batches alternate, and the GPU is idle when one begins. Keep `calls` below the depth of the launch queue (about 1000):
    then the host never waits for the GPU. The problem should be small all the same. Gradients are not turned off: torch's
    bookkeeping for them is part of what a user pays.
    """
    target = detect(device)
    if target is None:
        raise DeviceError(f"no GPU {device}: the host time of launches is measured on a GPU")
    with torch.cuda.device(device), eager.matmul_precision(problem.graph):
        operands = make_operands(problem, "normal", 0, f"cuda:{device}", guard=0)
        inputs = [operands[o.name] for o in problem.inputs]
        outputs = [operands[o.name] for o in problem.outputs]
        out = outputs[0] if len(outputs) == 1 else tuple(outputs)
        opponent, theirs = _opponent(problem, operands)
        candidates: dict[str, Callable[[], object]] = {
            SUBJECT: partial(callable_on_tensors(operator), *inputs, out=out),
            opponent: theirs,
        }
        times = measure(candidates, partial(torch.cuda.synchronize, device), batches, calls)
    return Overhead(
        str(problem), opponent, times[SUBJECT], times[opponent], batches, calls, environment(device, target)
    )


def measure(
    candidates: Mapping[str, Callable[[], object]], synchronize: Callable[[], object], batches: int, calls: int
) -> dict[str, HostTime]:
    """Host time of one call of each candidate. Garbage is collected between the batches, not in them."""
    for call in candidates.values():
        for _ in range(20):
            call()
    samples: dict[str, list[float]] = {name: [] for name in candidates}
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


def _opponent(problem: Problem, operands: Mapping[str, torch.Tensor]) -> tuple[str, Callable[[], object]]:
    """torch's call with out= that does the like: mm for a product of two matrices, else an addition of the output's size."""
    out = operands[problem.outputs[0].name]
    found = patterns.product(problem.graph)
    if found and out.dim() == 2:
        a, b = (operands[f.name].mT if f.transposed else operands[f.name] for f in (found.a, found.b))
        return "torch.mm(out=)", partial(torch.mm, a, b, out=torch.empty_like(out, dtype=a.dtype))
    x, result = torch.zeros_like(out), torch.empty_like(out)
    return "torch.add(out=)", partial(torch.add, x, x, out=result)

"""Check: whether a participant computes the problem, on the very operands that will be timed.

Results are judged element by element against the float64 reference with the tolerance of the tuner's gate. The outputs are
poisoned first, on a stream that is behind a sleep: a launch on another stream, or one that leaves elements out, shows NaN.

One that draws random numbers of its own is judged by mean and root mean square: see `_judge_alike`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import repeat

import torch

from kgen.bench.opponents import Launch, Operands
from kgen.dsl.problem import Operand, Problem
from kgen.numerics.dtypes import round_to, torch_dtype
from kgen.numerics.operands import poison
from kgen.numerics.reference import evaluate, native
from kgen.numerics.rounding import rounding
from kgen.tuner.verify import allowed_error

#: Elements judged at a time: bounds the memory that judging takes.
_CHUNK = 1 << 24
#: Cycles of the GPU's clock that the sleep lasts, about 2 ms: longer than a launch takes to arrive and run elsewhere.
_SLEEP = 4_000_000


@dataclass(frozen=True)
class Expectation:
    """What one set of operands has to give: by output the reference in float64 (or int64) and torch's own largest error.

    `inputs` are checksums of the inputs; `rounding` gives what is allowed beside where an element is off by more.
    """

    reference: tuple[torch.Tensor, ...]
    native_errors: tuple[float, ...]
    scales: tuple[float, ...]
    inputs: Mapping[str, int]
    rounding: Callable[[], tuple[torch.Tensor, ...]]

    @classmethod
    def of(cls, problem: Problem, operands: Operands, scalars: Mapping[str, float]) -> Expectation:
        reference = evaluate(problem.graph, operands, scalars)
        own = native(problem.graph, operands, scalars)
        errors = tuple(max((_largest(a, b) for a, b in _chunks(x, r)), default=0.0) for x, r in zip(own, reference))
        scales = tuple(math.sqrt(float(_finite(r).square().mean())) for r in reference)
        steps = functools.cache(partial(rounding, problem.graph, operands, scalars))
        return cls(reference, errors, scales, checksums(problem, operands), steps)


@dataclass(frozen=True)
class Verdict:
    """`fault` says what is wrong, "" when all is right; `error` is the largest error as a share of the allowed one."""

    fault: str
    error: float | None


def check(
    problem: Problem,
    launch: Launch,
    sets: Sequence[Operands],
    expected: Sequence[Expectation],
    own_randomness: bool = False,
) -> Verdict:
    """Launches with every set of operands and judges all outputs; stops at the first set that is wrong.

    `own_randomness`: the random numbers of the graph are others here, of the same distribution.
    """
    judge = _judge_alike if own_randomness else _judge
    settle = getattr(launch, "settle", lambda i: None)
    worst = 0.0
    launch(0)  # what the first launch compiles or loads would outlast the sleep
    for i, (operands, expectation) in enumerate(zip(sets, expected)):
        with _apart(operands[problem.inputs[0].name].device, sleep=i == 0):
            for output in problem.outputs:
                poison(operands[output.name])
            launch(i)
            settle(i)
        for k, output in enumerate(problem.outputs):
            verdict = judge(problem, output, k, operands[output.name], expectation)
            if verdict.fault:
                return verdict
            worst = max(worst, verdict.error or 0.0)
    return Verdict("", worst)


def checksums(problem: Problem, operands: Operands) -> dict[str, int]:
    """A sum over the bits of every input, by name: tells whether one was written to."""
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    inputs = {o.name: operands[o.name] for o in problem.inputs}
    return {name: int(x.view(words[x.element_size()]).sum(dtype=torch.int64)) for name, x in inputs.items()}


@contextmanager
def _apart(device: torch.device, sleep: bool) -> Iterator[None]:
    """On a GPU: a stream of its own, which may start with a sleep; everything is waited for at the end."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.synchronize(device)
    with torch.cuda.stream(torch.cuda.Stream(device)):
        if sleep:
            torch.cuda._sleep(_SLEEP)
        yield
    torch.cuda.synchronize(device)


def _misfit(output: Operand, got: torch.Tensor) -> str:
    fits = tuple(got.shape) == output.shape and got.dtype is torch_dtype(output.dtype)
    return "" if fits else f"{output.name} is {got.dtype}{list(got.shape)}; expected {output}"


def _judge_alike(problem: Problem, output: Operand, k: int, got: torch.Tensor, expectation: Expectation) -> Verdict:
    """Mean and root mean square must be the reference's to within six standard errors, and half a per cent for rounding."""
    misfit = _misfit(output, got)
    if misfit:
        return Verdict(misfit, None)
    found, reference, scale = got.double(), expectation.reference[k].double(), expectation.scales[k]
    if not bool(found.isfinite().all()) and bool(reference.isfinite().all()):
        return Verdict(f"{output.name} has elements that are not finite", None)
    squares, count = reference.square(), reference.numel()
    errors = (scale, float(squares.std(correction=0)) / (2 * scale) if scale else 0.0)
    moments = ((float(x.mean()), float(x.square().mean().sqrt())) for x in (found, reference))
    for what, mine, wanted, error in zip(("mean", "root mean square"), *moments, errors):
        room = 6 * error * math.sqrt(2 / count) + 0.005 * scale
        if not abs(mine - wanted) <= room:
            return Verdict(f"{output.name}: the {what} is {mine:.6g}, expected {wanted:.6g} ± {room:.3g}", None)
    return Verdict("", None)


def _judge(problem: Problem, output: Operand, k: int, got: torch.Tensor, expectation: Expectation) -> Verdict:
    misfit = _misfit(output, got)
    if misfit:
        return Verdict(misfit, None)
    verdict = _compare(problem, output, k, got, expectation)
    if verdict.fault:
        verdict = _compare(problem, output, k, got, expectation, expectation.rounding()[k])
    return verdict


def _compare(
    problem: Problem,
    output: Operand,
    k: int,
    got: torch.Tensor,
    expectation: Expectation,
    beside: torch.Tensor | None = None,
) -> Verdict:
    """`beside` is the error, at each element, that is allowed beside the gate's."""
    worst, offset = 0.0, 0
    more: Iterable[torch.Tensor | float] = repeat(0.0) if beside is None else beside.reshape(-1).split(_CHUNK)
    for (part, reference), own in zip(_chunks(got, expectation.reference[k]), more):
        error, scale = expectation.native_errors[k], expectation.scales[k]
        allowed = allowed_error(reference, output.dtype, error, problem, scale) + own
        rounded = round_to(reference, output.dtype).to(reference.dtype)
        part = part.to(reference.dtype)
        difference = (part - reference).abs().double()
        same = (part == rounded) | (part.isnan() & rounded.isnan())
        right = torch.where(rounded.isfinite(), difference <= allowed, same)
        if not bool(right.all()):
            at = int((~right).int().argmax())
            index = [int(n) for n in torch.unravel_index(torch.tensor(offset + at), got.shape)]
            told = f"got {float(part[at]):.9g}, expected {float(reference[at]):.9g} ± {float(allowed[at]):.3g}"
            return Verdict(f"{output.name}{index}: {told}; {int((~right).sum())} elements are wrong", None)
        share = torch.where(rounded.isfinite() & (allowed > 0), difference / allowed, 0.0)
        worst, offset = max(worst, float(share.max())), offset + part.numel()
    return Verdict("", worst)


def _chunks(got: torch.Tensor, reference: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Flat pieces of two tensors of one shape."""
    return zip(got.reshape(-1).split(_CHUNK), reference.reshape(-1).split(_CHUNK))


def _largest(own: torch.Tensor, reference: torch.Tensor) -> float:
    """torch's largest error where its result is finite."""
    own = own.to(reference.dtype)
    error = (own - reference).abs().double()
    return float(torch.where(own.isfinite(), error, 0.0).nan_to_num(0.0).max())


def _finite(reference: torch.Tensor) -> torch.Tensor:
    return torch.where(reference.isfinite(), reference, 0).double()

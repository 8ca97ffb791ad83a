"""run: kgen and its opponents on the same operands in one process, checked first, then timed against each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Union

import torch

from kgen.bench import eager
from kgen.bench.check import Expectation, check, checksums
from kgen.bench.environment import environment
from kgen.bench.opponents import Absent, Launch, Operands, Opponent, load
from kgen.bench.result import SUBJECT, Comparison, Participant, Result, Time
from kgen.bench.subject import subject
from kgen.codegen.render import command_arguments
from kgen.dsl.errors import ArgumentError, DeviceError, KgenError
from kgen.dsl.ops import PRODUCTS
from kgen.dsl.problem import Problem
from kgen.dsl.target import Target
from kgen.gpu import telemetry
from kgen.gpu.target import detect
from kgen.numerics.operands import make_operands, scalar_values
from kgen.tuner.race import Policy, Timing, is_warm, rotation
from kgen.tuner.roofline import floor_seconds, product_flops
from kgen.tuner.timer import Clock, interleaved

#: What stands for the kernel between two calls among the candidates.
_FILLER = "between"

#: Told what is going on: the problem, the step ("operands", "check NAME", "time"), and how many problems are done.
Progress = Callable[[str, str, int], None]


@dataclass(frozen=True)
class Settings:
    """How a benchmark measures. `seed` makes the operands; `policy` says when a median is known well enough.

    `between`: also with a kernel of torch's between any two calls, so that no launch overlaps its like: as most calls are made.
    """

    seed: int = 0
    between: bool = False
    policy: Policy = field(default_factory=lambda: Policy(relative=0.005, absolute=5e-8, least=20, seconds=3.0))


def run(
    operator: Callable[..., Any],
    problems: Sequence[Problem],
    opponents: Sequence[Union[str, Opponent]],
    *,
    device: int | None = 0,
    settings: Settings | None = None,
    progress: Progress | None = None,
    target: Target | None = None,
    clock: Callable[[int], Clock] | None = None,
    adjust: Callable[[Operands], None] | None = None,
) -> Result:
    """Measures `operator`, a definition or a function of torch tensors with out=, against opponents by name.

    `adjust` changes each set of operands in place before it is used, where values are not to be random. `clock` makes the
    timer's clock for a number of operand sets; with one, `device` may be None: then all runs on the CPU, for tests.
    Raises ArgumentError for an unknown opponent or an empty problem, DeviceError without a GPU.
    """
    settings, target = settings or Settings(), target or (None if device is None else detect(device))
    if target is None or (device is None and clock is None):
        raise DeviceError(f"no GPU {device or 0}: a benchmark measures on a GPU, the emulator's times mean nothing")
    empty = [str(problem) for problem in problems if problem.empty]
    if empty or not problems:
        raise ArgumentError(f"nothing to measure: {', '.join(empty) or 'no problem given'}")
    sides = [subject(operator, device, target), *(load(name) if isinstance(name, str) else name for name in opponents)]
    bench = _Bench(sides, device, target, settings, progress or (lambda *told: None), clock, adjust)
    with torch.cuda.device(device) if device is not None else nullcontext(), torch.no_grad():
        comparisons = tuple(bench.compare(problem, done) for done, problem in enumerate(problems))
    graph = problems[0].graph
    return Result(graph.name, graph.digest, environment(device, target), asdict(settings), comparisons)


class _Bench:
    """What stays the same over the problems of a run."""

    def __init__(
        self,
        sides: Sequence[Union[Opponent, Absent]],
        device: int | None,
        target: Target,
        settings: Settings,
        progress: Progress,
        clock: Callable[[int], Clock] | None,
        adjust: Callable[[Operands], None] | None,
    ) -> None:
        self.sides, self.device, self.target, self.settings = sides, device, target, settings
        self.progress, self.clock, self.adjust = progress, clock, adjust or (lambda operands: None)
        self.place = "cpu" if device is None else f"cuda:{device}"

    def compare(self, problem: Problem, done: int) -> Comparison:
        """All participants on one problem."""

        def told(step: str) -> None:
            self.progress(str(problem), step, done)

        told("operands")
        scalars = scalar_values(problem.graph)
        count = self._rotation(problem)
        sets = [make_operands(problem, "normal", self.settings.seed + i, self.place, guard=0) for i in range(count)]
        for operands in sets:
            self.adjust(operands)
        expected = [Expectation.of(problem, operands, scalars) for operands in sets]
        with eager.matmul_precision(problem.graph):
            entered = {}
            for side in self.sides:
                told(f"check {side.name}")
                entered[side.name] = self._enter(side, problem, sets, scalars, expected)
                self._check_inputs(side.name, problem, sets, expected)
            del expected
            launches = {name: launch for name, (_, launch) in entered.items() if launch is not None}
            told("time")
            before = self._telemetry()
            timings = self._time(problem, launches, count) if launches else {}
            alone = self._alone(problem, launches, count) if launches and self.settings.between else {}
            after = self._telemetry()
        participants = tuple(
            replace(_timed(participant, timings.get(name)), alone=alone.get(name))
            for name, (participant, _) in entered.items()
        )
        return Comparison(
            problem=str(problem),
            key=problem.key,
            arguments=command_arguments(problem),
            bytes=problem.bytes,
            flops=flops(problem),
            floor_seconds=floor_seconds(problem, self.target),
            operand_sets=count,
            scalars=scalars,
            telemetry={"before": before, "after": after},
            participants=participants,
        )

    def _rotation(self, problem: Problem) -> int:
        """Sets of operands: three times the L2 together. References in float64 and opponents' own buffers need room too.

        External computations have one: memory does not limit them, their references take seconds, and how long they take is a
        matter of what is in the set.
        """
        if any(node.op == "external" for node in problem.graph.nodes):
            return 1
        free = None
        if self.device is not None:
            torch.cuda.empty_cache()
            free = torch.cuda.mem_get_info(self.device)[0] // 8
            # A set may be larger than what moves of it.
            free = free * problem.bytes // max(1, sum(o.stored_bytes for o in problem.operands))
        return rotation(problem.bytes, self.target.l2_bytes, free)

    def _enter(
        self,
        side: Union[Opponent, Absent],
        problem: Problem,
        sets: Sequence[Operands],
        scalars: Mapping[str, float],
        expected: Sequence[Expectation],
    ) -> tuple[Participant, Launch | None]:
        """A participant before the timing, and its launch where it is right. Each gets sets of its own that share tensors."""
        if isinstance(side, Absent):
            return Participant(side.name, "absent", side.reason), None
        reason = side.why_not(problem)
        if reason:
            return Participant(side.name, "declined", reason), None
        own = [dict(operands) for operands in sets]
        try:
            launch = side.prepare(problem, own, scalars)
            own_randomness = side.name != SUBJECT and eager.is_random(problem.graph)
            verdict = check(problem, launch, own, expected, own_randomness) if side.computes else None
        except (RuntimeError, ValueError, TypeError, KgenError) as error:
            return Participant(side.name, "failed", _first_line(error)), None
        if verdict is not None and verdict.fault:
            return Participant(side.name, "wrong", verdict.fault), None
        error_share = None if verdict is None else verdict.error
        return Participant(side.name, "ok", side.describe(problem), error=error_share), launch

    def _check_inputs(
        self, name: str, problem: Problem, sets: Sequence[Operands], expected: Sequence[Expectation]
    ) -> None:
        """Nobody can be compared any more once a participant has written to the inputs that all share."""
        for operands, expectation in zip(sets, expected):
            now = checksums(problem, operands)
            changed = [operand for operand, before in expectation.inputs.items() if now[operand] != before]
            if changed:
                raise KgenError(f"{name} wrote to its input {changed[0]} of {problem}: no comparison is possible")

    def _time(
        self, problem: Problem, launches: Mapping[str, Launch], count: int, floor: float | None = None
    ) -> Mapping[str, Timing]:
        return interleaved(
            launches,
            sets=count,
            device=self.device or 0,
            policy=self.settings.policy,
            floor_seconds=floor_seconds(problem, self.target) if floor is None else floor,
            race=False,
            warm_l2=is_warm(count, problem.bytes, self.target.l2_bytes),
            seed=self.settings.seed,
            clock=self.clock(count) if self.clock else None,
        )

    def _alone(self, problem: Problem, launches: Mapping[str, Launch], count: int) -> dict[str, Time]:
        """The times with a small kernel after each call, less that of the small kernel by itself."""
        filler = torch.zeros(1, device=self.place)

        def followed(launch: Launch) -> Launch:
            def run(index: int) -> None:
                launch(index)
                filler.add_(1)

            return run

        pairs = {name: followed(launch) for name, launch in launches.items()}
        pairs[_FILLER] = followed(lambda index: None)
        timings = self._time(problem, pairs, count, floor=0.0)
        own = timings[_FILLER]
        return {
            name: replace(
                _time_of(timings[name]),
                seconds=timings[name].seconds - own.seconds,
                lower=timings[name].lower - own.upper,
                upper=timings[name].upper - own.lower,
            )
            for name in launches
        }

    def _telemetry(self) -> dict[str, Any] | None:
        return None if self.device is None else telemetry.sample(self.device).to_dict()


def flops(problem: Problem) -> int:
    """Multiplications and additions of the problem's matrix products; 0 for a problem without any."""
    return round(sum(product_flops(node, problem) for node in problem.graph.nodes if node.op in PRODUCTS))


def _timed(participant: Participant, timing: Timing | None) -> Participant:
    """The participant with its time; one below the roofline did not do its work, or was not timed."""
    if timing is None:
        return participant
    time = _time_of(timing)
    if timing.impossible:
        told = f"{timing.seconds * 1e6:.2f} us is less than the GPU needs for the work"
        return replace(participant, status="impossible", detail=told, time=time)
    return replace(participant, time=time)


def _time_of(t: Timing) -> Time:
    return Time(t.seconds, t.lower, t.upper, t.samples, t.flags, t.discarded, t.clocks)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"

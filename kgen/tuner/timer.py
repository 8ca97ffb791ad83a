"""Timing of candidates against each other: interleaved, cold L2, medians with 95% intervals, losers raced out.

A candidate is any callable that launches its work on torch's current stream for a given set of operands. `interleaved` runs
rounds in which every candidate still in the race gives one sample, in random order (A B B A ...), so that drifting clocks hit
all alike. Sets of operands rotate, enough of them (`rotation`) that none is still in the L2 when its turn comes again. Where
the first candidates' fastest takes less than 50 us, a sample is the mean over a CUDA graph that launches once with every set:
events around a single launch add some 3 us to it.

The GPU waits in a sleep kernel while a batch is queued, so that the host's time to launch stands in no sample. Batches during
which the GPU throttles for heat are discarded and counted; those under a power cap are kept and marked.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import torch

from kgen.dsl.errors import ArgumentError, DeviceError
from kgen.gpu import telemetry
from kgen.tuner.race import Policy, Race, Timing, interval, is_warm, rotation

__all__ = ["Clock", "CudaClock", "Policy", "Timing", "interleaved", "is_warm", "rotation"]

Launch = Callable[[int], object]

#: Below this many seconds a launch is timed as part of a CUDA graph.
GRAPH_BELOW = 50e-6
#: A candidate whose first launches take so many times longer than the fastest one's is not run again in a race.
HOPELESS = 3.0
#: Seconds that a graph's launches take together, at least.
_GRAPH_SECONDS = 300e-6
_GRAPH_NODES = 4096
_THERMAL = {"hw_thermal_slowdown", "sw_thermal_slowdown"}
_CAPPED = {"sw_power_cap", "hw_power_brake_slowdown", "hw_slowdown"}


class Clock(Protocol):
    """What takes samples. `CudaClock` does on a GPU; tests bring one that needs none."""

    def prepare(self, candidates: Mapping[str, Launch]) -> dict[str, float]:
        """Warms up; the rough time of one launch of each candidate in seconds."""

    def batch(self, rounds: Sequence[Sequence[str]]) -> list[dict[str, float]]:
        """One sample in seconds of each candidate named, round by round, in the order given."""

    def state(self) -> telemetry.Sample:
        """Clocks, power and throttling now."""

    def cool(self) -> None:
        """Waits a moment for the GPU to cool down."""

    @property
    def flags(self) -> tuple[str, ...]:
        """What is to be said of every timing."""


def interleaved(
    candidates: Mapping[str, Launch],
    *,
    sets: int,
    device: int = 0,
    policy: Policy | None = None,
    floor_seconds: float = 0.0,
    race: bool = True,
    keep: Collection[str] = (),
    warm_l2: bool = False,
    seed: int = 0,
    clock: Clock | None = None,
) -> dict[str, Timing]:
    """Times candidates against each other on a GPU; the timing of each by name.

    A candidate is called with the index of a set of operands, 0 to `sets` - 1, and launches on torch's current stream.
    With `race`, a candidate that is certainly slower than the best stops early, unless it is in `keep`. A median below
    `floor_seconds` is flagged as impossible. Faults of kernels come up as torch's or kgen's errors.
    """
    if not candidates or sets < 1:
        raise ArgumentError(f"nothing to time: {len(candidates)} candidates, {sets} sets of operands")
    policy = policy or Policy()
    clock = clock or CudaClock(device, sets)
    rough = clock.prepare(candidates)
    bar = HOPELESS * min(rough.values())
    hopeless = {name for name, t in rough.items() if race and t > bar and name not in keep}
    runners = [name for name in candidates if name not in hopeless]
    contest = Race(runners, policy, keep, race)
    order, lost, marks = random.Random(seed), 0, set[str]()

    def batch(names: Sequence[str]) -> list[dict[str, float]]:
        # About 20 ms a batch: long beside telemetry and synchronisation, short beside the GPU's changes of state.
        count = max(1, min(10, int(0.02 / max(sum(rough[name] for name in names), 1e-6))))
        return clock.batch([order.sample(names, len(names)) for _ in range(count)])

    warm = policy.warm if min(rough.values()) >= GRAPH_BELOW else 0.0
    while warm > 0:
        warm -= sum(max(seconds, 1e-6) for samples in batch(runners) for seconds in samples.values())
    states = [clock.state()]
    while names := contest.active():
        taken = batch(names)
        count = len(taken)
        states.append(clock.state())
        held = set(states[-1].throttle or ()) | set(states[-2].throttle or ())
        if held & _THERMAL and lost < 20 * count:
            lost += count
            clock.cool()
            continue
        marks |= ({"thermal"} if held & _THERMAL else set()) | ({"power_capped"} if held & _CAPPED else set())
        for samples in taken:
            contest.add(samples)
    marks |= {"warm_l2"} if warm_l2 else set()
    clocks = _clocks(states)
    result = {}
    for name in candidates:
        taken_by = contest.samples.get(name, [rough[name]])
        median, lower, upper = interval(taken_by)
        own = ({"out_of_race"} if name in contest.out | hopeless else set()) | (
            {"impossible"} if median < floor_seconds else set()
        )
        flags = tuple(sorted({*clock.flags, *marks, *own}))
        result[name] = Timing(median, lower, upper, len(taken_by), flags, lost, clocks)
    return result


def _clocks(states: Sequence[telemetry.Sample]) -> dict[str, float]:
    """Medians over the states of what NVML told."""
    columns: dict[str, list[Any]] = {
        "sm_mhz": [s.sm_clock for s in states],
        "memory_mhz": [s.memory_clock for s in states],
        "power_w": [s.power for s in states],
        "temperature_c": [s.temperature for s in states],
    }
    known = {name: [v for v in values if v is not None] for name, values in columns.items()}
    return {name: float(statistics.median(values)) for name, values in known.items() if values}


class CudaClock:
    """Samples by CUDA events on a stream of its own; by replays of CUDA graphs where launches are short.

    Which of the two is decided once: the times of all candidates that one clock sees can be compared.
    """

    def __init__(self, device: int, sets: int) -> None:
        self.device, self.sets = device, sets
        self.stream = torch.cuda.Stream(device)
        self._next = 0
        self._queueing = 50e-6  # seconds that the host took to queue a launch of the last batch
        self._candidates: Mapping[str, Launch] = {}
        self._graphs: dict[str, tuple[torch.cuda.CUDAGraph, int]] = {}  # with the number of launches in each
        self._rough: dict[str, float] = {}
        self._by_graph: bool | None = None  # None: not decided yet

    @property
    def flags(self) -> tuple[str, ...]:
        return ("graph",) if self._graphs else ()

    def prepare(self, candidates: Mapping[str, Launch]) -> dict[str, float]:
        self._candidates, self._graphs, self._rough = candidates, {}, {}
        self.stream.wait_stream(torch.cuda.default_stream(self.device))
        for name in candidates:
            queueing = self._queueing
            first = self.batch([[name]])[0][name]  # with what a first launch has to load
            self._queueing = min(self._queueing, queueing)
            taken = self.batch([[name]] * (5 if first < 0.05 else 1))
            self._rough[name] = statistics.median(sample[name] for sample in taken)
        if self._by_graph is None:
            self._by_graph = min(self._rough.values()) < GRAPH_BELOW
        return self._rough

    def batch(self, rounds: Sequence[Sequence[str]]) -> list[dict[str, float]]:
        marks: list[tuple[int, str, torch.cuda.Event, torch.cuda.Event]] = []
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            if self._by_graph and len(self._rough) == len(self._candidates):
                self._capture({name for names in rounds for name in names})
            # Two cycles a nanosecond or fewer: the sleep lasts at least as long as the queueing is expected to. A launch that the
            # GPU had to wait for would take as long as the host.
            count = sum(map(len, rounds))
            torch.cuda._sleep(int(min(self._queueing * count * 1.5 + 100e-6, 0.05) * 2e9))
            begin = time.perf_counter()
            for number, names in enumerate(rounds):
                for name in names:
                    start, end = _event(), _event()
                    start.record(self.stream)
                    self._launch(name)
                    end.record(self.stream)
                    marks.append((number, name, start, end))
            self._queueing = (time.perf_counter() - begin) / max(1, count)
            self.stream.synchronize()
        taken: list[dict[str, float]] = [{} for _ in rounds]
        for number, name, start, end in marks:
            launches = self._graphs[name][1] if self._graphs else 1
            taken[number][name] = start.elapsed_time(end) / 1e3 / launches
        return taken

    def _capture(self, names: set[str]) -> None:
        """Makes the graphs of those named that have none. Where one cannot be captured none is used: all are timed alike."""
        for name in sorted(names - set(self._graphs)):
            cycles = max(1, math.ceil(_GRAPH_SECONDS / (max(self._rough[name], 1e-6) * self.sets)))
            launches = self.sets * max(1, min(cycles, _GRAPH_NODES // self.sets))
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                    for i in range(launches):
                        self._candidates[name](i % self.sets)
            except (RuntimeError, DeviceError):
                torch.cuda.synchronize(self.device)  # raises where a kernel has failed, and no capture
                self._graphs, self._by_graph = {}, False
                return
            graph.replay()
            self._graphs[name] = (graph, launches)
        self.stream.synchronize()

    def _launch(self, name: str) -> None:
        if self._graphs:
            self._graphs[name][0].replay()
        else:
            self._candidates[name](self._next)
            self._next = (self._next + 1) % self.sets

    def state(self) -> telemetry.Sample:
        return telemetry.sample(self.device)

    def cool(self) -> None:
        time.sleep(0.5)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)

"""First calls: of a new kind of operands. They choose a config, compile and load; in a warm-up they do not wait for that.

In a warm-up threads compile the kernels while torch's own ops compute the results, as near as torch's kernels would. At its end
all kernels are loaded, so that the calls to come launch at once, in a capture too.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from kgen.runtime import call, deferred, dispatch
from kgen.runtime.dispatch import Choice
from kgen.runtime.plan import Plan
from kgen.runtime.registry import Launchable
from kgen.runtime.report import Met, Report
from kgen.tuner.budget import Budget
from kgen.tuner.pauses import paused


class Opened(Protocol):
    """What says which plan calls of new kinds get."""

    def meet(self, operator: Launchable, key: tuple[Any, ...], chosen: call.Chosen) -> Plan: ...


#: Those that are on, the innermost last. Of the process, not of a thread: backward passes run in threads of torch's.
opened: list[Opened] = []


def first_call(
    operator: Launchable,
    key: tuple[Any, ...],
    operands: Sequence[Any],
    addresses: list[int],
    numbers: Mapping[str, Any],
) -> Any:
    """The results of a call of a new kind, `key`, whose plan is kept: the extension makes such calls from the third on."""
    with paused():
        plan = first_plan(operator, key, operands)  # refuses what is strange
        operator.keep(key, plan)
        return plan(operands, addresses, numbers)


def first_plan(operator: Launchable, key: tuple[Any, ...], operands: Sequence[Any]) -> Plan:
    """The plan of a call of a new kind, `key`: its kernels, or in a warm-up what computes until these are there.

    What is captured in a CUDA graph is launched by kernels always, and noted for tuning where nothing is tuned.
    """
    chosen = call.choose(operator.definition, operator.pinned, operator.restriction, operands)
    captured = is_captured(chosen.device)
    if opened and chosen.launches and not captured and not chosen.short:
        return opened[-1].meet(operator, key, chosen)
    plan = call.load_plan(chosen)
    if captured:
        deferred.note(operator, plan, call.target_of(chosen.device))
    return plan


def is_captured(device: torch.device) -> bool:
    """Whether a call on a device's tensors becomes part of a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class Interim(Plan):
    """A call by torch's own ops, until its kernels are compiled."""

    def __init__(self, chosen: call.Chosen, ready: Future[float]) -> None:
        super().__init__(chosen.problem, chosen.device)
        self.chosen, self.ready = chosen, ready
        self._lock = threading.Lock()
        self._loaded: Plan | None = None

    def loaded(self) -> Plan:
        """The kernels' plan, once they are compiled."""
        with self._lock:
            if self._loaded is None:
                self.ready.result()
                self._loaded = call.load_plan(self.chosen)
            return self._loaded

    def run(
        self, operands: Sequence[Tensor], results: Sequence[Tensor], addresses: list[int], values: tuple[float, ...]
    ) -> None:
        if is_captured(self.device):  # a graph would keep torch's ops
            self.loaded().run(operands, results, addresses, values)
            return
        from kgen.numerics.reference import native  # here: most processes have no warm-up

        graph = self.problem.graph
        tensors = dict(zip([o.name for o in self.problem.operands], (*operands[: self.inputs], *results)))
        try:
            with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
                found = native(graph, tensors, dict(zip([s.name for s in graph.scalars], values)))
                for y, value in zip(results, found):
                    y.copy_(value)
        except (RuntimeError, NotImplementedError):  # what torch has no memory or no kernel for
            self.loaded().run(operands, results, addresses, values)


@dataclass
class _Call:
    """A call that was met: its operator and kind, what computes it for now, and its line of the report."""

    operator: Launchable
    key: tuple[Any, ...]
    plan: Interim
    met: Met


class WarmUp:
    """What one warm-up has met, and the threads that compile it."""

    def __init__(self) -> None:
        self.report = Report()
        self._threads = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="kgen-warm")
        self._calls: list[_Call] = []

    def meet(self, operator: Launchable, key: tuple[Any, ...], chosen: call.Chosen) -> Plan:
        """Has a call's kernels compiled; gives what computes until then."""
        plan = Interim(chosen, self._threads.submit(_compile, chosen))
        self._calls.append(_Call(operator, key, plan, Met(operator.__name__, chosen.problem, choices_of(chosen))))
        return plan

    def load(self) -> None:
        """Waits for all kernels, and has the calls to come launch them."""
        try:
            for one in self._calls:
                start = time.perf_counter()
                one.operator.keep(one.key, one.plan.loaded())
                one.met.seconds = one.plan.ready.result() + time.perf_counter() - start
                self.report.add(one.met)
        except BaseException:
            self.abandon()
            raise
        self._threads.shutdown()

    def abandon(self) -> None:
        """Has the calls to come begin anew."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for one in self._calls:
            one.operator.forget()

    def tune(self, budget: Budget) -> None:
        """Tunes what is not tuned, and loads what was found."""
        from kgen.runtime.tuning import tune_problem  # the tuner and SQLAlchemy

        end = time.perf_counter() + (budget.seconds or math.inf)
        waiting = [met for met in self.report.problems if met.untuned]
        for place, met in enumerate(waiting):
            left = (end - time.perf_counter()) / (len(waiting) - place)
            if left <= 0:
                break
            share = Budget(left, budget.trials) if budget.seconds is not None else budget
            one = next(one for one in self._calls if one.met is met)
            cpu = one.plan.device.type == "cpu"
            met.outcome = tune_problem(
                met.problem,
                budget=share,
                gpu=dispatch.EMULATED if cpu else one.plan.device.index,
                restriction=one.operator.restriction,
            )
        for one in self._calls:
            if one.met.untuned:
                chosen = call.choose_again(one.plan.chosen, one.operator.pinned, one.operator.restriction)
                one.operator.keep(one.key, call.load_plan(chosen))
                one.met.choices = choices_of(chosen)


class _ByTorch:
    """Has torch's own ops compute what is met."""

    def __init__(self) -> None:
        self.operators: list[Launchable] = []

    def meet(self, operator: Launchable, key: tuple[Any, ...], chosen: call.Chosen) -> Plan:
        self.operators.append(operator)
        ready: Future[float] = Future()
        ready.set_result(0.0)
        return Interim(chosen, ready)


@contextlib.contextmanager
def by_torch() -> Iterator[None]:
    """Within it nothing is compiled: torch's own ops compute what operators meet for the first time."""
    made = _ByTorch()
    opened.append(made)
    try:
        yield
    finally:
        opened.remove(made)
        for operator in made.operators:
            operator.forget()


def choices_of(chosen: call.Chosen) -> tuple[Choice, ...]:
    """The configs of a call's launches, and how they were found."""
    return tuple(launch.choice for launch in chosen.launches)


def _compile(chosen: call.Chosen) -> float:
    """Compiles a call's kernels; the seconds it took."""
    start = time.perf_counter()
    call.compile_ahead(chosen)
    return time.perf_counter() - start

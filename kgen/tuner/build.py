"""Build: configs to binaries, several at a time, in threads: NVRTC does not hold Python's lock.

The threads are daemons and their number is made up when one does not come back: a compiler that has lost itself in a kernel
cannot be stopped, but it must not stop the tuner either.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from dataclasses import dataclass

from kgen.codegen.source import Source
from kgen.dsl.errors import CompileError
from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.gpu.binary import Binary
from kgen.gpu.cache import CubinCache
from kgen.gpu.compile import compile as nvrtc
from kgen.tuner.variants import Variant, variants

#: Seconds after which a compilation is given up.
COMPILE_LIMIT = 60.0


@dataclass(frozen=True)
class Built:
    """What became of compiling a config: `binary`, or `status` (compile_error, rejected, timeout) with the `reason`.

    `variants` are small problems that the binary can be run on as well; none where they were not asked for.
    """

    config: Schedule
    source: Source
    binary: Binary | None
    variants: tuple[Variant, ...] = ()
    status: str = "ok"
    reason: str = ""


def build(
    config: Schedule, problem: NormalProblem, target: Target, cache: CubinCache | None, with_variants: bool = False
) -> Built:
    """Renders and compiles a config. Builds with spills of note or warnings that spoil a kernel are rejected."""
    source = config.source(problem)
    try:
        binary = nvrtc(source, target.arch, cache=cache)
    except CompileError as error:
        return Built(config, source, None, (), "compile_error", f"{error}\n{error.log}"[:4000])
    if binary.fatal_warnings:
        return Built(config, source, binary, (), "rejected", "; ".join(binary.fatal_warnings)[:4000])
    found = variants(config, problem, target, same_source=True) if with_variants else ()
    return Built(config, source, binary, found)


def cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2


class Builders:
    """A few threads that build configs. `free` says how many more may be submitted without piling up.

    `spared` cores are left to others: to the thread that times, where there is one.
    """

    def __init__(
        self,
        problem: NormalProblem,
        target: Target,
        cache: CubinCache | None,
        with_variants: bool = False,
        spared: int = 1,
    ) -> None:
        self.problem, self.target, self.cache, self.with_variants = problem, target, cache, with_variants
        self.threads = max(1, cores() - spared)
        self._waiting: queue.SimpleQueue[Schedule | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Built | BaseException] = queue.SimpleQueue()
        self._pending: dict[Schedule, float] = {}  # submitted and not yet returned, with the time its build began
        self._running: list[threading.Thread] = []
        for _ in range(self.threads):
            self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, daemon=True, name="kgen-build")
        self._running.append(thread)
        thread.start()

    def _work(self) -> None:
        while (config := self._waiting.get()) is not None:
            self._pending[config] = time.monotonic()
            try:
                self._done.put(build(config, self.problem, self.target, self.cache, self.with_variants))
            except BaseException as error:
                self._done.put(error)

    @property
    def pending(self) -> int:
        """How many submitted configs were not returned yet."""
        return len(self._pending)

    @property
    def free(self) -> int:
        """How many configs may be submitted: twice the threads are kept in hand."""
        return max(0, 2 * self.threads - self.pending)

    def submit(self, config: Schedule) -> None:
        """Has a config built."""
        self._pending[config] = float("inf")
        self._waiting.put(config)

    def next(self, wait: float) -> Built | None:
        """A finished build, or None after `wait` seconds without one. What a build raised beyond CompileError is raised."""
        try:
            done = self._done.get(timeout=max(wait, 0.0))
        except queue.Empty:
            return self._lost()
        if isinstance(done, BaseException):
            raise done
        if self._pending.pop(done.config, None) is None:
            return None  # given up before
        return done

    def _lost(self) -> Built | None:
        """A build that has taken too long, given up."""
        now = time.monotonic()
        for config, begun in self._pending.items():
            if now - begun > COMPILE_LIMIT:
                del self._pending[config]
                self._start()
                source = config.source(self.problem)
                return Built(config, source, None, (), "timeout", f"compiling took more than {COMPILE_LIMIT:g} s")
        return None

    def close(self, wait: float = 0.0) -> None:
        """Drops what waits and ends the threads; waits up to so many seconds for what they have begun."""
        while not self._waiting.empty():
            with contextlib.suppress(queue.Empty):
                self._waiting.get_nowait()
        for _ in self._running:
            self._waiting.put(None)
        deadline = time.monotonic() + wait
        for thread in self._running:
            thread.join(max(0.0, deadline - time.monotonic()))

"""Supervisor: the tuner's side of the worker process. It starts it, waits with a limit, kills it and starts another.

The worker is a process of its own and no thread or fork: a hanging kernel can only be got rid of together with its process.
It is started as a program, not by multiprocessing, so that the user's main module is not run again in it.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TypeVar

from kgen.dsl.errors import DeviceError
from kgen.tuner.protocol import (
    STICKY,
    Close,
    Done,
    Failed,
    Job,
    Load,
    Measure,
    Measured,
    Open,
    Reply,
    Request,
    Unload,
    Verified,
)
from kgen.tuner.race import Policy, Timing

R = TypeVar("R", Done, Verified, Measured)

#: A worker's process, and the tuner's end of its pipe.
WorkerProcess = tuple[subprocess.Popen[bytes], Connection]

#: Seconds that a reply may take: for the start with the references, for verifying one kernel, for timing.
START_LIMIT, LOAD_LIMIT, MEASURE_LIMIT = 300.0, 30.0, 120.0
WORKER = (sys.executable, "-m", "kgen.tuner.worker")


#: Seconds for which `KEPT` keeps a worker.
LINGER = 20.0


class IdleWorkers:
    """Where one tuning leaves its worker to the next: starting one, with torch and a context, takes seconds.

    A worker that nobody has taken is ended after `linger` seconds; without, by `close`. It is taken by those alone whose
    command and environment are those it was started with.
    """

    def __init__(self, linger: float = math.inf) -> None:
        self._linger = linger
        self._lock = threading.Lock()
        self._idle: list[tuple[float, object, WorkerProcess]] = []  # each with its end, by time.monotonic

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, key: object) -> WorkerProcess | None:
        """A worker that was left with an equal key, if there is one."""
        with self._lock:
            for i, (_, left, worker) in enumerate(self._idle):
                if left == key:
                    del self._idle[i]
                    return worker
        return None

    def leave(self, key: object, worker: WorkerProcess) -> None:
        """Keeps a worker for the next."""
        with self._lock:
            self._idle.append((time.monotonic() + self._linger, key, worker))
        if self._linger < math.inf:
            timer = threading.Timer(self._linger, self._drop, (False,))
            timer.daemon = True
            timer.start()

    def close(self) -> None:
        """Ends all that are idle."""
        self._drop(True)

    def _drop(self, early: bool) -> None:
        now = math.inf if early else time.monotonic()
        with self._lock:
            gone = [worker for end, _, worker in self._idle if end <= now]
            self._idle = [entry for entry in self._idle if entry[0] > now]
        for process, connection in gone:
            _end(process, connection)


#: Of calls of `kgen.tune` that follow one another in a process.
KEPT = IdleWorkers(LINGER)
atexit.register(KEPT.close)


@contextlib.contextmanager
def idle_workers() -> Iterator[IdleWorkers]:
    """Workers that are left to the next tuning until the block ends."""
    idle = IdleWorkers()
    try:
        yield idle
    finally:
        idle.close()


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    process.kill()
    process.wait()
    connection.close()


class WorkerLost(Exception):
    """The worker failed at a request. `status` is that of the trial: crashed or timeout."""

    def __init__(self, status: str, evidence: dict[str, object]) -> None:
        super().__init__(f"{status}: {evidence}")
        self.status, self.evidence = status, evidence


class Supervisor:
    """One worker for one problem on one GPU. `command` starts it; the file descriptor of its pipe is appended.

    With `idle` it takes a worker from there if there is one, and leaves it there, without memory of the GPU's but that of its
    context, when it is done.
    """

    def __init__(
        self,
        opening: Open,
        command: Sequence[str] = WORKER,
        limits: tuple[float, float, float] = (START_LIMIT, LOAD_LIMIT, MEASURE_LIMIT),
        idle: IdleWorkers | None = None,
    ) -> None:
        self.opening, self.command, self.idle = opening, tuple(command), idle
        self.start_limit, self.load_limit, self.measure_limit = limits
        self.has_opponent = False
        self.restarts = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._loaded: set[str] = set()
        self._opened = False
        self._key: object = None

    def start(self) -> None:
        """Starts the process without waiting until it is ready."""
        if self._process is not None:
            return
        self._loaded.clear()
        self._opened = False
        self.restarts += 1
        path = os.pathsep.join(entry for entry in sys.path if entry)
        environment = {**os.environ, "PYTHONPATH": path}
        # A process that was forked has no workers of its own yet.
        self._key = (self.command, environment, os.getpid())
        kept = self.idle.take(self._key) if self.idle is not None else None
        if kept is not None:
            self._process, self._connection = kept
            try:
                self._connection.send(self.opening)
                return
            except OSError:  # it has ended meanwhile
                _end(self._process, self._connection)
        ours, theirs = Pipe()
        self._process = subprocess.Popen(
            [*self.command, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # the tuner's own output is for results
            env=environment,
            start_new_session=True,
        )
        theirs.close()
        self._connection = ours
        ours.send(self.opening)

    def _ready(self) -> Connection:
        """The connection to a worker that has answered to Open."""
        self.start()
        assert self._connection is not None
        if not self._opened:
            try:
                reply = self._receive(self.start_limit)
            except WorkerLost as lost:
                raise DeviceError(f"the tuner's worker does not start: {lost}") from lost
            if isinstance(reply, Failed):
                self.kill()
                raise DeviceError(f"the tuner's worker cannot prepare the problem: {reply.message}", reply.code)
            self.has_opponent = isinstance(reply, Done) and reply.opponent
            self._opened = True
        return self._connection

    def load(self, job: Job, patience: float | None = None, briefly: bool = False) -> Verified:
        """Loads and verifies a kernel; see `Load`. WorkerLost where it crashed or hung."""
        verdict = self._ask(Load(job, patience=patience, briefly=briefly), self.load_limit, Verified)
        if verdict.ok:
            self._loaded.add(job.name)
        return verdict

    def measure(
        self,
        jobs: Iterable[Job],
        policy: Policy,
        floor_seconds: float,
        keep: tuple[str, ...] = (),
        race: bool = True,
        extra: tuple[str, ...] = (),
        early: bool = False,
    ) -> dict[str, Timing]:
        """Times kernels that were verified, against each other and `extra` (names the worker knows by itself); see `Measure`."""
        names = []
        for job in jobs:
            names.append(job.name)
            if job.name not in self._loaded:  # a new worker
                self._ask(Load(job, verify=False), self.load_limit, Verified)
                self._loaded.add(job.name)
        request = Measure((*names, *extra), policy, floor_seconds, keep, race, early)
        return dict(self._ask(request, self.measure_limit, Measured).timings)

    def unload(self, name: str) -> None:
        """Lets the worker forget a kernel."""
        if name in self._loaded:
            self._loaded.discard(name)
            self._ask(Unload((name,)), self.load_limit, Done)

    def _ask(self, request: Request, limit: float, expected: type[R]) -> R:
        connection = self._ready()
        try:
            connection.send(request)
        except OSError:
            self._lost()
        reply = self._receive(limit)
        if isinstance(reply, Failed):
            if reply.poisoned:
                self.kill()
            evidence: dict[str, object] = {"message": reply.message, "code": reply.code}
            raise WorkerLost("timeout" if reply.code == 702 else "crashed", evidence | _meaning(reply.code))
        assert isinstance(reply, expected), f"the worker answered {reply!r} to {type(request).__name__}"
        return reply

    def _receive(self, limit: float) -> Reply:
        assert self._connection is not None
        if not self._connection.poll(limit):
            self.kill()
            raise WorkerLost(
                "timeout", {"seconds": limit, "message": f"no answer within {limit:g} s; the worker was killed"}
            )
        try:
            reply: Reply = self._connection.recv()
            return reply
        except (EOFError, OSError):
            self._lost()
            raise AssertionError("unreachable") from None

    def _lost(self) -> None:
        """Raises WorkerLost for a worker that has ended by itself."""
        code = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(5)
        self.kill()
        raise WorkerLost("crashed", {"exit_code": code, "message": f"the worker ended with code {code}"})

    def kill(self) -> None:
        """Ends the worker at once. The next request starts another."""
        if self._process is not None and self._connection is not None:
            _end(self._process, self._connection)
        self._process = self._connection = None
        self._loaded.clear()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed is None and self.idle is not None and self._opened and self._process:
            with contextlib.suppress(WorkerLost):
                self._ask(Close(), self.load_limit, Done)
            if self._process and self._connection:
                self.idle.leave(self._key, (self._process, self._connection))
                self._process = self._connection = None
        self.kill()


def _meaning(code: int | None) -> dict[str, object]:
    return {"meaning": STICKY[code]} if code in STICKY else {}

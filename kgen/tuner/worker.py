"""The worker process: everything the tuner does on a GPU. Started by `supervisor.py` as `python -m kgen.tuner.worker FD`.

It may crash or be killed at any moment: it holds nothing that is not made again from the requests. It ends when the tuner
does, seen by the end of the pipe or, while a kernel hangs, by the parent's id.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

from kgen.dsl.errors import DeviceError, KgenError
from kgen.dsl.problem import Problem
from kgen.gpu.kernel import load
from kgen.numerics.dtypes import torch_dtype
from kgen.numerics.operands import make_operands, scalar_values
from kgen.tuner.execute import Runner
from kgen.tuner.protocol import (
    OPPONENT,
    Close,
    Done,
    Failed,
    Load,
    Measure,
    Measured,
    Open,
    Reply,
    Request,
    Verified,
)
from kgen.tuner.timer import CudaClock, interleaved, is_warm, rotation
from kgen.tuner.verify import GPU_REPEATS, VARIANT_REPEATS, Gate


class Session:
    """One problem on one GPU: its gates, the operands for timing, the kernels loaded."""

    def __init__(self, request: Open) -> None:
        self.problem, self.device, self.seed = request.problem, request.device, request.seed
        if not torch.cuda.is_available():
            raise DeviceError(f"torch {torch.__version__} sees no GPU; measuring needs a build of torch with CUDA")
        torch.cuda.set_device(self.device)
        self._gates: dict[str, Gate] = {}
        self.gate(self.problem)
        torch.cuda.empty_cache()
        size = sum(o.elements * o.dtype.bytes for o in self.problem.operands)
        count = rotation(size, request.l2_bytes, torch.cuda.mem_get_info(self.device)[0])
        self.sets = [make_operands(self.problem, "normal", i, f"cuda:{self.device}", guard=0) for i in range(count)]
        self.scalars = scalar_values(self.problem.graph)
        self.warm_l2 = is_warm(count, size, request.l2_bytes)
        self.clock = CudaClock(self.device, count)
        self.opponent = opponent(self.problem, self.sets)
        self.runners: dict[str, Runner] = {}

    def gate(self, problem: Problem) -> Gate:
        """The gate of a problem; one for each is kept."""
        if problem.key not in self._gates:
            self._gates[problem.key] = Gate(problem, f"cuda:{self.device}", self.seed)
        return self._gates[problem.key]

    def load(self, request: Load) -> Verified:
        """Loads and verifies, small cases first; the case that fails is named in the evidence."""
        job = request.job
        kernel = load(job.binary, job.source, self.device)
        evidence: dict[str, object] = {}
        for case in (*job.cases[1:], job.cases[0]) if request.verify else ():
            runner = Runner(kernel, job.source, case.symbols)
            repeats = VARIANT_REPEATS if case is not job.cases[0] or request.briefly else GPU_REPEATS
            verdict = self.gate(case.problem).check(runner, repeats, request.patience)
            if not verdict.ok:
                kernel.close()
                return Verified(False, {"problem": str(case.problem.key), **verdict.evidence})
            evidence = verdict.evidence
        self.runners[job.name] = Runner(kernel, job.source, job.cases[0].symbols)
        return Verified(True, evidence | {"cases": len(job.cases)})

    def measure(self, request: Measure) -> Measured:
        """Times loaded kernels, and the opponent where its name is among them."""
        candidates = {name: self._launcher(name, request.early) for name in request.names}
        timings = interleaved(
            candidates,
            sets=len(self.sets),
            device=self.device,
            policy=request.policy,
            floor_seconds=request.floor_seconds,
            race=request.race,
            keep=request.keep,
            warm_l2=self.warm_l2,
            seed=self.seed,
            clock=self.clock,
        )
        return Measured(timings)

    def _launcher(self, name: str, early: bool) -> Callable[[int], object]:
        if name == OPPONENT:
            assert self.opponent is not None, "the opponent was asked for but there is none"
            return self.opponent
        prepared = [self.runners[name].prepare(tensors, self.scalars, early=early) for tensors in self.sets]
        device = torch.device("cuda", self.device)
        return lambda index: prepared[index](stream=torch.cuda.current_stream(device).cuda_stream)

    def close(self) -> None:
        """Frees all kernels."""
        self.unload(tuple(self.runners))

    def unload(self, names: tuple[str, ...]) -> None:
        """Frees kernels that are of no more use."""
        for name in names:
            runner = self.runners.pop(name, None)
            if runner:
                runner.close()


def opponent(problem: Problem, sets: list[dict[str, torch.Tensor]]) -> Callable[[int], object] | None:
    """torch.matmul into the output where the problem is nothing but a product of one dtype; None for others."""
    graph = problem.graph
    (result, *rest) = graph.results
    dtypes = {torch_dtype(o.dtype) for o in problem.operands}
    kinds = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    if rest or result.op != "matmul" or len(dtypes) != 1 or not dtypes <= kinds:
        return None
    transposed = [a.op == "transpose" for a in result.args]
    leaves = [a.args[0] if t else a for a, t in zip(result.args, transposed)]
    if any(leaf.op != "input" for leaf in leaves):
        return None
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_tf32 = leaves[0].dtype.name == "tf32"
    views = []
    for tensors in sets:
        left, right = (tensors[leaf.attr].mT if t else tensors[leaf.attr] for leaf, t in zip(leaves, transposed))
        views.append((left, right, tensors[graph.outputs[0].name]))

    def launch(index: int) -> object:
        left, right, out = views[index]
        return torch.matmul(left, right, out=out)

    return launch


class Worker:
    """Answers requests, one after another."""

    def __init__(self) -> None:
        self.session: Session | None = None

    def answer(self, request: Request) -> Reply:
        """The reply to a request; whatever is raised becomes Failed."""
        try:
            if isinstance(request, (Open, Close)) and self.session is not None:
                self.session.close()
                self.session = None
                torch.cuda.empty_cache()
            if isinstance(request, Close):
                return Done()
            if isinstance(request, Open):
                self.session = Session(request)
                return Done(self.session.opponent is not None)
            assert self.session is not None, "a worker is opened before it is used"
            if isinstance(request, Load):
                return self.session.load(request)
            if isinstance(request, Measure):
                return self.session.measure(request)
            self.session.unload(request.names)
            return Done()
        except DeviceError as error:
            return Failed(str(error), error.code)
        except KgenError as error:
            return Failed(f"{type(error).__name__}: {error}", self._fault())
        except Exception as error:  # the other process learns of it, whatever it is
            return Failed(f"{type(error).__name__}: {str(error)[:2000]}", self._fault())

    def _fault(self) -> int | None:
        """The CUresult of the GPU's context where it is lost, so that torch's errors are told by number as well."""
        try:
            for runner in self.session.runners.values() if self.session else ():
                runner.synchronize()
            torch.cuda.synchronize()
        except DeviceError as error:
            return error.code
        except RuntimeError as error:
            # torch.AcceleratorError carries the runtime's number, which for faults is the driver's.
            return int(getattr(error, "error_code", 999))
        return None


def serve(connection: Connection, answer: Callable[[Request], Reply]) -> None:
    """Reads requests and sends replies until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the tuner's to handle
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    while True:
        try:
            request: Request = connection.recv()
        except (EOFError, OSError):
            return
        connection.send(answer(request))


def _end_with(parent: int) -> None:
    """Ends the process soon after its parent, even while a kernel hangs."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), Worker().answer)
    os._exit(0)  # without the destructors that a lost context would make fail

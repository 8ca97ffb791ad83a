"""The tuner on a real GPU: the gate, the timer, the worker that crashes and hangs, and whole searches."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kgen.codegen.source import Source
from kgen.dsl.family import family_of
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.size import dims
from kgen.dsl.target import Target
from kgen.dsl.types import f16, f32
from kgen.gpu import driver
from kgen.gpu.cache import CubinCache
from kgen.gpu.compile import compile
from kgen.gpu.kernel import load
from kgen.gpu.target import resolve
from kgen.numerics.operands import make_operands
from kgen.ops import operators
from kgen.ops.elementwise import Elementwise
from kgen.tuner.budget import Budget
from kgen.tuner.execute import Runner
from kgen.tuner.protocol import Case, Job, Open
from kgen.tuner.race import Policy, rotation
from kgen.tuner.ragged import ragged, symbols
from kgen.tuner.roofline import floor_seconds
from kgen.tuner.supervisor import Supervisor, WorkerLost
from kgen.tuner.timer import GRAPH_BELOW, CudaClock, interleaved
from kgen.tuner.tune import tune
from kgen.tuner.verify import GPU_REPEATS, verify
from kgen.tuning_db import Store, open_store

pytestmark = pytest.mark.skipif(
    driver.device_count() == 0 or not torch.cuda.is_available(), reason="needs a GPU and a torch with CUDA"
)

(N,) = dims("N")


def double_and_add(x: Tensor[f32, N], y: Tensor[f32, N]) -> Tensor[f32, N]:
    return 2.0 * x + y


GRAPH = Operator(double_and_add).graphs[0]


@pytest.fixture(scope="module")
def target() -> Target:
    return resolve("auto")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "tuning.sqlite") as opened:
        yield opened


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> CubinCache:
    return CubinCache(tmp_path_factory.mktemp("cubins") / "private")


def problem_of(name: str, sizes: dict[str, object], **dtypes: object) -> Problem:
    graph = operators()[name].graph(dtypes)  # type: ignore[arg-type]
    return family_of(graph).normalise(Problem.dense(graph, sizes))  # type: ignore[arg-type]


def sample_problem(size: int = 100_003) -> Problem:
    return family_of(GRAPH).normalise(Problem.dense(GRAPH, {"N": size}))


def job_of(problem: Problem, target: Target, store_line: str | None = None, name: str = "job") -> Job:
    """The default config's kernel, with `store_line` as a statement at its start where given."""
    config = Elementwise.default(problem, target)
    source = config.source(problem)
    if store_line is not None:
        opening = source.body.index("{", source.body.index(f" {source.entry}(")) + 1
        source = dataclasses.replace(source, body=source.body[:opening] + f"\n  {store_line}\n" + source.body[opening:])
    cases = [Case(problem, symbols(config, problem, target.sm_count))]
    return Job(name, source, compile(source, target.arch), tuple(cases))


def runner_of(source: Source, problem: Problem, target: Target, config: Elementwise) -> Runner:
    return Runner(load(compile(source, target.arch), source), source, symbols(config, problem, target.sm_count))


@pytest.mark.parametrize("name", ["gelu", "add", "silu"])
def test_right_kernels_pass_the_gate(name: str, target: Target) -> None:
    problem = problem_of(name, {"...": (3, 1001)})
    config = Elementwise.default(problem, target)
    verdict = verify(runner_of(config.source(problem), problem, target, config), problem, device="cuda")
    assert verdict.ok, verdict.evidence
    assert verdict.evidence["repeats"] == GPU_REPEATS


def test_a_gemm_passes_on_its_ragged_variant_with_the_same_binary(target: Target) -> None:
    problem = problem_of("hgemm", {"M": 512, "N": 512, "K": 512}, a=f16)
    config = family_of(problem.graph).schedules[0].default(problem, target)
    source = config.source(problem)
    kernel = load(compile(source, target.arch), source)
    variant = ragged(config, problem, target, same_source=True)
    assert variant is not None
    for case in (problem, variant):
        verdict = verify(Runner(kernel, source, symbols(config, case, target.sm_count)), case, device="cuda")
        assert verdict.ok, verdict.evidence
        assert verdict.evidence["exact"] is True


@pytest.mark.parametrize(
    ("line", "check"),
    [
        ("if (blockIdx.x == 0 && threadIdx.x == 0) out[n0 + 3] = 0.0f;", "guards"),
        ("if (blockIdx.x == 0 && threadIdx.x == 0) out[-1] = 0.0f;", "guards"),
        ("if (blockIdx.x == gridDim.x - 1) return;", "exact"),
    ],
)
def test_wrong_kernels_do_not_pass(line: str, check: str, target: Target) -> None:
    problem = sample_problem()
    job = job_of(problem, target, line)
    runner = Runner(load(job.binary, job.source), job.source, job.cases[0].symbols)
    verdict = verify(runner, problem, device="cuda")
    assert not verdict.ok
    assert verdict.evidence["check"] == check


def test_a_kernel_is_worth_its_bytes(target: Target) -> None:
    """Copies of 1, 2 and 4 times a size beyond the L2: times in proportion, below the bandwidth, all within a few percent."""
    count = max(64 << 20, 4 * target.l2_bytes) // 4
    buffers = [torch.randn(4 * count, device="cuda") for _ in range(2)]
    outputs = [torch.empty_like(b) for b in buffers]

    def copy(times: int):
        return lambda index: outputs[index][: times * count].copy_(buffers[index][: times * count])

    timings = interleaved({"one": copy(1), "two": copy(2), "four": copy(4)}, sets=2, race=False)
    floor = 2 * 4 * count / target.bandwidth
    for name, times in {"one": 1, "two": 2, "four": 4}.items():
        assert timings[name].seconds > 0.9 * times * floor
        assert (
            timings[name].upper - timings[name].lower <= 2 * max(0.01 * timings[name].seconds, 0.5e-6)
            or timings[name].samples >= 1000
        )
    assert timings["four"].seconds / timings["two"].seconds == pytest.approx(2, rel=0.1)
    assert "sm_mhz" in timings["one"].clocks


def test_short_kernels_are_timed_in_graphs(target: Target) -> None:
    """A small kernel's time from a graph lies below what its launches would take one by one, and above nothing."""
    size = 1 << 18
    sets = rotation(2 * 4 * size, target.l2_bytes)
    xs = [torch.randn(size, device="cuda") for _ in range(sets)]
    outs = [torch.empty_like(x) for x in xs]
    timings = interleaved(
        {
            "small": lambda i: torch.mul(xs[i], 2.0, out=outs[i]),
            "twice": lambda i: [torch.mul(xs[i], 2.0, out=outs[i]) for _ in "ab"],
        },
        sets=sets,
        race=False,
    )
    assert all("graph" in t.flags for t in timings.values())
    assert 0.5e-6 < timings["small"].seconds < 20e-6
    assert 1.2 < timings["twice"].seconds / timings["small"].seconds < 2.5
    assert all(torch.equal(out, 2 * x) for x, out in zip(xs, outs))


def test_one_clock_times_all_that_it_sees_alike() -> None:
    clock, x, y = CudaClock(0, 1), torch.randn(1024, device="cuda"), torch.randn(1 << 26, device="cuda")
    policy = Policy(most=20)
    short = interleaved({"short": lambda i: x.mul_(1.0)}, sets=1, policy=policy, clock=clock)["short"]
    long = interleaved({"long": lambda i: y.mul_(1.0)}, sets=1, policy=policy, clock=clock)["long"]
    assert short.seconds < GRAPH_BELOW < long.seconds
    assert "graph" in short.flags
    assert "graph" in long.flags


def test_what_cannot_be_captured_is_timed_without_a_graph() -> None:
    x = torch.randn(1024, device="cuda")
    timings = interleaved({"synchronising": lambda i: x.sum().item()}, sets=1, policy=Policy(most=20))
    assert "graph" not in timings["synchronising"].flags
    assert timings["synchronising"].seconds > 0
    assert float(x.sum()) == float(x.sum())  # the GPU is in order


@pytest.mark.skipif(
    os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") != "1", reason="other workers of pytest use the same GPU"
)
def test_times_of_a_run_repeat(target: Target) -> None:
    """Two timings of one kernel, minutes of nothing between them, agree within a few percent."""
    problem = problem_of("gelu", {"...": (2**25,)})
    config = Elementwise.default(problem, target)
    runner = runner_of(config.source(problem), problem, target, config)
    sets = [make_operands(problem, seed=i, device="cuda", guard=0) for i in range(3)]
    prepared = [runner.prepare(tensors, {}) for tensors in sets]
    launch = {"kernel": lambda i: prepared[i](stream=torch.cuda.current_stream().cuda_stream)}
    first, second = (interleaved(launch, sets=3, floor_seconds=floor_seconds(problem, target))["kernel"] for _ in "ab")
    assert not first.impossible
    assert first.seconds == pytest.approx(second.seconds, rel=0.05)


def test_a_crash_ends_the_worker_and_the_next_job_runs(target: Target) -> None:
    problem = sample_problem()
    with Supervisor(Open(problem, 0, target.l2_bytes, 0)) as worker:
        assert worker.load(job_of(problem, target, name="good")).ok
        crashing = job_of(problem, target, "out[1LL << 44] = 0.0f;", "crash")
        with pytest.raises(WorkerLost) as lost:
            worker.load(crashing)
        assert lost.value.status == "crashed"
        assert lost.value.evidence["code"] in (700, 717, 719)
        good = job_of(problem, target, name="good")
        timings = worker.measure([good], Policy(), 0.0)  # loads it again in the new process
        assert timings["good"].seconds > 0
        assert worker.restarts == 1


def test_a_hang_is_killed_and_the_next_job_runs(target: Target) -> None:
    problem = sample_problem()
    hanging = job_of(
        problem,
        target,
        "while (*reinterpret_cast<const volatile float*>(x) == *reinterpret_cast<const volatile float*>(x)) {}",
        "hang",
    )
    with Supervisor(Open(problem, 0, target.l2_bytes, 0), limits=(120, 5, 60)) as worker:
        with pytest.raises(WorkerLost) as lost:
            worker.load(hanging)
        assert lost.value.status == "timeout"
        assert worker.load(job_of(problem, target, name="good")).ok


def test_tuning_an_elementwise_operator(target: Target, store: Store, cubins: CubinCache) -> None:
    problem = problem_of("gelu", {"...": (2**24,)})
    outcome = tune(problem, target=target, store=store, device=0, budget=Budget(trials=24), cache=cubins)
    assert outcome.measured
    assert outcome.trials == 24
    assert outcome.counts["ok"] >= 20
    assert outcome.trial.lower <= outcome.trial.seconds <= outcome.trial.upper
    assert outcome.trial.seconds > floor_seconds(problem, target)
    assert outcome.comparison["speedup_over_default"] > 0.97
    again = tune(problem, target=target, store=store, device=0, budget=Budget(trials=24), cache=cubins)
    assert again.cached
    assert again.elapsed < 1
    assert again.config == outcome.config


def test_tuning_a_gemm_is_compared_with_torch(target: Target, store: Store, cubins: CubinCache) -> None:
    problem = problem_of("hgemm", {"M": 1024, "N": 1024, "K": 1024}, a=f16)
    outcome = tune(problem, target=target, store=store, device=0, budget=Budget(seconds=30), cache=cubins)
    assert outcome.measured
    assert outcome.comparison["opponent"]["name"] == "torch.matmul"
    assert outcome.comparison["opponent"]["seconds"] > floor_seconds(problem, target)
    assert isinstance(outcome.comparison["beats_opponent"], bool)
    assert outcome.elapsed < 60

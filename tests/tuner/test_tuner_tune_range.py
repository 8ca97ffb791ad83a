"""tune_range end to end with a pretended GPU behind a real worker process: searched, timed beside each other, checked, stored."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tuner_runs import FAKE
from tuner_samples import problem_of

from kgen.dsl.errors import ArgumentError
from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule
from kgen.dsl.span import Span
from kgen.dsl.target import Target
from kgen.gpu.cache import CubinCache
from kgen.tuner import build as builds
from kgen.tuner import range_bench
from kgen.tuner.budget import Budget
from kgen.tuner.build import Built
from kgen.tuner.candidates import Candidates
from kgen.tuner.division import Bucket, Point
from kgen.tuner.measured import Measured
from kgen.tuner.outcome import Outcome
from kgen.tuner.progress import Silent
from kgen.tuner.range_bench import RangeBench
from kgen.tuner.records import gpu_facts, problem_key, read_config
from kgen.tuner.run import Run
from kgen.tuner.supervisor import Supervisor
from kgen.tuner.tune_range import WORST, Axes, is_stored, parts, portfolio, tune_range
from kgen.tuning_db import MEASURED, MODELLED, Store, buckets_of

SPANS = [Span.parse("65536..67108864:8")]
Make = Callable[..., RangeBench]


def gelu(sizes: Point) -> NormalProblem:
    return NormalProblem(problem_of("gelu", {"...": sizes}))


@pytest.fixture
def some(target: Target) -> list[Schedule]:
    """Configs of which the worker likes two: 128 threads for few elements, 512 for many, 4 items each."""
    fields = {"pack": 8, "load": "default", "store": "default", "blocks_per_sm": 0, "along": "vectors"}
    ranked = Candidates(gelu((2**20,)), target).ranking
    return [c for c in ranked if all(c.values[k] == v for k, v in fields.items()) and c.values["threads"] in (128, 512)]


@pytest.fixture
def make(
    target: Target, store: Store, cubins: CubinCache, log: Path, some: list[Schedule], monkeypatch: pytest.MonkeyPatch
) -> Make:
    monkeypatch.setenv("FAKE_WORKER", "sized")
    supervise = functools.partial(Supervisor, command=(sys.executable, str(FAKE), str(log)), limits=(60, 20, 20))

    def search(one: NormalProblem, budget: Budget, first: Sequence[Schedule]) -> Outcome:
        run = Run(one, target, store, budget, MEASURED, Silent())
        only = Candidates(one, target, only=some)
        return run.finished() or Measured(run, 0, "ranking", 0, cubins, supervise, only, first).tune()

    def make(
        budget: Budget, default: Schedule | None = None, problem: Callable[[Point], NormalProblem] = gelu
    ) -> RangeBench:
        return RangeBench(
            problem, target=target, device=0, store=store, budget=budget, search=search, cache=cubins,
            default=lambda one: default or some[0], supervise=supervise,
        )  # fmt: skip

    return make


def values(config: Schedule) -> tuple[object, object]:
    return config.values["threads"], config.values["items"]


def test_a_range_becomes_buckets_that_are_stored(make: Make, store: Store, target: Target, log: Path) -> None:
    bench = make(Budget(trials=200))
    found = tune_range(["..."], SPANS, bench, checks=6)
    division = found.division
    assert found.origin == MEASURED
    assert [values(b.config) for b in division.buckets] == [(128, 4), (512, 4)]
    change = division.buckets[0].spans[0].high
    assert abs(math.log(change / 5e6)) < 0.1  # where both take 30 us
    assert division.bound < 0.02
    assert len(division.checks) == 6
    key = problem_key(gelu((2**20,)))
    second, first = buckets_of(store, key, gpu_facts(target))
    assert (first.spans, second.spans) == (
        {"n0": f"65536..{change}:8"},
        {"n0": f"{change + 8}..67108864:8"},
    )
    for record, bucket in ((first, division.buckets[0]), (second, division.buckets[1])):
        assert read_config(record.trial.config) == bucket.config
        assert record.trial.verified
        assert record.serves(record.problem.sizes)  # timed inside of the bucket
        assert record.trial.source_digest == bucket.config.source(gelu((2**20,))).digest
        assert record.evidence["checked"] == 6
        assert record.evidence["worst"] < 0.02
    assert store.check() == []
    # Each time was taken of a kernel that was verified at that size, and is a trial.
    lines = log.read_text().splitlines()
    assert not [line for line in lines if "verify=False" in line]
    last_rounds = sum("race=False" in line for line in lines)  # each stores its winner once more
    assert sum(store.statistics().trials[MEASURED].values()) == found.trials + last_rounds


def test_the_second_time_begins_with_what_is_known(make: Make, store: Store) -> None:
    tune_range(["..."], SPANS, make(Budget(trials=100)), checks=2)
    again = make(Budget(trials=100))
    known = portfolio(again, (2**20,))
    assert {values(config) for config in known} == {(128, 4), (512, 4)}
    found = tune_range(["..."], SPANS, again, checks=2, known=known)
    assert [values(b.config) for b in found.division.buckets] == [(128, 4), (512, 4)]
    assert len(buckets_of(store, problem_key(gelu((8,))), gpu_facts(again.target))) == 2  # in place of those before


def test_a_kernel_that_is_wrong_or_crashes_takes_no_part(
    make: Make, store: Store, some: list[Schedule], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "mixed")  # 1 block an SM: wrong; 8 with 1024 threads: crashes
    ranked = Candidates(gelu((2**20,)), target).ranking
    wrong = next(c for c in ranked if c.values["blocks_per_sm"] == 1)
    crashing = next(c for c in ranked if (c.values["blocks_per_sm"], c.values["threads"]) == (8, 1024))
    bench = make(Budget(trials=100))
    assert [*bench.beside((2**20,), [crashing, wrong, some[0]])] == [some[0]]
    trials = {t.config.text: t.status for t in store.trials(problem_key(gelu((2**20,))), gpu_facts(target))}
    assert trials == {repr(crashing): "crashed", repr(wrong): "wrong", repr(some[0]): "ok"}
    assert bench.trials == 3


def test_a_config_that_a_rule_forbids_is_not_timed(make: Make, some: list[Schedule]) -> None:
    def odd(sizes: Point) -> NormalProblem:  # rows of odd length, transposed: no vectors of 8
        return NormalProblem(problem_of("transpose", {"...": (), "M": sizes[0], "N": 33}))

    assert make(Budget(trials=10), problem=odd).beside((33,), some) == {}


def test_the_model_tells_of_any_config_at_any_sizes(make: Make, some: list[Schedule], target: Target) -> None:
    bench = make(Budget(trials=10), default=some[1])
    assert bench.measures
    assert bench.choice((2**26,)) == some[1]
    assert bench.modelled(some, (2**26,)) == [config.estimate(gelu((2**26,)), target) for config in some]
    assert bench.modelled([], (2**26,)) == []


def test_what_the_model_chooses_is_compiled_before_it_is_timed(
    make: Make, some: list[Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[tuple[Schedule, bool]] = []
    begun = threading.Event()

    def build(config: Schedule, *args: Any) -> Built:
        ahead = threading.current_thread() is not threading.main_thread()
        if ahead:
            assert begun.wait(60)
        made = builds.build(config, *args)
        built.append((config, ahead))
        return made

    monkeypatch.setattr(range_bench, "build", build)
    bench = make(Budget(trials=10), default=some[0])
    with contextlib.closing(bench):
        assert bench.choice((2**20,)) == bench.choice((2**21,)) == some[0]
        threading.Timer(0.2, begun.set).start()
        assert [*bench.beside((2**22,), some[:2])] == some[:2]
    assert built == [(some[0], True), (some[0], False), (some[1], False)]


def test_a_bucket_of_much_regret_is_not_stored() -> None:
    def bucket(*regrets: float) -> Bucket[str]:
        return Bucket((Span.parse("1..8"),), "config", ((1,), (8,)), regrets)

    assert is_stored(bucket(WORST, WORST))
    assert is_stored(bucket(0.0, 1.9 * WORST))  # of a size that is bad the others know nothing
    assert not is_stored(bucket(0.02, 2 * WORST))
    assert bucket(0.02, 2 * WORST).regret == 2 * WORST


def test_sizes_are_stored_by_the_names_of_normalised_problems() -> None:
    def gemm(sizes: Point) -> NormalProblem:
        return NormalProblem(problem_of("hgemm", {"M": sizes[0], "N": 64, "K": sizes[1]}))

    axes = Axes(["M", "K"], [Span.parse("1..8192"), Span.parse("64..4096:64")], gemm)
    bucket = Bucket((Span.parse("1..128"), Span.parse("64..512:64")), "config", (), ())
    assert axes.spans(bucket) == {"M": "1..128", "N": "64", "K": "64..512:64"}

    def rows(sizes: Point) -> NormalProblem:
        return NormalProblem(problem_of("gelu", {"...": (sizes[0], 1000)}))

    axes = Axes(["..."], [Span.parse("1,7,64")], rows)
    assert axes.spans(Bucket((Span.parse("7,64"),), "config", (), ())) == {"n0": "7000,64000"}

    def both(sizes: Point) -> NormalProblem:
        return NormalProblem(problem_of("gelu", {"...": sizes}))

    with pytest.raises(
        ArgumentError, match=r"gelu: cannot tune the range S=8\.\.64 together with B=1\.\.4: dim.* densely"
    ):
        Axes(["B", "S"], [Span.parse("1..4"), Span.parse("8..64")], both)


def test_a_size_of_1_stands_apart_where_it_makes_a_problem_of_another_class() -> None:
    def biased(sizes: Point) -> NormalProblem:  # a bias that is read again by each of several rows; and a single number
        return NormalProblem(problem_of("bias_gelu", {"...": sizes[:1], "N": sizes[1]}))

    def told(*texts: str) -> list[str]:
        return ["x".join(map(str, part)) for part in parts(["...", "N"], [*map(Span.parse, texts)], biased)]

    assert told("1..64", "1024") == ["1x1024", "2..64x1024"]
    assert told("1,8,64", "8..64:8") == ["1x8..64:8", "8,64x8..64:8"]
    assert told("1..8", "1..64") == ["1x1..64", "2..8x1", "2..8x2..64"]
    assert told("2..64", "1024") == ["2..64x1024"]


@pytest.mark.parametrize(
    ("operator", "sizes", "name", "message"),
    [
        (
            "split_heads",
            {"B": 2, "H": 4, "S": 8},
            "D",
            r"takes bias_q:f16\[2,4,8,64\]strides\(0,64,0,1\) for D=64 and .*128",
        ),
        ("rope", {"...": 2, "S": 8, "H": 4}, "D", r"has the sizes 32 for D=64 and 64 for D=128, no multiples of it"),
    ],
)
def test_a_range_whose_buckets_would_serve_no_call_is_refused(
    operator: str, sizes: Mapping[str, int], name: str, message: str
) -> None:
    def problem(point: Point) -> NormalProblem:
        return NormalProblem(problem_of(operator, {**sizes, name: point[0]}))

    with pytest.raises(ArgumentError, match=rf"{operator}: cannot tune the range {name}=64\.\.256:64: .*{message}"):
        parts([name], [Span.parse("64..256:64")], problem)


def test_without_a_gpu_times_are_the_model_s_and_buckets_are_modelled(
    target: Target, store: Store, cubins: CubinCache
) -> None:
    from kgen.tuner.tune import tune

    def search(one: NormalProblem, budget: Budget, first: Sequence[Schedule]) -> Outcome:
        return tune(one, target=target, store=store, device=None, budget=budget, cache=cubins)

    bench = RangeBench(
        gelu, target=target, device=None, store=store, budget=Budget(seconds=600), search=search,
        default=lambda one: Candidates(one, target).default,
    )  # fmt: skip
    found = tune_range(["..."], [Span.parse("1048576,2097152")], bench, checks=2)
    assert found.origin == MODELLED
    records = buckets_of(store, problem_key(gelu((2**20,))), gpu_facts(target))
    assert {record.origin for record in records} == {MODELLED}
    assert all(record.trial.verified and record.trial.seconds is None for record in records)
    assert sorted(size for record in records for size in record.sizes["n0"]) == [2**20, 2**21]

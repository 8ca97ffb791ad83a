"""run: who is checked, who is timed, and what becomes of those that are wrong, slow to appear or too fast to be true."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import bench_operators as ops
import pytest
import torch

from kgen.bench import Result, comparison_table, run
from kgen.bench.compare import Settings, flops
from kgen.bench.opponents import Launch, Operands, Opponent
from kgen.bench.result import Participant
from kgen.dsl.errors import ArgumentError, DeviceError, KgenError
from kgen.dsl.problem import Problem
from kgen.dsl.target import TARGETS
from kgen.gpu.telemetry import Sample

#: A GPU with an L2 so small that two sets of operands are enough.
TARGET = replace(TARGETS["H200"], l2_bytes=1024)
TIMES = {"kgen": 2e-3, "copy": 1e-3}


class FakeClock:
    """Gives each candidate a time by its name, 3 ms unless TIMES tells another."""

    flags = ("graph",)

    def __init__(self, sets: int) -> None:
        self.sets = sets

    def prepare(self, candidates: Mapping[str, Launch]) -> dict[str, float]:
        for launch in candidates.values():
            for index in range(self.sets):
                launch(index)
        return dict.fromkeys(candidates, 1e-3)

    def batch(self, rounds: Sequence[Sequence[str]]) -> list[dict[str, float]]:
        return [{name: TIMES.get(name, 3e-3) for name in names} for names in rounds]

    def state(self) -> Sample:
        return Sample(1980, 3201, 650.0, 55, ("sw_power_cap",))

    def cool(self) -> None:
        raise AssertionError("nothing is hot here")


def kgen_gelu(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(torch.nn.functional.gelu(x, approximate="tanh"))


def bench(*opponents: Any, operator: Any = kgen_gelu, problem: Problem | None = None, **options: Any) -> Result:
    given = {"device": None, "target": TARGET, "clock": FakeClock, **options}
    return run(operator, [problem or ops.square(ops.gelu)], opponents, **given)


def side(result: Result, name: str) -> Participant:
    found = result.comparisons[0].participant(name)
    assert found is not None
    return found


def opponent(compute: Callable[[Operands], None], name: str = "other", reason: str | None = None) -> Opponent:
    def prepare(problem: Problem, sets: list[Operands], scalars: Mapping[str, float]) -> Launch:
        return lambda i: compute(sets[i])

    return Opponent(name, lambda problem: reason, prepare)


def right(operands: Operands) -> None:
    kgen_gelu(operands["x"], out=operands["out"])


def test_kgen_and_opponents_are_checked_and_timed() -> None:
    result = bench("torch", "copy", opponent(right))
    c = result.comparisons[0]
    assert [p.name for p in c.participants] == ["kgen", "torch", "copy", "other"]
    assert {p.status for p in c.participants} == {"ok"}
    assert c.ratio("other") == c.ratio("torch")
    assert c.ratio("torch").value == pytest.approx(1.5)
    assert c.ratio("copy").value == pytest.approx(0.5)
    assert side(result, "kgen").error is not None
    assert side(result, "kgen").error <= 1
    assert side(result, "copy").error is None
    assert side(result, "torch").time.flags == ("graph", "power_capped")
    assert side(result, "torch").time.clocks["power_w"] == 650.0
    assert c.operand_sets >= 2
    assert c.operand_sets * c.bytes >= 3 * TARGET.l2_bytes
    assert Result.from_json(result.to_json()) == result


def test_the_result_tells_where_and_how_it_was_made() -> None:
    result = bench("torch", settings=Settings(seed=7))
    assert {"date", "commit", "host", "gpu", "versions"} <= set(result.environment)
    assert result.environment["date"].endswith("+00:00")
    assert {"torch", "torch_cuda", "driver", "nvrtc", "triton", "kgen"} <= set(result.environment["versions"])
    assert result.environment["versions"]["torch"] == torch.__version__
    assert result.environment["gpu"]["name"] == "H200"
    assert result.settings["seed"] == 7
    assert result.settings["policy"]["most"] == 1000
    assert result.comparisons[0].arguments.startswith("gelu --shape")


def test_runs_with_one_seed_use_the_same_operands() -> None:
    seen: list[float] = []
    spy = opponent(lambda operands: (seen.append(float(operands["x"].double().sum())), right(operands))[-1])
    bench(spy)
    first, seen[:] = list(seen), []
    bench(spy)
    assert seen == first
    assert len(set(seen)) == bench(spy).comparisons[0].operand_sets
    seen.clear()
    bench(spy, settings=Settings(seed=1000))
    assert not set(seen) & set(first)


def off_by_a_little(operands: Operands) -> None:
    right(operands)
    operands["out"][1, 5] += 0.05


def half_written(operands: Operands) -> None:
    result = torch.nn.functional.gelu(operands["x"], approximate="tanh")
    operands["out"][:2] = result[:2]


def nothing(operands: Operands) -> None:
    pass


def other_dtype(operands: Operands) -> None:
    operands["out"] = torch.nn.functional.gelu(operands["x"].float(), approximate="tanh")


def other_shape(operands: Operands) -> None:
    operands["out"] = torch.nn.functional.gelu(operands["x"], approximate="tanh")[:1]


@pytest.mark.parametrize(
    ("compute", "told"),
    [
        (off_by_a_little, r"out\[1, 5\]: got .*, expected .*; 1 elements are wrong"),
        (half_written, r"out\[2, 0\]: got nan.*; 32 elements are wrong"),
        (nothing, r"out\[0, 0\]: got nan"),
        (other_dtype, "torch.float32"),
        (other_shape, r"\[1, 32\]"),
    ],
)
def test_a_wrong_opponent_is_reported_and_not_timed(compute: Callable[[Operands], None], told: str) -> None:
    result = bench(opponent(compute), "torch")
    wrong = side(result, "other")
    assert (wrong.status, wrong.time) == ("wrong", None)
    assert re.search(told, wrong.detail)
    assert result.comparisons[0].ratio("other") is None
    assert result.comparisons[0].ratio("torch") is not None


def test_an_opponent_that_is_right_on_the_first_operands_alone_is_wrong() -> None:
    cached: list[torch.Tensor] = []

    def caching(operands: Operands) -> None:
        if not cached:
            cached.append(torch.nn.functional.gelu(operands["x"], approximate="tanh"))
        operands["out"].copy_(cached[0])

    assert side(bench(opponent(caching)), "other").status == "wrong"


def test_a_wrong_kgen_is_reported_too() -> None:
    result = bench("torch", operator=lambda x, *, out: out.copy_(x))
    assert side(result, "kgen").status == "wrong"
    assert result.comparisons[0].ratio("torch") is None
    assert "kgen wrong" in str(comparison_table(result))


def test_an_opponent_that_changes_an_input_ends_the_run() -> None:
    def spoil(operands: Operands) -> None:
        right(operands)
        operands["x"][0, 0] += 1

    with pytest.raises(KgenError, match=r"other wrote to its input x of gelu"):
        bench(opponent(spoil))


def test_an_opponent_that_raises_has_failed() -> None:
    def explode(operands: Operands) -> None:
        raise RuntimeError("out of everything\nand more")

    failed = side(bench(opponent(explode)), "other")
    assert (failed.status, failed.detail) == ("failed", "RuntimeError: out of everything")


def test_an_opponent_that_does_not_apply_says_why() -> None:
    result = bench(opponent(right, reason="not today"), "cublas")
    assert (side(result, "other").status, side(result, "other").detail) == ("declined", "not today")
    assert side(result, "cublas").status == "declined"


def test_a_missing_opponent_is_reported_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "kgen.bench.opponents.triton", raising=False)
    absent = side(bench("triton"), "triton")
    assert absent.status == "absent"
    assert "triton" in absent.detail


def test_nothing_above_the_roofline_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TIMES, "other", 1e-7)
    problem = Problem.dense(ops.gelu.graphs[0], {"...": (1024, 1024)})
    result = bench(opponent(right), "torch", problem=problem)
    assert 1e-7 < result.comparisons[0].floor_seconds < 3e-3
    flagged = side(result, "other")
    assert flagged.status == "impossible"
    assert "less than the GPU needs" in flagged.detail
    assert result.comparisons[0].ratio("other") is None
    assert [s.opponent for s in result.summaries()] == ["torch"]


def test_flops_count_every_batch() -> None:
    graph = ops.product.graphs[0]
    assert flops(Problem.dense(graph, {"M": 3, "N": 5, "K": 7})) == 2 * 3 * 5 * 7
    assert flops(Problem.dense(graph, {"...": (2, 4), "M": 3, "N": 5, "K": 7})) == 8 * 2 * 3 * 5 * 7
    assert flops(ops.square(ops.add)) == 0


def test_progress_names_every_step() -> None:
    told: list[tuple[str, str, int]] = []
    bench("torch", progress=lambda *step: told.append(step))
    assert [step for _, step, _ in told] == ["operands", "check kgen", "check torch", "time"]


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="unknown opponent"):
        bench("cubals")
    with pytest.raises(ArgumentError, match="nothing to measure: gelu"):
        bench("torch", problem=Problem.dense(ops.gelu.graphs[0], {"...": (0, 3)}))
    with pytest.raises(ArgumentError, match="nothing to measure"):
        run(kgen_gelu, [], ["torch"], device=None, target=TARGET, clock=FakeClock)
    with pytest.raises(DeviceError, match="emulator"):
        bench("torch", clock=None)


def test_the_shipped_operator_runs_on_the_emulator_and_names_its_config() -> None:
    from kgen.ops import operators

    problem = Problem.dense(operators()["add"].graphs[0], {"...": (3, 32)})
    kgen = side(bench("torch", operator=operators()["add"], problem=problem), "kgen")
    assert kgen.status == "ok"
    assert kgen.detail.startswith("Elementwise(")
    assert kgen.detail.endswith("(default)")


def test_scalars_have_their_defaults_everywhere() -> None:
    def general(
        a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *, out: torch.Tensor, alpha: float, beta: float
    ) -> None:
        torch.addmm(c, a, b, alpha=alpha, beta=beta, out=out)

    result = bench("cublas", "torch", operator=general, problem=ops.square(ops.general))
    assert {p.status for p in result.comparisons[0].participants} == {"ok"}
    assert result.comparisons[0].scalars == {"alpha": 0.5, "beta": 2.0}


def test_alone_is_timed_with_another_kernel_between_any_two_calls() -> None:
    seen: list[Sequence[str]] = []

    class Between(FakeClock):
        def batch(self, rounds: Sequence[Sequence[str]]) -> list[dict[str, float]]:
            seen.extend(rounds)
            apart = any("between" in names for names in rounds)
            times = {"between": 0.5e-3, "kgen": 2.4e-3 if apart else 2e-3}
            return [{name: times.get(name, 3e-3) for name in names} for names in rounds]

    result = bench(opponent(right), settings=Settings(between=True), clock=Between)
    c = result.comparisons[0]
    assert c.time("kgen").seconds == pytest.approx(2e-3)
    assert c.time("kgen", alone=True).seconds == pytest.approx(1.9e-3)
    assert c.ratio("other").value == pytest.approx(1.5)
    assert c.ratio("other", alone=True).value == pytest.approx(2.5 / 1.9)
    assert {"between", "kgen", "other"} in map(set, seen)
    assert Result.from_json(result.to_json()) == result
    table = comparison_table(result)
    assert table.header == ("problem", "kgen", "rate", "other", "kgen alone", "other alone")
    assert table.rows[0][-1].endswith("1.316x")
    assert "alone, with another kernel between any two calls, vs other: geometric mean 1.316x" in str(table)


def test_alone_is_not_timed_unless_asked_for() -> None:
    result = bench(opponent(right))
    assert result.comparisons[0].time("kgen", alone=True) is None
    assert "alone" not in str(comparison_table(result))

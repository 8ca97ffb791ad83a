"""The benchmark on a real GPU: everybody is checked and timed, and launches that escape the timing are found out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import util

import pytest

from kgen.gpu import driver

pytestmark = pytest.mark.skipif(driver.device_count() == 0, reason="needs a GPU")
torch = pytest.importorskip("torch")

from kgen.bench import Result, Settings, overhead, run  # noqa: E402
from kgen.bench.opponents import Launch, Operands, Opponent  # noqa: E402
from kgen.dsl.problem import Problem  # noqa: E402
from kgen.ops import operators  # noqa: E402
from kgen.tuner.race import Policy  # noqa: E402

QUICK = Settings(policy=Policy(relative=0.02, least=6, most=50, seconds=0.5))
EVERYBODY = ("cublas", "torch", "compile", "triton", "copy")


def problem(name: str, **sizes: object) -> Problem:
    return Problem.dense(operators()[name].graphs[0], {("..." if k == "leading" else k): v for k, v in sizes.items()})  # type: ignore[misc]


def statuses(result: Result) -> dict[str, str]:
    return {p.name: f"{p.status} {p.detail}" if p.status not in ("ok", "declined") else p.status
            for p in result.comparisons[0].participants}  # fmt: skip


def test_a_product_against_everybody() -> None:
    result = run(operators()["hgemm"], [problem("hgemm", M=512, N=384, K=256)], EVERYBODY, settings=QUICK)
    expected = dict.fromkeys(("kgen", *EVERYBODY), "ok")
    if util.find_spec("triton") is None:
        found = statuses(result)
        assert found["triton"].startswith("absent")
        expected |= {name: found[name] for name in ("triton", "compile")}
    assert statuses(result) == expected
    c = result.comparisons[0]
    for name, status in expected.items():
        time = c.time(name)
        if status == "ok":
            assert time is not None
            assert c.floor_seconds <= time.lower <= time.seconds <= time.upper
            assert time.samples >= 6
    assert "graph" in c.time("cublas").flags  # it takes some 5 us
    assert c.telemetry["before"]["sm_clock"]
    assert result.environment["gpu"]["name"] == torch.cuda.get_device_name(0)
    assert result.environment["versions"]["driver"]
    assert Result.from_json(result.to_json()) == result
    assert all(math.isfinite(s.mean.value) for s in result.summaries())


def test_a_pointwise_operator_against_everybody() -> None:
    result = run(operators()["bias_gelu"], [problem("bias_gelu", leading=(4096,), N=4096)], EVERYBODY, settings=QUICK)
    found = statuses(result)
    assert {found[name] for name in ("kgen", "torch", "copy")} == {"ok"}
    assert found["cublas"] == "declined"
    if util.find_spec("triton"):
        assert (found["compile"], found["triton"]) == ("ok", "ok")
    peak = result.environment["gpu"]["bandwidth"]
    assert 0.4 * peak < result.bandwidth("copy") < peak


def gelu_on(stream: object) -> Opponent:
    """An opponent that computes the right thing, on a stream that is not the current one."""

    def prepare(given: Problem, sets: list[Operands], scalars: Mapping[str, float]) -> Launch:
        def launch(i: int) -> None:
            with torch.cuda.stream(stream):
                torch._C._nn.gelu(sets[i]["x"], approximate="tanh", out=sets[i]["out"])

        return launch

    return Opponent("elsewhere", lambda _: None, prepare)


@pytest.mark.parametrize("side", [False, True], ids=["default stream", "side stream"])
def test_launches_on_another_stream_are_wrong(side: bool) -> None:
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    result = run(operators()["gelu"], [problem("gelu", leading=(4096,))], [gelu_on(stream)], settings=QUICK)
    assert statuses(result)["elsewhere"].startswith("wrong out[0]: got nan")


def test_overhead_is_that_of_the_host() -> None:
    taken = overhead(operators()["add"], problem("add", leading=(4096,)), batches=20, calls=50)
    for times in (taken.returning, taken.writing):
        for time in (times["kgen"], times["torch"]):
            assert 0.5e-6 < time.lower <= time.seconds <= time.upper < 200e-6

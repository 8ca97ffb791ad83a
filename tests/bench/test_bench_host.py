"""Host overhead: what is measured, and the claims' table of the benchmark script."""

from __future__ import annotations

import gc
import importlib.util
import json
import operator as python
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import bench_operators as ops
import pytest
import torch

import kgen
from kgen.bench import eager, host
from kgen.bench.host import HostTime, Overhead, measure
from kgen.bench.result import Comparison, Participant, Result, Time
from kgen.dsl.errors import DeviceError
from kgen.dsl.problem import Problem
from kgen.dsl.target import TARGETS
from kgen.gpu.target import device_count
from kgen.numerics.operands import make_operands, scalar_values


def test_a_slow_call_costs_more_and_all_take_turns() -> None:
    order: list[str] = []

    def call(name: str, seconds: float) -> None:
        order.append(name)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    waits: list[int] = []
    candidates = {"slow": lambda: call("slow", 40e-6), "fast": lambda: call("fast", 0)}
    times = measure(candidates, lambda: waits.append(len(order)), batches=9, calls=4)
    assert times["slow"].seconds >= 40e-6
    assert times["fast"].seconds < times["slow"].seconds
    for taken in times.values():
        assert 0 < taken.lower <= taken.seconds <= taken.upper
    timed = order[40:]  # after 20 calls of each to warm up
    assert (timed.count("slow"), timed.count("fast")) == (36, 36)
    assert len(waits) == 2 * 9 + 1  # before every batch, and at the end
    first = [timed[i] for i in range(0, len(timed), 8)]
    assert set(first) == {"slow", "fast"}  # neither always begins


def test_garbage_is_not_collected_within_a_batch_and_is_afterwards() -> None:
    states: list[bool] = []
    measure({"one": lambda: states.append(gc.isenabled())}, lambda: None, batches=2, calls=3)
    assert not any(states[20:])
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("operator", "steps", "written"),
    [
        (ops.product, [torch.mm], True),
        (ops.gelu, [torch.nn.functional.gelu], True),
        (kgen.add.definition, [python.add], True),
        (kgen.softmax.definition, [torch.nn.functional.softmax], True),
        (kgen.rms_norm.definition, [torch.nn.functional.rms_norm], False),
    ],
)
def test_torchs_side_is_what_a_user_would_write(operator: Any, steps: list[Any], written: bool) -> None:
    problem = ops.square(operator) if operator in (ops.product, ops.gelu) else normal(operator)
    operands = make_operands(problem)
    inputs = [operands[o.name] for o in problem.inputs]
    function = host.only_work(eager.function(problem, scalar_values(problem.graph)), inputs)
    nodes = function.__self__.graph.nodes  # type: ignore[attr-defined]
    assert [n.target for n in nodes if n.op not in ("placeholder", "output")] == steps
    (want,), out = function(*inputs), operands[problem.outputs[0].name]
    into = host.into_given(function, inputs, [out])
    assert (into is not None) == written
    if into is not None:
        out.fill_(float("nan"))
        into()
        assert torch.equal(out, want)


def normal(operator: Any) -> Problem:
    sizes = {"...": (4,), "N": 8} if "N" in str(operator.graphs[0].inputs[0]) else {"...": (4, 8)}
    return Problem.dense(operator.graphs[0], sizes)


@pytest.mark.skipif(device_count() > 0, reason="there is a GPU")
def test_without_a_gpu_there_is_no_overhead_to_measure() -> None:
    with pytest.raises(DeviceError, match="no GPU 0"):
        host.overhead(ops.gelu, ops.square(ops.gelu))


def taken_of(kgen: float, torch: float, out: float | None = None) -> Overhead:
    """torch has no out= unless given its time."""

    def times(**seconds: float | None) -> dict[str, HostTime]:
        return {name: HostTime(t, t * 0.9, t * 1.1) for name, t in seconds.items() if t is not None}

    return Overhead("add(4096 f16)", times(kgen=kgen, torch=torch), times(kgen=kgen / 2, torch=out), 100, 50, {})


def test_the_ratio_and_the_json_of_an_overhead() -> None:
    taken = taken_of(5e-6, 6e-6, 3e-6)
    assert taken.ratio().value == pytest.approx(1.2)
    assert taken.ratio().lower == pytest.approx(6 * 0.9 / (5 * 1.1))
    assert taken.ratio(out=True).value == pytest.approx(3 / 2.5)
    assert taken_of(5e-6, 6e-6).ratio(out=True).value == pytest.approx(6 / 2.5)
    data = json.loads(taken.to_json())
    assert data["schema"] == "kgen.bench.overhead/2"
    assert data["returning"]["kgen"]["seconds"] == 5e-6


def test_the_table_of_overheads() -> None:
    table = host.overhead_table([taken_of(5e-6, 6e-6, 3e-6), taken_of(5e-6, 6e-6)])
    told = ("add(4096 f16)", "5.00 us", "6.00 us", "1.20x", "2.50 us")
    assert table.rows == ((*told, "3.00 us", "1.20x"), (*told, "-", "2.40x"))
    assert len(table.notes) == 1


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "h200.py"
    spec = importlib.util.spec_from_file_location("h200", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["h200"] = module
    sys.path.insert(0, str(path.parent))  # as for a script
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def result(problem: str, flops: int = 0, **times: float) -> Result:
    sides = tuple(Participant(name, "ok", "", Time(t, t, t, 20)) for name, t in times.items())
    return Result("op", "0", {}, {}, (Comparison(problem, "", "", 10**9, flops, 0.0, 2, {}, {}, sides),))


def test_the_claims_table_holds_each_part_to_its_bar(script: ModuleType) -> None:
    results = {
        "fp8": result("big", 10**12, kgen=2e-3, cublas=1.96e-3),
        "sgemm": result("small", 10**12, kgen=2e-3, cublas=1.3e-3),
        "add_f16": result("sum", kgen=1e-3, copy=0.97e-3),
        "gelu_f16": result("gelu", kgen=1e-3, copy=0.90e-3),
        "softmax_f16": result("rows", kgen=1e-3, copy=0.95e-3, compile=0.99e-3),
        "histogram_one_bin_i32": result("hist", kgen=1e-3, read=0.8e-3),
        "tf32": "left out, the time was up",
    }
    table = script.summary(results, [taken_of(5e-6, 6e-6, 3e-6), taken_of(7e-6, 6e-6)])
    found = {row[0]: row[4:] for row in table.rows if row[0] != "add(4096 f16)"}
    assert found["big"] == ("0.980", "0.97", "reached")
    assert found["small"] == ("0.650", "0.90", "missed")
    # Held to the largest copy bandwidth of the run, which is that of the other problem.
    assert found["sum"] == ("0.900", "0.95", "missed")
    assert [row[3] for row in table.rows if row[0] == "rows"] == ["copy", "compile"]
    assert [row[4:] for row in table.rows if row[0] == "rows"] == [
        ("0.900", "0.90", "reached"),
        ("0.990", "1.00", "missed"),
    ]
    assert found["hist"] == ("0.800", "0.50", "reached")
    assert found["gelu"] == ("0.900", "0.95", "missed")
    assert [row[-1] for row in table.rows if row[0] == "add(4096 f16)"] == ["reached", "reached", "missed", "reached"]
    assert "tf32: left out" in str(table)


def test_the_claims_table_does_not_pass_what_was_not_measured(script: ModuleType) -> None:
    wrong = result("p", 10**12, cublas=1e-3)
    unopposed = result("q", 10**12, kgen=1e-3)
    table = script.summary({"fp8": wrong, "sgemm": unopposed}, [])
    assert [row[-1] for row in table.rows] == ["missed", "not measured"]


def test_every_part_names_problems_that_exist(script: ModuleType) -> None:
    from kgen.ops import operators
    from kgen.runtime.operator import KernelOperator

    for part in script.PARTS:
        problems = part.problems(KernelOperator(operators()[part.operator]))
        assert len(problems) == len(part.shapes) * len(part.layouts)
        assert set(part.bars) <= set(part.opponents)
        assert part.dtype in (None, problems[0].inputs[0].dtype.name)
        # Far beyond what the L2 holds, where memory is what a part is about.
        if part.against in script.YARDSTICKS:
            assert all(problem.bytes >= 1.5 * TARGETS["H200"].l2_bytes for problem in problems)
        if part.adjust:
            tiny = {o.name: torch.randint(0, 5, (192,)) for o in problems[0].inputs}
            before = {name: x.clone() for name, x in tiny.items()}
            part.adjust(tiny)
            assert any(not torch.equal(x, before[name]) for name, x in tiny.items())
            assert all(x.min() >= 0 and x.max() < 192 for x in tiny.values())
    for name, sizes in script.OVERHEAD.items():
        assert not KernelOperator(operators()[name]).problem(sizes).empty

"""The gate lets right kernels pass and names what is wrong with the others."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from tuner_samples import BODIES, SIZE, problem_of, sample_problem, source_of

import kgen
from kgen import emulator
from kgen.dsl import functions as F
from kgen.dsl.errors import ArgumentError
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.size import dims
from kgen.dsl.types import bf16, e4m3, f16, f32, f64, i32
from kgen.emulator import Options
from kgen.numerics.dtypes import ulp
from kgen.numerics.operands import make_operands
from kgen.numerics.reference import evaluate
from kgen.ops.attention.heads import variant
from kgen.tuner.execute import Runner
from kgen.tuner.verify import Gate, allowed_error, verify

M, N, K = dims("M N K")


def runner_of(body: str, options: Options | None = None) -> Runner:
    source = source_of(body)
    return Runner(emulator.compile(source), source, {"N": SIZE}, options)


class Scripted:
    """Stands for a Runner: a Python function does the kernel's work, and may do it differently each time."""

    emulated = True

    def __init__(self, work: Any) -> None:
        self.work, self.runs = work, 0

    def run(self, tensors: dict[str, torch.Tensor], scalars: dict[str, float]) -> None:
        self.runs += 1
        self.work(self.runs, tensors)

    def synchronize(self) -> None:
        pass

    def vary(self) -> None:
        pass


def right(tensors: dict[str, torch.Tensor]) -> None:
    tensors["out"].copy_(2 * tensors["x"] + tensors["y"])


def test_a_right_kernel_passes() -> None:
    verdict = verify(runner_of(BODIES["right"]), sample_problem())
    assert verdict.ok
    assert verdict.evidence["exact"] is True
    assert verdict.evidence["repeats"] == 2
    assert 0 <= verdict.evidence["max_error"] <= verdict.evidence["allowed"]
    json.dumps(verdict.evidence, allow_nan=False)


@pytest.mark.parametrize(
    ("body", "check", "evidence"),
    [
        ("wrong everywhere", "exact", {"output": "out"}),
        ("wrong at the end", "exact", {"index": [SIZE - 1], "got": 0.0, "wrong": 1}),
        ("one not written", "exact", {"index": [17], "got": "nan"}),
        ("NaN", "exact", {"index": [9], "got": "nan"}),
    ],
)
def test_wrong_results_are_found_and_placed(body: str, check: str, evidence: dict[str, Any]) -> None:
    verdict = verify(runner_of(BODIES[body]), sample_problem())
    assert not verdict.ok
    assert verdict.evidence["check"] == check
    assert verdict.evidence.items() >= {"inputs": "integers", **evidence}.items()
    json.dumps(verdict.evidence, allow_nan=False)


def test_the_tolerance_finds_small_errors() -> None:
    gate = Gate(sample_problem())
    gate.cases = [case for case in gate.cases if case.kind == "normal"]
    assert gate.check(runner_of(BODIES["right"])).ok
    verdict = gate.check(runner_of(BODIES["coarse"]))
    assert verdict.evidence["check"] == "tolerance"
    assert verdict.evidence["error"] > verdict.evidence["allowed"] > 0
    assert verdict.evidence["inputs"] == "normal"


def test_stores_to_inputs_and_out_of_bounds_are_the_emulators_findings() -> None:
    for body in (BODIES["input changed"], "out[i + 1] = 2.0f * x[i] + y[i];"):
        verdict = verify(runner_of(body), sample_problem())
        assert not verdict.ok
        assert verdict.evidence["check"] == "emulator"
        assert "sample" in verdict.evidence["message"]


def test_a_changed_input_is_found_without_the_emulators_help() -> None:
    def work(run: int, tensors: dict[str, torch.Tensor]) -> None:
        right(tensors)
        tensors["y"][5] += 1

    verdict = verify(Scripted(work), sample_problem())
    assert verdict.evidence["check"] in ("inputs", "repeats")
    gate = Gate(sample_problem())
    verdict = gate.check(Scripted(work), repeats=1)
    assert verdict.evidence["check"] == "inputs"
    assert verdict.evidence["operand"] == "y"
    assert gate.check(Scripted(lambda run, tensors: right(tensors))).ok, (
        "the next kernel is judged on the inputs as they were"
    )


def test_writes_around_an_output_are_found() -> None:
    def work(run: int, tensors: dict[str, torch.Tensor]) -> None:
        right(tensors)
        out = tensors["out"]
        torch.as_strided(out, (1,), (1,), out.storage_offset() + SIZE + 2).fill_(0.0)

    verdict = verify(Scripted(work), sample_problem())
    assert verdict.evidence["check"] == "guards"
    assert verdict.evidence["operand"] == "out"


def test_results_that_change_between_runs_are_found() -> None:
    def work(run: int, tensors: dict[str, torch.Tensor]) -> None:
        right(tensors)
        if run == 8:
            tensors["out"][3] = torch.nextafter(tensors["out"][3], torch.tensor(math.inf))

    assert verify(Scripted(work), sample_problem(), repeats=3).ok
    verdict = verify(Scripted(work), sample_problem(), repeats=10)
    assert verdict.evidence["check"] == "repeats"
    assert verdict.evidence["run"] == 8
    assert verdict.evidence["index"] == [3]


def test_an_output_left_from_the_run_before_is_no_result() -> None:
    """A kernel that does nothing the second time: outputs are poisoned before every run."""
    verdict = verify(Scripted(lambda run, tensors: right(tensors) if run == 1 else None), sample_problem())
    assert verdict.evidence["check"] == "repeats"
    assert verdict.evidence["run"] == 2


def test_slow_kernels_are_not_verified_to_the_end() -> None:
    import time

    def work(run: int, tensors: dict[str, torch.Tensor]) -> None:
        time.sleep(0.05)

    scripted = Scripted(work)
    verdict = Gate(sample_problem()).check(scripted, patience=0.01)
    assert verdict.evidence["check"] == "slow"
    assert scripted.runs == 1


def test_a_kernel_that_takes_long_is_repeated_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgen.tuner.verify._LONG", 0.0)
    scripted = Scripted(lambda run, tensors: right(tensors))
    gate = Gate(sample_problem(), special=False)
    verdict = gate.check(scripted, repeats=10)
    assert verdict.ok
    assert verdict.evidence["repeats"] == 3
    assert scripted.runs == 3 * len(gate.cases)


@pytest.mark.parametrize("shape", [{"M": 33, "N": 18, "K": 40}])
def test_sums_are_judged_by_torchs_own_error(shape: dict[str, int]) -> None:
    problem = problem_of("hgemm", shape, a=f16)

    def matmul(scale: float) -> Scripted:
        def work(run: int, tensors: dict[str, torch.Tensor]) -> None:
            tensors["out"].copy_((tensors["a"].float() @ tensors["b"].float()) * scale)

        return Scripted(work)

    gate = Gate(problem)
    assert [case.kind for case in gate.cases] == ["integers", "normal", "special"]
    assert gate.check(matmul(1.0)).ok
    assert gate.check(matmul(1.01)).evidence["check"] == "exact"
    gate.cases = gate.cases[1:2]
    assert gate.check(matmul(1.05)).evidence["check"] == "tolerance"


def test_the_formula() -> None:
    """Spot values of allowed = min(2 E + 2 ulp, cap)."""
    pointwise = sample_problem()
    sums = problem_of("hgemm", {"M": 4, "N": 4, "K": 4})
    r = torch.tensor([1.0, 1000.0], dtype=torch.float64)
    assert ulp(r, f16).tolist() == [2**-10, 0.5]
    assert ulp(r, f32).tolist() == [2**-23, 2**-14]
    assert ulp(torch.tensor([0.0], dtype=torch.float64), f16).tolist() == [2**-24]
    assert ulp(torch.tensor([1.5], dtype=torch.float64), bf16).tolist() == [2**-7]
    assert ulp(torch.tensor([1.5], dtype=torch.float64), e4m3).tolist() == [2**-3]
    assert ulp(torch.tensor([1.5], dtype=torch.float64), f64).tolist() == [2**-52]
    assert allowed_error(r, f16, 0.0, pointwise, 0.0).tolist() == [2**-9, 1.0]
    assert allowed_error(r, f16, 0.001, pointwise, 0.0)[0].item() == pytest.approx(0.002 + 2**-9)
    capped = 8 * 2**-10 + 64 * 2**-24 + 1e-5
    assert allowed_error(r, f16, 10.0, pointwise, 0.0)[0].item() == pytest.approx(capped)
    assert allowed_error(r, f16, 10.0, sums, 20.0).tolist() == pytest.approx([4 * 2**-10 + 1.0, 2.0 + 1.0])
    long = problem_of("sgemm", {"M": 4, "N": 4, "K": 4096})
    assert allowed_error(r, f32, 0.0, long, 64.0)[0].item() == pytest.approx(2 * 64 * 2**-24 * 64.0 + 64 * 2**-23)
    integers = problem_of("igemm", {"M": 4, "N": 4, "K": 4})
    whole = torch.tensor([5, -7])
    assert allowed_error(whole, i32, 0.0, integers, 0.0).tolist() == [0.0, 0.0]


@kgen.operator
def product_in_f32(a: kgen.Tensor[f16, M, K], b: kgen.Tensor[f16, K, N]) -> kgen.Tensor[f32, M, N]:
    return a @ b


@pytest.mark.parametrize(("operator", "wrong"), [(product_in_f32, "sums in f16"), (kgen.sgemm, "factors in tf32")])
def test_a_product_may_be_summed_in_the_order_of_its_terms(operator: Any, wrong: str) -> None:
    problem = operator.problem({"M": 385, "N": 244, "K": 520})

    def matmul(how: str) -> Scripted:
        def work(run: int, tensors: dict[str, torch.Tensor]) -> None:
            a, b = tensors["a"].float(), tensors["b"].float()
            if how == "factors in tf32":
                a, b = ((x.contiguous().view(torch.int32) & -(2**13)).view(torch.float32) for x in (a, b))
            sums = torch.zeros(385, 244)
            for k in range(520):
                sums = sums + a[:, k, None] * b[k]
                sums = sums.half().float() if how == "sums in f16" else sums
            tensors["out"].copy_(sums)

        return Scripted(work)

    gate = Gate(problem, special=False)
    gate.cases = [case for case in gate.cases if not case.exact]
    assert gate.check(matmul("in f32"), repeats=1).ok
    assert gate.check(matmul(wrong), repeats=1).evidence["check"] == "tolerance"


@pytest.mark.parametrize(("columns", "outputs"), [(1, "both"), (70, "both"), (70, "result"), (70, "lse")])
def test_weights_of_attention_may_be_rounded_before_they_are_divided(columns: int, outputs: str) -> None:
    """To 16 bits, under results of f32; to fewer digits they may not, nor may the logarithm be off by as much."""
    graph = variant("full", partial=True, lse=True).graph({"q": f16})
    problem = Problem.dense(graph, {"...": (2,), "G": 2, "M": 33, "N": columns, "D": 16, "E": 16})

    def attention(dtype: torch.dtype, off: float) -> Scripted:
        def work(run: int, tensors: dict[str, torch.Tensor]) -> None:
            q, k, v = (tensors[name].float() for name in "qkv")
            scores = scale * (q @ k.mT)
            exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
            tensors["out0"].copy_(exponentials.to(dtype).float() @ v / exponentials.sum(-1, keepdim=True))
            tensors["out1"].copy_(scores.logsumexp(-1) * (1 + off))

        return Scripted(work)

    gate = Gate(problem, special=False, ends=False)
    gate.cases = [case for case in gate.cases if case.kind == "normal"][:1]
    scale = gate.cases[0].scalars["scale"]
    if outputs == "both":
        assert gate.check(attention(torch.float16, 0.0), repeats=1).ok
        return
    wrong = attention(torch.bfloat16, 0.0) if outputs == "result" else attention(torch.float16, 1e-4)
    found = gate.check(wrong, repeats=1).evidence
    assert (found["check"], found["output"]) == ("tolerance", {"result": "out0", "lse": "out1"}[outputs])


def test_infinities_must_be_where_the_rounded_reference_has_them() -> None:
    problem = sample_problem()

    def work(run: int, tensors: dict[str, torch.Tensor]) -> None:
        right(tensors)

    def scaled(problem: Problem) -> Gate:
        gate = Gate(problem)
        gate.cases = [case for case in gate.cases if case.kind == "normal"]
        case = gate.cases[0]
        case.tensors["x"][11] = case.saved["x"][11] = 3e38
        case.expected[0] = 2.0 * case.tensors["x"].double() + case.tensors["y"].double()
        return gate

    assert scaled(problem).check(Scripted(work)).ok

    def saturating(run: int, tensors: dict[str, torch.Tensor]) -> None:
        right(tensors)
        tensors["out"].clamp_(-3.4e38, 3.4e38)

    verdict = scaled(problem).check(Scripted(saturating))
    assert verdict.evidence["check"] == "tolerance"
    assert verdict.evidence["index"] == [11]


def test_a_runner_names_what_is_missing() -> None:
    runner = runner_of(BODIES["right"])
    tensors = make_operands(sample_problem())
    del tensors["y"]
    with pytest.raises(ArgumentError, match="sample needs the operand y; got x, out"):
        runner.run(tensors, {})


def test_an_output_may_be_an_input() -> None:
    runner = runner_of(BODIES["right"])
    x, y = torch.randn(SIZE), torch.randn(SIZE)
    expected = 2 * x + y
    runner.run({"x": x, "y": y, "out": x}, {})
    assert torch.equal(x, expected)


def test_scalars_and_workspaces_reach_the_kernel() -> None:
    """A shipped operator with numbers, and split-K with its scratch memory and its counters, twice in a row."""
    from kgen.gpu.target import resolve
    from kgen.ops.gemm import MmaGemm
    from kgen.tuner.ragged import symbols

    target = resolve("H200")
    problem = problem_of("hgemm", {"M": 32, "N": 24, "K": 512}, a=f16)
    config = MmaGemm.default(problem, target).replace(splits=2)
    config.check(problem, target)
    source = config.source(problem)
    assert {p.access for p in source.params if hasattr(p, "access")} >= {"in", "out", "scratch", "counters"}
    verdict = verify(Runner(emulator.compile(source), source, symbols(config, problem, 2)), problem)
    assert verdict.ok, verdict.evidence
    assert verdict.evidence["exact"] is True


def widened(x: Tensor[f32, N], y: Tensor[f64, N]) -> Tensor[f64, N]:
    return F.sin(x) * y


@pytest.mark.parametrize(("factor", "ok"), [(1.0, True), (1 + 1e-5, False)])
def test_an_f64_made_of_what_f32_computes_is_as_right_as_f32(factor: float, ok: bool) -> None:
    def work(run: int, tensors: dict[str, torch.Tensor]) -> None:
        tensors["out"].copy_(torch.sin(tensors["x"]) * tensors["y"] * factor)

    problem = Problem.dense(Operator(widened).graphs[0], {"N": 1000})
    assert verify(Scripted(work), problem).ok is ok


def total(x: Tensor[f64, M, N]) -> Tensor[f64, M]:
    return F.sum(F.exp(x))


def test_sums_in_f64_may_err_as_the_reference_does() -> None:
    graph = Operator(total).graphs[0]
    problem = Problem.dense(graph, {"M": 50, "N": 3000})
    operands = make_operands(problem, "normal")
    exact = evaluate(graph, operands, {})[0]
    other = operands["x"].double().flip(-1).exp().cumsum(-1)[:, -1]
    scale = float(exact.square().mean().sqrt())
    allowed = allowed_error(exact, f64, 0.0, problem, scale)
    assert bool(((other - exact).abs() <= allowed).all())
    assert bool((allowed < 1e-13 * exact).all())

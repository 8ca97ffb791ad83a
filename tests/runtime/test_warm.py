"""Warm-up: what is met is computed by torch at first, compiled side by side, then launched; and what the report says of it."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.nn import functional as F

import kgen
from kgen import ArgumentError, CompileError, Tensor, dims, f16, f32
from kgen.runtime import call, dispatch
from kgen.runtime.emulated_plan import EmulatedPlan
from kgen.runtime.first import Interim
from kgen.runtime.operator import KernelOperator

M, N = dims("M N")


def fresh(operator):
    return KernelOperator(operator.definition)


def plans(operator):
    return list(operator._plans.values())


def test_a_model_with_its_backward_pass_is_warmed_up():
    norm, gelu = fresh(kgen.layer_norm), fresh(kgen.gelu)
    x, w, b = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 6), (6,), (6,)))
    seen = []

    def step(x):
        y = gelu(norm(x, w, b))
        seen.append((y.detach(), *torch.autograd.grad(y.sum(), (x, w, b))))

    report = kgen.warm(step, x)
    exact = F.gelu(F.layer_norm(x, (6,), w, b), approximate="tanh")
    for got, want in zip(seen[0], (exact, *torch.autograd.grad(exact.sum(), (x, w, b)))):
        torch.testing.assert_close(got, want)
    names = [met.name for met in report.problems]
    assert names == ["layer_norm_train", "gelu", "gelu_grad", "layer_norm_train_grad"]
    assert all(type(plan) is EmulatedPlan for plan in (*plans(gelu.training), *plans(norm.training)))
    before = [*plans(gelu.training), *plans(norm.training)]
    step(x)  # by the kernels, and nothing is made for it
    assert before == [*plans(gelu.training), *plans(norm.training)]
    for got, want in zip(*seen):
        torch.testing.assert_close(got, want)


def test_a_model_is_called_with_what_it_takes_by_name():
    gelu = fresh(kgen.gelu)
    report = kgen.warm(lambda x, *, scale: gelu(x * scale), torch.randn(3, 5), scale=2.0, budget=None)
    assert [met.name for met in report.problems] == ["gelu"]


def test_gradients_are_the_operators_own():
    x = torch.randn(3, 5, requires_grad=True)

    def met(gelu):
        return [one.name for one in kgen.warm(lambda: gelu(x).sum().backward()).problems]

    for gelu in (fresh(kgen.gelu), fresh(kgen.gelu)):
        assert met(gelu) == ["gelu", "gelu_grad"]
        assert met(gelu) == []
        gelu.forget()
        assert met(gelu) == ["gelu", "gelu_grad"]


def test_the_report_has_a_line_for_each_problem():
    relu, softmax = fresh(kgen.relu), fresh(kgen.softmax)
    with kgen.warming() as report:
        for shape in ((4, 8), (4, 8), (2, 8)):
            softmax(torch.randn(shape))
        relu(torch.randn(5))
    assert [str(met.problem) for met in report.problems] == ["softmax(4 N=8 f32)", "softmax(2 N=8 f32)", "relu(5 f32)"]
    lines = str(report).splitlines()
    assert lines[0].split() == ["operator", "problem", "config", "source", "seconds", "tuning"]
    assert len(lines) == 4
    for line, met in zip(lines[1:], report.problems):
        assert line.startswith(f"{met.name} ")
        assert repr(met.choices[0].config) in line
        assert "default by the model" in line
        assert met.seconds > 0
    assert report.seconds == sum(met.seconds for met in report.problems)
    table = report.__rich__()
    assert [column.header for column in table.columns] == lines[0].split()
    assert table.row_count == 3


@kgen.operator
def scaled_rows(x: Tensor[f16, M, N], scale: float = 2.0) -> Tensor[f16, M, N]:
    """Several launches, with a number."""
    return x * scale + kgen.sum(x, axis=-2)


def test_within_it_torch_computes_and_the_kernels_after_it(monkeypatch):
    ran = []
    monkeypatch.setattr(Interim, "run", lambda self, *given, run=Interim.run: ran.append(self) or run(self, *given))
    op, x = fresh(scaled_rows), torch.randn(4, 8).half()
    out = torch.empty(4, 8).half()
    with kgen.warming() as report:
        first = op(x, scale=3.0)
        assert op(x, scale=3.0, out=out) is out
        op(x, scale=1.0)
    assert len(ran) == 3
    assert [len(met.choices) for met in report.problems] == [len(op.launches)]
    expected = x.double() * 3 + x.double().sum(-2)
    for y in (first, out, op(x, scale=3.0), op(x, scale=3.0, out=out)):
        torch.testing.assert_close(y.double(), expected, rtol=2e-3, atol=2e-3)
    assert len(ran) == 3


def test_kernels_are_compiled_side_by_side(monkeypatch):
    """Two compilations wait for each other: in one thread the first would wait for ever."""
    meeting = threading.Barrier(2, timeout=60)
    real = call.compile_ahead
    monkeypatch.setattr(call, "compile_ahead", lambda chosen: (meeting.wait(), real(chosen))[1])
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with kgen.warming():
        fresh(kgen.relu)(torch.randn(3))
        fresh(kgen.gelu)(torch.randn(3))


def test_what_torch_cannot_compute_the_kernels_do(monkeypatch):
    def lacking(*arguments):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("kgen.numerics.reference.native", lacking)
    x = torch.randn(7)
    with kgen.warming():
        y = fresh(kgen.relu)(x)
    assert torch.equal(y, x.relu())


def test_a_capture_in_a_warm_up_takes_the_kernels(monkeypatch):
    op, x = fresh(kgen.relu), torch.randn(7)
    with kgen.warming():
        op(x)
        monkeypatch.setattr("kgen.runtime.first.is_captured", lambda device: True)
        monkeypatch.setattr("kgen.numerics.reference.native", None)
        y = op(x)
    assert torch.equal(y, x.relu())


def test_autocast_does_not_reach_into_what_computes_in_the_meantime():
    op, x = fresh(kgen.sgemm), torch.randn(8, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16), kgen.warming():
        y = op(x, x.T)
    torch.testing.assert_close(y, x @ x.T)


def test_errors_are_those_of_any_call():
    op, x = fresh(kgen.add), torch.randn(4)
    with kgen.warming() as report:
        with pytest.raises(ArgumentError, match="expected a torch tensor"):
            op(x, 1.0)
        with pytest.raises(ArgumentError, match="shares memory"):
            op(x[1:], x[1:], out=x[:-1])
    assert [met.name for met in report.problems] == ["add"]


def test_a_warm_up_that_fails_leaves_no_interim_plan(monkeypatch):
    op, x = fresh(kgen.relu), torch.randn(4)
    with pytest.raises(ZeroDivisionError), kgen.warming():
        print(op(x), 1 / 0)
    assert plans(op) == []

    def refused(chosen):
        raise CompileError("no such instruction", "log")

    monkeypatch.setattr(call, "compile_ahead", refused)
    with pytest.raises(CompileError, match="no such instruction"), kgen.warming():
        op(x)
    assert plans(op) == []
    monkeypatch.undo()
    assert torch.equal(op(x), x.relu())


def test_a_compiled_model_is_warmed_up():
    op = fresh(kgen.gelu)
    run = torch.compile(lambda x: op(x) * 2, fullgraph=True, backend="aot_eager")
    x = torch.randn(6)
    report = kgen.warm(run, x)
    assert [met.name for met in report.problems] == ["gelu"]
    torch.testing.assert_close(run(x), F.gelu(x, approximate="tanh") * 2)


def test_tuning_within_a_budget(monkeypatch, tmp_path):
    monkeypatch.setenv("KGEN_DATABASE", str(tmp_path / "tuning.sqlite"))
    budgets = []
    tuned = {}

    def tune_problem(problem, *, budget, gpu, restriction):
        budgets.append(budget)
        tuned[problem] = gpu

    monkeypatch.setattr("kgen.runtime.tuning.tune_problem", tune_problem)
    config = dispatch.default(kgen.silu.problem(leading=3, dtype="f32"), dispatch.EMULATED).config
    pinned = fresh(kgen.silu).using(config)
    with kgen.warming(budget="10s") as report:
        fresh(kgen.relu)(torch.randn(3))
        fresh(kgen.gelu)(torch.randn(3))
        pinned(torch.randn(3))
    assert list(tuned) == [met.problem for met in report.problems[:2]]
    assert budgets[0].seconds <= 5 < budgets[1].seconds <= 10  # what the first left is the second's
    assert {str(target.arch) for target in tuned.values()} == {"sm_90a"}
    with kgen.warming(budget="7"):
        fresh(kgen.silu)(torch.randn(3))
    assert (budgets[-1].trials, budgets[-1].seconds) == (7, None)
    with pytest.raises(ArgumentError, match="malformed budget"), kgen.warming(budget="soon"):
        pass


def test_tuning_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("KGEN_DATABASE", str(tmp_path / "tuning.sqlite"))
    monkeypatch.setattr("kgen.tuner.modelled.COMPILED", 1)
    monkeypatch.setattr("kgen.tuner.modelled.VERIFIED", 1)
    op = fresh(kgen.relu)
    report = kgen.warm(op, torch.randn(64, dtype=torch.float32), budget="2")
    (met,) = report.problems
    assert met.outcome.trials >= 1
    assert str(report).endswith("trials, modelled")
    assert f32 in {o.dtype for o in met.problem.operands}

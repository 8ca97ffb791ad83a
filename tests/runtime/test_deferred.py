"""Problems that captures put off: noted as data, found again by name and digest, and tuned by `kgen tune --deferred`."""

from __future__ import annotations

import runpy
import warnings
from collections import Counter
from dataclasses import replace

import pytest
import torch

import kgen
from kgen import KgenError, KgenWarning, Problem, Tensor, dims, f32
from kgen.dsl.errors import DatabaseError
from kgen.dsl.target import TARGETS
from kgen.ops import operators
from kgen.runtime import call, deferred, dispatch, first
from kgen.runtime.dispatch import Choice
from kgen.runtime.operands import problem_of
from kgen.runtime.operator import KernelOperator
from kgen.runtime.plan import Plan
from kgen.runtime.shipped import shipped
from kgen.tuning_db import open_store

M, N = dims("M N")
H200 = TARGETS["H200"]


@pytest.fixture(autouse=True)
def database(monkeypatch, tmp_path):
    path = tmp_path / "tuning.sqlite"
    monkeypatch.setenv("KGEN_DATABASE", str(path))
    monkeypatch.setattr(dispatch, "_warned", set())
    monkeypatch.setattr(dispatch, "_suggested", Counter())
    return path


def noted(path):
    with open_store(path) as store:
        assert store.check() == []
        return store.deferred()


def plan_of(operator, *tensors, how="default"):
    made = Plan(problem_of(operator.definition, tensors, ()), tensors[0].device)
    made.choices = [Choice(None, how)]
    return made


@kgen.operator
def of_this_file(x: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
    return x * 3 + kgen.sum(x, axis=-2)


@pytest.mark.parametrize("name", ["gelu", "linear_gelu", "embedding", "group_norm", "column_max", "dropout", "hgemm"])
def test_a_note_is_found_again_with_every_stride(database, name):
    operator = shipped(name)
    graph = operator.definition.graphs[0]
    leading = {"...": (3,)} if any(s.shape.leading for s in (*graph.inputs, *graph.outputs)) else {}
    dense = Problem.dense(graph, {**dict.fromkeys(graph.dims, 8), **leading})
    odd = [replace(o, strides=tuple(3 * s for s in o.strides), align=4) for o in dense.operands]
    for problem in (dense, Problem.bind(graph, odd)):
        plan = Plan(problem, torch.device("cpu"))
        plan.choices = [Choice(None, "default")]
        deferred.note(operator, plan, H200)
        deferred.note(operator, plan, H200)  # once
    records = noted(database)
    assert [r.place for r in records] == [name, name]
    assert [r.gpu.name for r in records] == [H200.name] * 2
    assert [deferred.problem_of(r, operators()[r.place]) for r in records] == [dense, Problem.bind(graph, odd)]


@pytest.mark.parametrize("name", ["gelu", "layer_norm", "linear_gelu", "softmax"])
def test_gradients_are_noted_by_what_they_are_derived_of(database, name, monkeypatch):
    """All that a training step runs, of some inputs' gradients too, as autograd makes it."""
    met = []
    real = first.first_plan

    def first_plan(operator, key, operands):
        plan = real(operator, key, operands)
        deferred.note(operator, plan, H200)
        met.append(plan.problem)
        return plan

    monkeypatch.setattr(first, "first_plan", first_plan)
    operator = KernelOperator(operators()[name])
    graph = operator.definition.graphs[0]
    shapes = [tuple(4 for _ in spec.shape.dims) for spec in graph.inputs]
    tensors = [torch.randn(2, *s) if spec.shape.leading else torch.randn(s) for s, spec in zip(shapes, graph.inputs)]
    tensors = [x.to(torch.float16 if name == "linear_gelu" else torch.float32) for x in tensors]
    for wanted in (slice(None), slice(0, 1), slice(-1, None)):
        for x in tensors[wanted]:
            x.requires_grad_()
        operator(*tensors).sum().backward()
        for x in tensors:
            x.requires_grad_(False)
    records = noted(database)
    assert {r.place for r in records} == {name}
    found = [deferred.problem_of(r, operators()[name]) for r in records]
    assert len(found) >= 2
    assert {(p.graph.digest, p.key) for p in found} == {(p.graph.digest, p.key) for p in met}


def test_an_operator_of_a_file_is_noted_with_its_place(database):
    deferred.note(of_this_file, plan_of(of_this_file, torch.randn(4, 8)), H200)
    (record,) = noted(database)
    path, _, name = record.place.rpartition(":")
    assert name == "of_this_file"
    again = runpy.run_path(path)[name]
    assert deferred.problem_of(record, again.definition).sizes == {"M": 4, "N": 8}
    with pytest.raises(KgenError, match="has no of_this_file any more"):
        deferred.problem_of(record, operators()["gelu"])


def test_what_is_not_noted(database):
    @kgen.operator
    def inside(x: Tensor[f32, ...]) -> Tensor[f32, ...]:
        return x * 7

    x = torch.randn(8)
    pinned = kgen.gelu.using(dispatch.default(kgen.gelu.problem(leading=8, dtype="f32"), H200).config)
    deferred.note(inside, plan_of(inside, x), H200)  # no module has it
    deferred.note(kgen.gelu.using(pack=4), plan_of(kgen.gelu, x), H200)
    deferred.note(pinned, plan_of(pinned, x), H200)
    for how in ("tuned", "shipped", "given"):
        deferred.note(kgen.gelu, plan_of(kgen.gelu, x, how=how), H200)
    assert not database.exists()
    deferred.note(kgen.gelu, plan_of(kgen.gelu, x, how="nearest"), H200)
    assert len(noted(database)) == 1


def test_a_database_that_cannot_be_written_costs_one_warning(database):
    database.mkdir()
    plan = plan_of(kgen.gelu, torch.randn(8))
    with pytest.warns(KgenWarning, match="its tuning is not noted"):
        deferred.note(kgen.gelu, plan, H200)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        deferred.note(kgen.gelu, plan, H200)
    with pytest.raises(DatabaseError):
        open_store(database)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_first_calls_in_captures_are_noted_and_launched_by_kernels(monkeypatch, captured, device):
    notes, x = [], torch.randn(8)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captured)
    monkeypatch.setattr(deferred, "note", lambda operator, plan, target: notes.append((operator, plan, target)))
    monkeypatch.setattr(call, "target_of", lambda where: H200 if where.type == "cuda" else dispatch.EMULATED)
    real = call.choose(kgen.gelu.definition, None, kgen.gelu.restriction, (x,))
    monkeypatch.setattr(call, "choose", lambda *given: replace(real, device=torch.device(device, 0)))
    monkeypatch.setattr(call, "compile_ahead", lambda chosen: None)
    plan = Plan(real.problem, x.device)
    monkeypatch.setattr(call, "load_plan", lambda chosen: plan)
    operator = KernelOperator(kgen.gelu.definition)
    expected = [(operator, plan, H200)] if captured and device == "cuda" else []
    assert first.first_plan(operator, (), (x,)) is plan
    assert notes == expected
    with kgen.warming():
        assert (first.first_plan(operator, (), (x,)) is plan) == bool(expected)  # else what computes in the meantime
    assert notes == 2 * expected

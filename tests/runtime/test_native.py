"""Warm calls by the extension: what it does itself, what it leaves to Python, and what it hands to the driver."""

from __future__ import annotations

import gc
import itertools
import sysconfig
import weakref
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import kgen
from kgen import ArgumentError, Tensor, f32
from kgen.codegen import settings
from kgen.codegen.host_compiler import is_built
from kgen.dsl.operator import Graph
from kgen.runtime import autograd, call, gradients, native, registry
from kgen.runtime.operator import KernelOperator

pytestmark = pytest.mark.skipif(
    not (Path(sysconfig.get_path("include")) / "Python.h").is_file(), reason="needs Python's headers"
)


@pytest.fixture(autouse=True)
def extension(monkeypatch):
    monkeypatch.setattr(registry, "extension", None)  # as it is after the test
    registry.extension = native.load()
    return registry.extension


@kgen.operator
def scaled(x: Tensor[f32, ...], y: Tensor[f32, ...], factor: float = 2.0, shift: int = 0) -> Tensor[f32, ...]:
    return x * factor + y + kgen.cast(shift, f32)


def fresh(operator):
    return KernelOperator(operator.definition)


def twice(operator, *given, **named):
    """The result of a second call, whose plan is known from then on."""
    operator(*given, **named)
    return operator(*given, **named)


def seen(operator, *given, out=None, **named):
    """Whether the extension makes the call, or finds its plan."""
    return operator._calls is not None and operator._calls(given, out, named) is not NotImplemented


# What Python's way does, this does.


def test_a_call_of_a_known_kind_finds_its_plan():
    operator, x, y = fresh(scaled), torch.randn(3, 5), torch.randn(3, 5)
    assert not seen(operator, x, y)
    for _ in range(3):
        torch.testing.assert_close(operator(x, y), 2 * x + y)
    assert seen(operator, x, y)
    torch.testing.assert_close(operator(x, y, factor=0.5, shift=3), 0.5 * x + y + 3)
    out = torch.empty(3, 5)
    for _ in range(2):
        assert operator(x, y, out=out) is out
        torch.testing.assert_close(out, 2 * x + y)
    assert seen(operator, x, y, out=out)
    assert seen(operator, x, y, out=[out])
    with pytest.raises(ArgumentError, match="no number 'facto'"):
        operator(x, y, facto=1.0)
    with pytest.raises(ArgumentError, match="factor"):
        operator(x, y, factor="2")


@pytest.mark.parametrize(
    "other",
    [
        lambda x: torch.empty(3, 6)[:, :5].copy_(x),
        lambda x: torch.empty(16)[1:].view(3, 5).copy_(x),
        lambda x: x.t().contiguous().t(),
        lambda x: x[:, :4],
        lambda x: x[:2],
        lambda x: x[None],
        lambda x: x.expand(2, 3, 5),
        lambda x: torch.nn.Parameter(x, requires_grad=False),
    ],
)
def test_another_kind_of_operands_is_another_call(other):
    operator, x = fresh(scaled), torch.randn(3, 5)
    twice(operator, x, x)
    z = other(x)
    assert not seen(operator, z, z)
    torch.testing.assert_close(twice(operator, z, z), 3 * z.detach())
    assert seen(operator, z, z)
    torch.testing.assert_close(operator(z, z), 3 * z.detach())


def test_what_torch_has_to_see_is_left_to_python():
    operator, x, y = fresh(scaled), torch.randn(4), torch.randn(4)
    parameter = torch.nn.Parameter(x)
    twice(operator, x, y)
    assert seen(operator, x, y)
    for ordinary in (torch.no_grad(), torch.inference_mode()):
        with ordinary:
            twice(operator, parameter, y)
            assert seen(operator, parameter, y)

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    for watched in (Mode(), torch.autocast("cpu")):
        with watched:
            assert not seen(operator, x, y)
            assert not seen(operator, parameter, y)
    assert not seen(operator, parameter, y, out=torch.empty(4))
    assert not seen(operator, parameter.to("meta"), y)

    def inner(a):
        assert not seen(operator, a, a)
        return operator(a, a)

    torch.testing.assert_close(torch.func.vmap(inner)(torch.stack([x, y])), 3 * torch.stack([x, y]))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, y)
        with pytest.raises((NotImplementedError, RuntimeError)):
            operator(dual, y)
    torch.testing.assert_close(torch.compile(operator, backend="eager", fullgraph=True)(x, y), 2 * x + y)
    with FakeTensorMode():
        fake = torch.empty(4)
    for strange in (torch._neg_view(x), x.to("meta"), x.to_sparse(), fake):
        assert not seen(operator, strange, y)
    assert not seen(operator, x, 1.0)
    assert not seen(operator, x)


def test_calls_of_which_a_gradient_is_wanted(extension):
    operator, x, y = fresh(scaled), torch.nn.Parameter(torch.randn(3, 4)), torch.randn(3, 4)
    for factor in (2.0, 3.0, 4.0):
        result = operator(x, y, factor=factor)
        assert seen(operator, x, y, factor=factor)
        torch.testing.assert_close(result, factor * x + y)
        (found,) = torch.autograd.grad(result.sum(), x)
        assert torch.equal(found, torch.full_like(x, factor))
    with pytest.raises(ArgumentError, match=r"^scaled takes no number 'facto'"):
        operator(x, y, facto=1.0)
    with pytest.raises(ArgumentError, match=r"^scaled: leading sizes"):
        operator(x, torch.randn(3, 5))
    with torch.no_grad():
        assert not operator(x, y).requires_grad


def trains(operator, inputs, seed, **numbers):
    """The results of a step forward and backward."""
    y = operator(*inputs, **numbers)
    return y, *torch.autograd.grad(y, [x for x in inputs if x.requires_grad], seed)


@pytest.mark.parametrize("way", ["extension", "python"])
def test_a_warm_training_step_works_nothing_out(monkeypatch, way):
    """Neither graphs nor problems, plans or ways to gradients; by the extension no look-up of Python's either."""
    if way == "python":
        monkeypatch.setattr(registry, "extension", None)
    operator, seed = fresh(kgen.layer_norm), torch.randn(2, 3, 8)
    inputs = [
        torch.randn(shape).requires_grad_(wanted) for shape, wanted in (((2, 3, 8), True), ((8,), True), ((8,), False))
    ]
    for _ in range(3):
        first = trains(operator, inputs, seed, eps=1e-3)
    forbidden = [(autograd, name) for name in ("Step", "way_of", "graph_of", "needed", "training_form")]
    forbidden += [(gradients, "backward"), (call, "problem_of"), (call, "choose")]
    forbidden += [(KernelOperator, "derived"), (KernelOperator, "keep")]
    if way == "extension":
        forbidden += [(KernelOperator, "_first"), (KernelOperator, "_run"), (autograd, "call"), (autograd, "is_seen")]
        forbidden += [(autograd.Step, "gradients")]
    for owner, name in forbidden:
        monkeypatch.setattr(owner, name, lambda *given, name=name, **named: pytest.fail(f"{name} in a warm step"))
    monkeypatch.setattr(Graph, "digest", property(lambda graph: pytest.fail("a graph is looked up in a warm step")))
    fresh_inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    for got, want in zip(trains(operator, fresh_inputs, seed.clone(), eps=1e-3), first):
        assert torch.equal(got, want)


def test_steps_of_other_kinds_are_other_steps():
    """Which gradients are wanted, shapes and dtypes, which results have gradients, deterministic mode, double backward."""
    operator = fresh(kgen.add_rms_norm)
    expected = {}
    for _ in range(2):
        for needs, rows, dtype in itertools.product(
            ((True, True), (True, False), (False, True)), (2, 3), (torch.float32, torch.float64)
        ):
            x, w = torch.ones(rows, 4, dtype=dtype).cumsum(1), torch.ones(4, dtype=dtype)
            inputs = [x.requires_grad_(needs[0]), x.detach() * 0.5, w.requires_grad_(needs[1])]
            wanted = [t for t in inputs if t.requires_grad]
            normed, total = operator(*inputs)
            found = [*torch.autograd.grad(normed.sum(), wanted, retain_graph=True)]
            found += torch.autograd.grad((normed * 2 + total).sum(), wanted, create_graph=True)
            kind = needs, rows, dtype
            assert all(got.shape == x.shape and got.dtype is dtype for got, x in zip(found, wanted * 2))
            assert all(got.requires_grad for got in found[len(wanted) :])
            for got, want in zip(found, expected.setdefault(kind, found)):
                assert torch.equal(got, want)
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        assert torch.autograd.gradgradcheck(lambda x, w: operator(x, x, w), (x, w))


def test_gradients_that_are_more_than_a_warm_call_are_pythons(monkeypatch):
    """Lazily negated ones, those of a result alone that passes an input on, what was not met; within forward differentiation."""
    operator, x = fresh(kgen.add_rms_norm), torch.randn(3, 4, requires_grad=True)
    w, seed = torch.randn(4, requires_grad=True), torch.randn(3, 4)

    def step(*seeds):
        results = operator(x, x.detach() * 0.5, w)
        there = [(y, g) for y, g in zip(results, seeds) if g is not None]
        return torch.autograd.grad([y for y, _ in there], (x, w), [g for _, g in there], allow_unused=True)

    for _ in range(3):
        want, negated, of_sum = step(seed, None), step(-seed, None), step(None, seed)
    by_python, real = [], autograd.Step.gradients
    monkeypatch.setattr(autograd.Step, "gradients", lambda self, *given: by_python.append(1) or real(self, *given))
    assert all(map(torch.equal, step(seed, None), want))
    assert not by_python
    assert all(map(torch.equal, step(torch._neg_view(seed), None), negated))
    assert torch.equal(step(None, seed)[0], of_sum[0])
    assert of_sum[1] is None or not of_sum[1].any()
    assert len(by_python) == 2
    both = [step(seed, seed) for _ in range(4)]  # a kind of its own: the fourth is the extension's
    assert len(by_python) == 5
    with torch.autograd.forward_ad.dual_level():
        both.append(step(seed, seed))
    assert len(by_python) == 6
    for found in both:
        assert all(map(torch.equal, found, both[0]))


def test_what_is_kept_of_a_step_is_looked_at_when_it_is_used():
    operator, x = fresh(kgen.softmax), torch.randn(3, 4, requires_grad=True)
    for _ in range(2):
        y = operator(x)
        y.sum().backward(retain_graph=True)
    with torch.no_grad():
        y.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: packed.append(t) or t.clone().t().contiguous().t(), lambda t: t
    ):
        y = operator(x)
    (found,) = torch.autograd.grad(y, x, torch.eye(3, 4))
    (want,) = torch.autograd.grad(torch.softmax(x, -1), x, torch.eye(3, 4))
    torch.testing.assert_close(found, want)
    assert len(packed) == 1


def test_the_version_of_an_output_is_counted():
    operator, x, y = fresh(scaled), torch.randn(4, requires_grad=True), torch.randn(4)
    saved = y.clone()
    product = x * saved
    with torch.no_grad():
        for _ in range(3):
            operator(y, y, out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_outputs_that_share_memory_are_looked_at():
    operator, memory = fresh(scaled), torch.zeros(12)
    x, y, out = memory[:4], memory[4:8], memory[8:]
    for _ in range(2):
        operator(x, y, out=out)
    for _ in range(2):
        assert operator(x, y, out=x) is x
        with pytest.raises(ArgumentError, match="shares memory"):
            operator(memory[:4], y, out=memory[1:5])


def test_what_was_tuned_since_is_looked_up():
    operator, x = fresh(scaled), torch.randn(4)
    twice(operator, x, x)
    assert seen(operator, x, x)
    operator.forget()
    assert not seen(operator, x, x)


def test_nothing_is_kept_of_an_operator_that_is_gone():
    operator, x = fresh(scaled), torch.randn(4)
    twice(operator, x, x)
    for _ in range(3):
        operator(x.requires_grad_(), x).sum().backward()
    gone = weakref.ref(operator)
    del operator
    gc.collect()
    assert gone() is None


def test_a_deep_graph_is_given_back_without_recursion():
    operator, x = fresh(kgen.relu), torch.randn(2, requires_grad=True)
    y = x
    for _ in range(20000):
        y = operator(y)
    del y
    (found,) = torch.autograd.grad(operator(x).sum(), x)
    assert torch.equal(found, (x > 0).float())


# Building it.


def test_it_is_built_anew_where_it_is_damaged():
    path = native._built()
    assert is_built(path)
    assert path.is_relative_to(settings.cache_dir())


def test_calls_stay_in_python_where_the_user_says_so(monkeypatch):
    monkeypatch.setenv("KGEN_WARM_CALLS", "python")
    monkeypatch.setattr(native, "load", lambda: pytest.fail("it was loaded"))
    native.begin.__wrapped__()

"""Gradients of calls: on the emulator in f64 by torch's gradcheck, in the dtypes of training against torch; and by hand."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import kgen
from kgen import ArgumentError, Tensor, dims, f16, f32, f64
from kgen.runtime import native, registry

M, N, K = dims("M N K")
HEADERS = (Path(sysconfig.get_path("include")) / "Python.h").is_file()


@pytest.fixture(
    autouse=True,
    params=[
        "python",
        pytest.param("extension", marks=pytest.mark.skipif(not HEADERS, reason="needs Python's headers")),
    ],
)
def way(request, monkeypatch):
    """Warm calls by Python, and by the extension."""
    monkeypatch.setattr(registry, "extension", None)  # as it is after the test
    if request.param == "extension":
        registry.extension = native.load()
    yield
    for operator in {one for known in registry._by_key.values() for one in known}:
        operator._calls = None


def drawn(*shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    made = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    return [x.requires_grad_() for x in made]


@pytest.mark.parametrize(
    ("operator", "shapes"),
    [
        (kgen.gelu, [(3, 5)]),
        (kgen.mul, [(2, 1, 3), (4, 1)]),
        (kgen.softmax, [(2, 2, 7)]),
        (kgen.layer_norm, [(2, 2, 6), (6,), (6,)]),
        (kgen.dgemm, [(2, 3, 4), (4, 5)]),
        (kgen.column_max, [(4, 3)]),
    ],
)
def test_first_and_second_derivatives(operator, shapes):
    inputs = drawn(*shapes)
    assert torch.autograd.gradcheck(operator, inputs)
    assert torch.autograd.gradgradcheck(operator, inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_linear_layer_of_modules_trains(dtype):
    layer = torch.nn.Linear(24, 16).to(dtype)
    (x,) = drawn((2, 5, 24), dtype=dtype)
    kgen.linear_gelu(x, layer.weight, layer.bias).float().square().sum().backward()
    exact = [t.detach().double().requires_grad_() for t in (x, layer.weight, layer.bias)]
    F.gelu(F.linear(*exact), approximate="tanh").square().sum().backward()
    eps = torch.finfo(dtype).eps
    for got, want in zip((x, layer.weight, layer.bias), exact):
        assert got.grad.dtype is dtype
        torch.testing.assert_close(
            got.grad.double(), want.grad, rtol=8 * eps, atol=8 * eps * want.grad.abs().max().item()
        )


def test_what_torch_keeps_of_a_call():
    """softmax keeps its result alone, layer_norm its input and two numbers a row."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.shape) or x, lambda x: x):
        (x, w) = drawn((4, 8), (8,), dtype=torch.float32)
        kgen.softmax(x)
        assert kept == [(4, 8)]
        kept.clear()
        kgen.layer_norm(x, w, w)
        assert sorted(map(tuple, kept)) == [(4, 1), (4, 1), (4, 8), (8,)]


def test_gradients_of_some_inputs_and_of_some_results():
    x, residual, w = drawn((3, 4), (3, 4), (4,))
    normed, total = kgen.add_rms_norm(x, residual.detach(), w.detach())
    (found,) = torch.autograd.grad(total, [x], torch.ones_like(total), retain_graph=True)
    assert torch.equal(found, torch.ones_like(x))
    (found,) = torch.autograd.grad(normed.sum(), [x])
    (expected,) = torch.autograd.grad(F.rms_norm(x + residual, (4,), eps=1e-6).mul(w).sum(), [x])
    torch.testing.assert_close(found, expected)


def test_dropout_lets_the_same_through():
    (x,) = drawn((8, 8), dtype=torch.float32)
    y = kgen.dropout(x, 0.5, seed=3, offset=7)
    y.sum().backward()
    assert torch.equal(x.grad != 0, y != 0)
    assert set(x.grad.unique().tolist()) == {0.0, 2.0}


def test_an_embedding_of_a_batch():
    (table,) = drawn((7, 4), dtype=torch.float32)
    ids = torch.tensor([[1, 2, 1], [0, 6, 1]])
    kgen.embedding(table, ids).sum().backward()
    assert table.grad[:, 0].tolist() == [1, 3, 1, 0, 0, 0, 1]


def test_checkpoints():
    inputs = drawn((3, 6), (6,), (6,))
    for reentrant in (False, True):
        y = checkpoint(lambda *given: kgen.layer_norm(*given), *inputs, use_reentrant=reentrant)
        found = [x.grad for x in inputs if x.grad is not None] or None
        assert found is None
        y.square().sum().backward()
        found = [x.grad.clone() for x in inputs]
        expected = torch.autograd.grad(F.layer_norm(inputs[0], (6,), *inputs[1:]).square().sum(), inputs)
        for got, want in zip(found, expected):
            torch.testing.assert_close(got, want)
        for x in inputs:
            x.grad = None


def test_no_rows():
    inputs = drawn((0, 8), (8,), (8,), dtype=torch.float32)
    kgen.layer_norm(*inputs).sum().backward()  # its gradient is one number, expanded to none
    assert [x.grad.tolist() for x in inputs] == [[], [0.0] * 8, [0.0] * 8]


def test_layouts():
    """Views, a vector for a matrix of one column, a batch whose matrix is one for all."""
    x, w = drawn((6, 4, 3), (6,))
    b, seed = torch.zeros(6, dtype=torch.float64), torch.randn(3, 4, 6, dtype=torch.float64)
    ours, torchs = (
        f(x.transpose(0, 2)) for f in (lambda x: kgen.layer_norm(x, w, b), lambda x: F.layer_norm(x, (6,), w, b))
    )
    for got, want in zip(*(torch.autograd.grad(y, (x, w), seed) for y in (ours, torchs))):
        torch.testing.assert_close(got, want)
    for operator, shapes in ((kgen.sgemv, [(5, 7), (7,)]), (kgen.sgemm, [(2, 5, 7), (7, 3)])):
        a, v = drawn(*shapes, dtype=torch.float32)
        for got, want in zip(*(torch.autograd.grad(y.sum(), (a, v)) for y in (operator(a, v), a @ v))):
            torch.testing.assert_close(got, want)


def test_losses_and_norms_of_several_launches():
    (x,) = drawn((4, 9), dtype=torch.float32)
    target, seed = torch.tensor([1, 2, -100, 3]), torch.randn(4)
    got, want = kgen.cross_entropy(x, target), F.cross_entropy(x, target, reduction="none")
    torch.testing.assert_close(*(torch.autograd.grad(y, x, seed) for y in (got, want)))
    inputs = drawn((2, 2, 3, 5), (2, 3, 1), (2, 3, 1), dtype=torch.float32)
    got = kgen.group_norm(*inputs)
    want = F.group_norm(inputs[0].reshape(2, 6, 5), 2, *(w.reshape(6) for w in inputs[1:])).reshape(got.shape)
    seed = torch.randn(got.shape)
    for ours, torchs in zip(*(torch.autograd.grad(y, inputs, seed) for y in (got, want))):
        torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-5)


def test_functorch():
    x, w, b = (t.detach() for t in drawn((3, 4, 6), (6,), (6,)))

    def ours(x, w, b):
        return kgen.layer_norm(x, w, b).square().sum()

    def torchs(x, w, b):
        return F.layer_norm(x, (6,), w, b).square().sum()

    for got, want in zip(torch.func.grad(ours, (0, 1, 2))(x, w, b), torch.func.grad(torchs, (0, 1, 2))(x, w, b)):
        torch.testing.assert_close(got, want)
    got, want = (torch.vmap(torch.func.grad(f), (0, None, None))(x, w, b) for f in (ours, torchs))
    torch.testing.assert_close(got, want)
    got, want = (torch.func.jacrev(torch.func.jacrev(f))(w) for f in (kgen.softmax, lambda x: torch.softmax(x, -1)))
    torch.testing.assert_close(got, want)


def test_batches():
    x, w = (t.detach() for t in drawn((5, 3, 6), (5, 6), dtype=torch.float32))
    b = torch.zeros(6)
    for dim in (0, 1):
        got = torch.vmap(lambda x: kgen.layer_norm(x, w[0], b), dim, dim)(x)
        torch.testing.assert_close(got, F.layer_norm(x, (6,), w[0], b))
    got = torch.vmap(lambda x, w: kgen.layer_norm(x, w, b))(x, w)  # weights have no leading dimension: call after call
    torch.testing.assert_close(got, torch.stack([F.layer_norm(x[i], (6,), w[i], b) for i in range(5)]))
    # Another axis would draw other numbers for an element.
    got = torch.vmap(lambda x: kgen.dropout(x, 0.5, seed=1))(x)
    assert torch.equal(got[4], kgen.dropout(x[4], 0.5, seed=1))


def test_forward_mode_raises():
    x = torch.randn(3)
    with pytest.raises(NotImplementedError):
        torch.func.jvp(kgen.gelu, (x,), (x,))
    kgen.gelu(x)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError):
        kgen.gelu(torch.autograd.forward_ad.make_dual(x, x))


def test_gradients_that_autograd_batches_by_itself():
    (x,) = drawn((2, 2, 7))
    expected = torch.autograd.functional.jacobian(lambda x: torch.softmax(x, -1), x)
    torch.testing.assert_close(torch.autograd.functional.jacobian(kgen.softmax, x, vectorize=True), expected)


def test_what_does_not_fit_is_refused_in_the_operators_own_name():
    x, w, long = drawn((3, 4), (4,), (5,), dtype=torch.float32)
    with pytest.raises(ArgumentError, match=r"^layer_norm: bias has N=5"):
        kgen.layer_norm(x, w, long)
    with pytest.raises(ArgumentError, match=r"^layer_norm takes no number 'epsilon'"):
        kgen.layer_norm(x, w, w, epsilon=1e-6)


def test_gradients_that_are_lazily_negated():
    (x,) = drawn((3, 5))
    y, seed = kgen.gelu(x), torch.randn(3, 5, dtype=torch.float64)
    got, want = (torch.autograd.grad(y, x, g, retain_graph=True)[0] for g in (torch._neg_view(-seed), seed))
    assert torch.equal(got, want)


def test_sizes_that_only_an_output_tells():
    (x,) = drawn((1, 2, 2, 3), dtype=torch.float32)
    y = kgen.upsample_nearest(x, out=torch.empty(1, 2, 4, 6))
    (found,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(found, torch.full_like(x, 4.0))
    with pytest.raises(ArgumentError, match=r"^upsample_nearest got dtypes"):
        kgen.upsample_nearest(x, out=torch.empty(1, 2, 4, 6, dtype=torch.float64))


def test_sizes_that_only_an_operand_of_the_call_tells():
    """The gradient of x is grad_out times N, which stands in y alone."""

    def rows(x: Tensor[f32, M, 1], y: Tensor[f32, M, N]) -> Tensor[f32, M, 1]:
        return kgen.sum(x - y, -1)

    def all_of_it(x: Tensor[f32], y: Tensor[f32, M, N]) -> Tensor[f32]:
        return kgen.mean(x - y, None)

    for function, shape, wanted in ((rows, (3, 1), 5.0), (all_of_it, (), 1.0)):
        x, y = drawn(shape, (3, 5), dtype=torch.float32)
        kgen.operator(function)(x, y.detach()).sum().backward()
        torch.testing.assert_close(x.grad, torch.full(shape, wanted))


@pytest.mark.parametrize("rows", [3, 1, 0])
def test_gradients_that_are_the_same_along_all_axes(rows):
    """That of a row which all rows share is one number, of more axes than the row has."""

    def sums(x: Tensor[f64, N], y: Tensor[f64, M, N]) -> Tensor[f64, M, 1]:
        return kgen.sum(x + y)

    x, y = drawn((5,), (rows, 5))
    kgen.operator(sums)(x, y).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, rows))
    assert torch.equal(y.grad, torch.ones_like(y))


def test_nothing_along_two_axes():
    """grad_out has no element, and y one: it was read all the same, at address 0."""

    def means(x: Tensor[f64, M, N], y: Tensor[f64, 1]) -> Tensor[f64, N]:
        return kgen.mean(x * y, -2)

    x, y = drawn((0, 0), (1,))
    kgen.operator(means)(x, y).sum().backward()
    assert torch.equal(y.grad, torch.zeros_like(y))


def test_sizes_that_another_gradient_tells():
    """Where new begins is the size of past, and the gradient of new a launch of its own."""
    past, new = drawn((2, 3, 4, 8), (2, 3, 5, 8), dtype=torch.float32)
    joined = kgen.concat_sequence(past, new, out=torch.empty(2, 3, 9, 8))
    g = torch.randn(2, 3, 9, 8)
    a, b = torch.autograd.grad(joined, (past, new), g)
    assert torch.equal(a, g[:, :, :4])
    assert torch.equal(b, g[:, :, 4:])


def largest_of_computed(x: Tensor[f16, M, N]) -> Tensor[f16, M]:
    return kgen.amax(kgen.sin(x))


def largest_of_wider(x: Tensor[f32, M, N]) -> Tensor[f16, N]:
    return kgen.amax(x, -2)


def scaled_by_the_largest(x: Tensor[f16, M, K], w: Tensor[f16, K, N]) -> Tensor[f16, M, N]:
    return (x @ w) / (2.0 + kgen.amax(abs(x @ w)))


@pytest.mark.parametrize(
    ("function", "shapes", "reference"),
    [
        (largest_of_computed, [(3, 9)], lambda x: x.sin().amax(-1)),
        (largest_of_wider, [(3, 9)], lambda x: x.amax(-2)),
        (
            scaled_by_the_largest,
            [(3, 8), (8, 5)],
            lambda x, w: (x @ w) / (2.0 + (x @ w).abs().amax(-1, keepdim=True)),
        ),
    ],
)
def test_the_largest_where_results_are_rounded(function, shapes, reference):
    """Rounded, a result equals none of the values that it is the largest of, and nothing would flow there."""
    dtype = torch.float32 if function is largest_of_wider else torch.float16
    inputs = [x.detach().to(dtype).requires_grad_() for x in drawn(*shapes)]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    y, z = kgen.operator(function)(*inputs), reference(*exact)
    g = torch.randn(z.shape, generator=torch.Generator().manual_seed(6)).half()
    got, want = torch.autograd.grad(y, inputs, g), torch.autograd.grad(z, exact, g.double())
    for a, b in zip(got, want):
        torch.testing.assert_close(a.double(), b, rtol=4e-3, atol=4e-3 * b.abs().max().item())


def test_a_step_again_and_again():
    """Warm steps: hooks of tensors and nodes, a graph that is kept, one that is gone."""
    inputs = drawn((3, 6), (6,), (6,))
    want = torch.autograd.grad(F.layer_norm(inputs[0], (6,), *inputs[1:]).square().sum(), inputs)
    for _ in range(3):
        y = kgen.layer_norm(*inputs)
        seen = []
        y.register_hook(lambda g, seen=seen: seen.append(g.shape))
        y.grad_fn.register_hook(lambda made, given, seen=seen: seen.append(len(made)))
        y.grad_fn.register_prehook(lambda given, seen=seen: seen.append(given[0].shape))
        loss = y.square().sum()
        for _ in range(2):
            for got, expected in zip(torch.autograd.grad(loss, inputs, retain_graph=True), want):
                torch.testing.assert_close(got, expected)
        assert len(seen) == 6
        torch.autograd.grad(loss, inputs)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(y, inputs, torch.ones_like(y))
        assert y.grad_fn.next_functions[0][0] is not None


def test_a_warm_gradient_that_goes_wrong_says_so():
    (x,) = drawn((3, 4), dtype=torch.float32)
    for _ in range(2):
        kgen.softmax(x).sum().backward()
    y = kgen.softmax(x)
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()

    def refused(t):
        raise ValueError("not packed")

    with torch.autograd.graph.saved_tensors_hooks(refused, refused), pytest.raises(ValueError, match="not packed"):
        kgen.softmax(x)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, refused):
        y = kgen.softmax(x)
    with pytest.raises(ValueError, match="not packed"):
        y.sum().backward()


def test_int_results_have_no_gradient():
    (x,) = drawn((3, 4), dtype=torch.float32)
    assert not kgen.row_argmax(x).requires_grad


def test_an_operator_of_ones_own():
    @kgen.operator
    def swiglu_norm(x: Tensor[f64, M, N], gate: Tensor[f64, M, N], w: Tensor[f64, N]) -> Tensor[f64, M, N]:
        y = kgen.silu(x) * gate
        return y * kgen.rsqrt(kgen.mean(y * y) + 1e-5) * w

    assert torch.autograd.gradcheck(swiglu_norm, drawn((3, 4), (3, 4), (4,)))
    whole, backward = swiglu_norm.backward_graphs()
    assert [s.name for s in whole.outputs] == ["out", "rsqrt"]
    assert [s.name for s in backward.outputs] == ["grad_x", "grad_gate", "grad_w"]
    assert [s.name for s in swiglu_norm.backward_graphs("w")[1].outputs] == ["grad_w"]
    with pytest.raises(ArgumentError, match="no tensor 'v'; expected some of x, gate, w"):
        swiglu_norm.backward_graphs("v")


def test_a_gradient_of_ones_own():
    @kgen.operator
    def rounded(x: Tensor[f32, M, N], step: float) -> Tensor[f32, M, N]:
        return kgen.round(x / step) * step

    (x,) = drawn((3, 4), dtype=torch.float32)
    rounded(x, step=0.5).sum().backward()
    assert torch.equal(x.grad, torch.zeros(3, 4))

    @rounded.gradient
    def straight_through(grad_out: Tensor[f32, M, N], step: float) -> Tensor[f32, M, N]:
        return grad_out * 1.0

    x.grad = None
    rounded(x, step=0.5).sum().backward()
    assert torch.equal(x.grad, torch.ones(3, 4))
    x.grad = None
    rounded.using(threads=128)(x, step=0.5).sum().backward()
    assert torch.equal(x.grad, torch.ones(3, 4))

    def wrong(grad_y: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
        return grad_y * 1.0

    with pytest.raises(
        ArgumentError, match=r"wrong, the gradient of rounded, takes grad_y; expected some of x, out, grad_out"
    ):
        rounded.gradient(wrong)


def test_a_gradient_of_ones_own_of_one_of_two_results():
    """What has no gradient counts as zeros of its own dtype."""

    @kgen.operator
    def pair(x: Tensor[f32, M, N]) -> tuple[Tensor[f32, M, N], Tensor[f16, M, N]]:
        return x * 2.0, kgen.cast(x * 3.0, f16)

    @pair.gradient
    def of_both(grad_out0: Tensor[f32, M, N], grad_out1: Tensor[f16, M, N]) -> Tensor[f32, M, N]:
        return grad_out0 * 2.0 + grad_out1 * 3.0

    (x,) = drawn((3, 4), dtype=torch.float32)
    for y, slope in zip(pair(x), (2.0, 3.0)):
        (found,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        assert torch.equal(found, torch.full((3, 4), slope))


def test_an_op_without_a_derivative_says_so():
    a, b = drawn((4, 8), (2, 8, 3), dtype=torch.float16)
    offsets = torch.tensor([0, 1, 4], dtype=torch.int32)
    with pytest.raises(kgen.DefinitionError, match=r"grouped_hgemm has no derivative by b.*@grouped_hgemm\.gradient"):
        kgen.grouped_hgemm(a, b, offsets)
    kgen.grouped_hgemm(a, b.detach(), offsets).float().sum().backward()
    expected = torch.cat([torch.ones(1, 3) @ b[0].float().T, torch.ones(3, 3) @ b[1].float().T])
    torch.testing.assert_close(a.grad.float(), expected, rtol=2e-3, atol=2e-3)

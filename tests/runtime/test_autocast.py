"""torch.autocast on the CPU: an operator takes and gives the dtypes that torch's own op of its kind does, called and compiled."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import kgen
from kgen import ArgumentError
from kgen.ops import operators
from kgen.runtime import autocast
from kgen.runtime.operator import KernelOperator

f32, f16, bf16 = torch.float32, torch.float16, torch.bfloat16


def drawn(*shapes, dtypes):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(s, generator=generator).to(t) for s, t in zip(shapes, dtypes)]


#: Operator, torch's own, shapes, and the dtypes of the inputs. On the CPU torch casts less to f32 than on CUDA: there by hand.
CASES = [
    ("hgemm", torch.matmul, [(2, 4, 8), (8, 6)], [f32, f32]),
    ("hgemm", torch.matmul, [(4, 8), (8, 6)], [bf16, f32]),
    ("linear_gelu", lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"), [(2, 4, 8), (6, 8), (6,)], [f32] * 3),
    ("linear_gelu", lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"), [(4, 8), (6, 8), (6,)], [bf16, f32, f32]),
    ("layer_norm", lambda x, w, b: F.layer_norm(x, w.shape, w, b), [(4, 8), (8,), (8,)], [f32] * 3),
    ("layer_norm", lambda x, w, b: F.layer_norm(x.float(), w.shape, w, b), [(4, 8), (8,), (8,)], [bf16, f32, f32]),
    ("softmax", lambda x: F.softmax(x.float(), -1), [(4, 8)], [bf16]),
    ("logsumexp", lambda x: torch.logsumexp(x.float(), -1, True), [(4, 8)], [f16]),
    ("cumsum", lambda x: torch.cumsum(x.float(), -1), [(4, 8)], [f16]),
    ("gelu", lambda x: F.gelu(x, approximate="tanh"), [(4, 8)], [bf16]),
    ("add", torch.add, [(4, 8), (8,)], [bf16, f32]),
    ("silu_mul", lambda x, y: F.silu(x.float()) * y, [(4, 8), (4, 8)], [f16, f32]),
]  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_as_torchs_own(case, compiled):
    torch._dynamo.reset()
    name, reference, shapes, dtypes = CASES[case]
    op, inputs = KernelOperator(operators()[name]), drawn(*shapes, dtypes=dtypes)
    run = torch.compile(lambda *given: op(*given), fullgraph=True, backend="aot_eager") if compiled else op
    with torch.autocast("cpu", dtype=bf16):
        expected = reference(*inputs)
        for _ in range(2):  # of a new kind, and again
            got = run(*inputs)
            assert got.dtype is expected.dtype
            eps = torch.finfo(got.dtype).eps
            torch.testing.assert_close(got.double().view_as(expected), expected.double(), rtol=8 * eps, atol=8 * eps)
    if len(set(dtypes)) == 1 and autocast.policy_of(op.definition) != "autocast":
        assert run(*inputs).dtype is dtypes[0]  # as ever outside of it


@pytest.mark.parametrize("compiled", [False, True])
def test_tensors_by_name_and_numbers(compiled):
    torch._dynamo.reset()
    x, w = drawn((4, 8), (8,), dtypes=[bf16, f32])
    op = KernelOperator(operators()["rms_norm"])

    def call(x, w):
        return op(x, weight=w, eps=0.5), op(x, w, 0.5), op(weight=w, x=x)

    run = torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call
    with torch.autocast("cpu", dtype=bf16):
        named, placed, plain = run(x, w)
    assert {named.dtype, placed.dtype, plain.dtype} == {f32}
    torch.testing.assert_close(named, F.rms_norm(x.float(), (8,), w, 0.5))
    assert torch.equal(named, placed)
    assert not torch.equal(named, plain)


def test_a_training_step_has_gradients_of_the_parameters_own_dtypes():
    layer, norm = torch.nn.Linear(8, 6), torch.nn.LayerNorm(6)
    x = drawn((4, 8), dtypes=[f32])[0].requires_grad_()
    inputs = (x, *layer.parameters(), *norm.parameters())
    with torch.autocast("cpu", dtype=bf16):
        y = kgen.layer_norm(kgen.linear_gelu(x, layer.weight, layer.bias), norm.weight, norm.bias)
        expected = norm(F.gelu(layer(x), approximate="tanh"))
    assert y.dtype is f32
    exact = [t.detach().double().requires_grad_() for t in inputs]
    z = F.gelu(F.linear(*exact[:3]), approximate="tanh")
    z = F.layer_norm(z, (6,), *exact[3:])
    seed = torch.randn_like(y)
    results = ((y, inputs), (expected.float(), inputs), (z, exact))
    for got, theirs, want in zip(
        *(torch.autograd.grad(result, given, seed.to(result.dtype)) for result, given in results)
    ):
        assert got.dtype is f32
        ours_off, theirs_off = ((g.double() - want).abs().max().item() for g in (got, theirs))
        assert ours_off <= 2 * theirs_off + torch.finfo(bf16).eps * want.abs().max().item()


def test_what_stays():
    """f64, what an operator is not defined for, calls with out=, and devices whose autocast is off."""
    x, w = drawn((4, 8), (8, 6), dtypes=[torch.float64] * 2)
    with torch.autocast("cpu", dtype=bf16):
        assert kgen.dgemm(x, w).dtype is torch.float64
        assert kgen.sgemm(x.float(), w.float()).dtype is f32  # it has no other dtype
        y = torch.empty(4, 8, dtype=f16)
        assert kgen.softmax(x.half(), out=y) is y
        with torch.autocast("cpu", enabled=False):
            assert kgen.softmax(x.half()).dtype is f16
            with pytest.raises(ArgumentError, match="got dtypes"):
                kgen.add(x.half(), x.float())


def test_every_operator_has_a_policy_of_its_graph():
    kinds = {name: autocast.policy_of(operator) for name, operator in operators().items()}
    products = [name for name, kind in kinds.items() if kind == "autocast"]
    assert {"hgemm", "linear", "attention_full", "linear_logsumexp", "fp8gemm"} <= {*products}
    sums = [name for name, kind in kinds.items() if kind == "f32"]
    assert {"softmax", "layer_norm", "rms_norm", "group_norm", "cross_entropy", "row_sum", "cumsum", "norm"} <= {*sums}
    rest = [name for name, kind in kinds.items() if kind == "widest"]
    assert {"gelu", "add", "embedding", "row_max", "rope", "dropout", "transpose"} <= {*rest}
    for name in rest:  # of one dtype each: they are as they are
        graph = operators()[name].graphs[0]
        given = tuple(autocast.torch_dtype(spec.dtype) for spec in graph.inputs)
        if len({t for t in given if t.is_floating_point}) == 1:
            assert autocast.wanted(operators()[name], given, bf16) == given

"""The functions of attention in one graph of torch.compile: the same results and gradients, one graph for many lengths."""

from __future__ import annotations

import pytest
import torch

import kgen

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()


def heads(rows=12, columns=12, layout="BHND"):
    generator = torch.Generator().manual_seed(rows)
    sizes = ((2, 4, rows, 16), (2, 2, columns, 16), (2, 2, columns, 16))
    drawn = [torch.randn(s, generator=generator).half() for s in sizes]
    return drawn if layout == "BHND" else [x.transpose(1, 2).contiguous() for x in drawn]


def packed(rows=12, columns=12):
    generator = torch.Generator().manual_seed(rows)
    return [torch.randn(n, h, 16, generator=generator).half() for n, h in ((rows, 4), (columns, 2), (columns, 2))]


LENGTHS, OFFSETS = torch.tensor([5, 12], dtype=torch.int32), torch.tensor([0, 3, 3, 12], dtype=torch.int32)
#: Of each form the function, and its tensors.
FORMS = {
    "full": (lambda q, k, v: kgen.attention(q, k, v), heads),
    "causal": (lambda q, k, v: kgen.attention(q, k, v, causal="lower_right", lse=True)[0], heads),
    "window": (lambda q, k, v: kgen.attention(q, k, v, window=(3, 1), softcap=2.0, scale=0.3), heads),
    "bias": (lambda q, k, v: kgen.attention(q, k, v, bias=(q @ k.repeat_interleave(2, 1).mT)), heads),
    "heads last": (lambda q, k, v: kgen.attention(q, k, v, layout="BNHD"), lambda: heads(layout="BNHD")),
    "varlen": (lambda q, k, v: kgen.attention_varlen(q, k, v, OFFSETS, causal=True), packed),
    "sigmoid": (lambda q, k, v: kgen.sigmoid_attention(q, k, v, causal=True, bias=-2.5), heads),
    "linear": (lambda q, k, v: kgen.linear_attention(q, k, v, decay=torch.full((4,), -0.1)), heads),
}


@pytest.mark.parametrize("form", FORMS)
def test_one_graph_computes_and_differentiates(form):
    function, make = FORMS[form]
    run = torch.compile(function, fullgraph=True, backend="aot_eager")
    given = make()
    torch.testing.assert_close(run(*given), function(*given))
    for x in given:
        x.requires_grad_()
    results = []
    for one in (run, function):
        y = one(*given)
        results.append((y, *torch.autograd.grad(y.float().square().sum(), given)))
    for got, want in zip(*results):
        torch.testing.assert_close(got, want)


def test_lengths_and_pages_are_in_the_graph():
    q, k, v = heads(rows=1)
    pools = [torch.randn(5, 8, 2, 16).half() for _ in range(2)]
    pages = torch.tensor([[0, 3], [4, 1]], dtype=torch.int32)
    for function, given in (
        (lambda q, k, v: kgen.attention(q, k, v, lengths=LENGTHS, causal=True), (q, k, v)),
        (lambda q, k, v: kgen.attention(q, k, v, lengths=LENGTHS, pages=pages, layout="BNHD"), (q.transpose(1, 2), *pools)),
    ):  # fmt: skip
        torch.testing.assert_close(
            torch.compile(function, fullgraph=True, backend="aot_eager")(*given), function(*given)
        )


def test_one_graph_serves_many_lengths():
    graphs = []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    run = torch.compile(
        lambda q, k, v: kgen.attention(q, k, v, causal=True), fullgraph=True, dynamic=True, backend=counted
    )
    for rows in (5, 12, 33):
        given = heads(rows, rows)
        torch.testing.assert_close(run(*given), kgen.attention(*given, causal=True))
    assert len(graphs) == 1


def test_what_does_not_fit_is_refused():
    q, k, v = heads()
    with pytest.raises(Exception, match=r"expected k \[2, 2, 12, 16\]"):
        torch.compile(lambda *given: kgen.attention(*given), fullgraph=True, backend="aot_eager")(q, k, v[:, :, :3])


def test_gradients_lie_as_what_they_are_of_where_a_compiler_sees_them():
    """Heads split from one projection: their gradients are joined again without a transpose, and are what they are eagerly."""
    from torch._dynamo.backends.common import aot_autograd

    batch, rows, heads, depth, seen = 2, 40, 3, 16, []

    def layer(x):
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in x.chunk(3, -1))
        return kgen.attention(q, k, v, causal=True).transpose(1, 2).flatten(2)

    def backward(graph, inputs):
        called = [n for n in graph.graph.nodes if getattr(n.target, "namespace", "") == "kgen"]
        seen.extend(x for n in called for x in n.meta["val"] if x.dim() > 2)
        return graph

    x = torch.randn(batch, rows, 3 * heads * depth, dtype=torch.bfloat16, requires_grad=True)
    seed = torch.randn(batch, rows, heads * depth, dtype=torch.bfloat16)
    (eager,) = torch.autograd.grad(layer(x), x, seed)
    run = torch.compile(
        layer, fullgraph=True, backend=aot_autograd(fw_compiler=lambda graph, _: graph, bw_compiler=backward)
    )
    (found,) = torch.autograd.grad(run(x), x, seed)
    assert torch.equal(found, eager)
    assert len(seen) == 3
    for gradient in seen:
        assert tuple(gradient.shape) == (batch, heads, 1, rows, depth)
        assert [gradient.stride(axis) for axis in (0, 1, 3, 4)] == [rows * heads * depth, depth, heads * depth, 1]

"""torch.compile(model, backend="kgen") of small models: what is taken, and that results and gradients are as good as torch's."""

from __future__ import annotations

import copy
import cProfile
import functools
import pstats
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kgen.codegen.settings import database
from kgen.dsl.errors import DefinitionError
from kgen.gpu.target import detect, resolve
from kgen.runtime import dispatch
from kgen.runtime.backend import Report, backend, explain, tune
from kgen.runtime.backend.growth import grown
from kgen.runtime.backend.transform import transform
from kgen.runtime.operands import problem_of
from kgen.tuning_db import open_store

EMULATED = {"emulate": True, "rest": "eager"}


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def rotated(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Llama(nn.Module):
    """A decoder block with grouped heads, its embedding and its loss."""

    def __init__(self, vocabulary=64, width=32, heads=4, groups=2, hidden=48):
        super().__init__()
        self.heads, self.groups, self.depth = heads, groups, width // heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.norms = nn.ModuleList(RMSNorm(width) for _ in range(3))
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, groups * self.depth, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down, self.head = nn.Linear(hidden, width, bias=False), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids, labels=None):
        x = self.embedding(ids)
        (B, S), D = ids.shape, self.depth
        h = self.norms[0](x)
        q, k, v = (
            f(h).view(B, S, n, D).transpose(1, 2)
            for f, n in ((self.q, self.heads), (self.k, self.groups), (self.v, self.groups))
        )
        angles = torch.arange(S)[:, None] / 10000 ** (torch.arange(0, D, 2) / D)
        cos, sin = (f(torch.cat((angles, angles), -1)).to(x.dtype) for f in (torch.cos, torch.sin))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).reshape(B, S, -1))
        h = self.norms[1](x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        logits = self.head(self.norms[2](x))
        return logits if labels is None else F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


class GPT(nn.Module):
    """A decoder block of GPT-2's, its embeddings and its loss."""

    def __init__(self, vocabulary=64, width=32, heads=4, positions=16):
        super().__init__()
        self.heads = heads
        self.embedding, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids, labels=None):
        B, S = ids.shape
        x = self.embedding(ids) + self.positions(torch.arange(S))
        parts = self.qkv(self.norms[0](x)).chunk(3, -1)
        q, k, v = (t.view(B, S, self.heads, -1).transpose(1, 2) for t in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).reshape(B, S, -1))
        x = x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))
        logits = self.head(self.norms[2](x))
        return logits if labels is None else F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def tokens(rows=2, columns=8):
    generator = torch.Generator().manual_seed(rows * columns)
    return torch.randint(0, 64, (rows, columns), generator=generator)


@functools.cache
def model_of(kind):
    torch.manual_seed(0)
    return kind().to(torch.bfloat16)


def step(run, model, *inputs):
    """The loss and the gradients of a training step, in float64."""
    model.zero_grad()
    loss = run(*inputs)
    loss.backward()
    return [loss.detach().double(), *(p.grad.double() for p in model.parameters())]


def errors(found, exact):
    """The relative error of each tensor."""
    return torch.stack([(x - y).norm() / y.norm() for x, y in zip(found, exact)])


@pytest.mark.parametrize("kind", [Llama, GPT])
def test_results_and_gradients_are_as_near_to_float64_as_those_of_torch(kind):
    model, ids, labels = copy.deepcopy(model_of(kind)), tokens(), tokens().flip(1)
    exact = copy.deepcopy(model).double()
    truth = step(exact, exact, ids, labels)
    eager = errors(step(model, model, ids, labels), truth)
    compiled = errors(step(torch.compile(model, backend=backend, options=EMULATED), model, ids, labels), truth)
    assert compiled[0] <= 2 * eager[0] + 2**-10
    assert (compiled <= 2 * eager.clamp(min=2**-9)).all(), (compiled / eager).tolist()


@pytest.mark.parametrize("kind", [Llama, GPT])
def test_logits_without_gradients_are_as_near_to_float64_as_those_of_torch(kind):
    model, ids = model_of(kind), tokens()
    with torch.no_grad():
        truth = copy.deepcopy(model).double()(ids)
        eager = errors([model(ids).double()], [truth])
        compiled = errors([torch.compile(model, backend=backend, options=EMULATED)(ids).double()], [truth])
    assert compiled <= 1.5 * eager


@pytest.mark.parametrize("kind", [Llama, GPT])
def test_loss_falls_as_torchs_does(kind):
    losses = []
    for options in (None, EMULATED):
        model = copy.deepcopy(model_of(kind))
        run = torch.compile(model, backend=backend, options=options) if options else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        losses.append([])
        for _ in range(5):
            optimizer.zero_grad()
            loss = run(tokens(), tokens().flip(1))
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    torch_losses, own = losses
    assert torch_losses[-1] < torch_losses[0] - 0.1
    assert own == pytest.approx(torch_losses, abs=0.02 * (torch_losses[0] - torch_losses[-1]) + 0.01)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.gate, self.up = RMSNorm(32), nn.Linear(32, 48, bias=False), nn.Linear(32, 48)

    def forward(self, x):
        h = self.norm(x)
        return F.silu(self.gate(h)) * self.up(h)


def test_the_rest_is_inductors_and_as_near_to_float64_as_inductors_own():
    torch.manual_seed(0)
    model = Mlp().to(torch.bfloat16)
    x = torch.randn(3, 5, 32, dtype=torch.bfloat16)
    found = []
    for chosen in (
        {"backend": "inductor"},
        {"backend": backend, "options": {"emulate": True, "max_autotune_pointwise": False}},
    ):
        torch._dynamo.reset()
        run = torch.compile(model, **chosen)
        found.append(step(lambda x, run=run: run(x).float().square().mean(), model, x))
    exact = copy.deepcopy(model).double()
    truth = step(lambda x: exact(x).square().mean(), exact, x.double())
    inductor, own = (errors(one, truth) for one in found)
    assert (own <= 2 * inductor.clamp(min=2**-9)).all(), (own, inductor)


# What is taken, and what is not.


def families(report, graph=0):
    return sorted(one.family for one in report.taken if one.graph == graph)


def test_inductor_meets_no_operator_of_kgens_that_it_does_not_know(monkeypatch):
    """It would print what that is computed of, twice as much for each residual connection."""
    from torch._inductor import compile_fx, lowering

    met, real = [], compile_fx.compile_fx_inner

    def inner(graph, *given, **named):
        own = [node.target for node in graph.graph.nodes if getattr(node.target, "namespace", None) == "kgen"]
        met.append([target in lowering.lowerings for target in own])
        return real(graph, *given, **named)

    monkeypatch.setattr(compile_fx, "compile_fx_inner", inner)
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)
    run = torch.compile(lambda x: x + torch.tanh(layer(x)) * 1.375, backend="kgen", options={"emulate": True})
    torch.testing.assert_close(run(x), x + torch.tanh(layer(x)) * 1.375)
    assert met == [[True]]


def test_a_block_is_products_rows_lookups_and_attention():
    report = explain(model_of(Llama), tokens(), tokens(), backward=True)
    assert families(report) == ["attention", "gather", *["gemm"] * 8, "reduce", *["rowwise"] * 4]
    assert [one.name for one in report.taken if not one.ops] == [
        "attention_causal_train",
        "attention_causal_train_grad_unordered",
    ]
    # The gate's activation, the product with it and both residuals are epilogues.
    epilogues = [set(one.ops) - {"mm"} for one in report.taken if one.family == "gemm" and one.graph == 0]
    assert sum("exp" in ops for ops in epilogues) == 1
    assert sum("mul" in ops for ops in epilogues) == 1
    assert sum("add" in ops for ops in epilogues) >= 2
    assert families(report, 1).count("gemm") == 16
    assert not [one for one in report.left if one.op in ("mm", "addmm", "embedding", "amax", "mean")]
    # What a norm reads is as narrow as torch has it in memory.
    assert all("float32[2, 8, 32]" not in one.of for one in report.taken if one.family == "rowwise")


def test_attention_without_a_gradient_reads_keys_that_heads_share_once():
    with torch.no_grad():
        report = explain(model_of(Llama), tokens())
    (attention,) = [one for one in report.taken if one.family == "attention"]
    assert attention.ops == ("scaled_dot_product_flash_attention_for_cpu",)
    assert attention.of == "bfloat16[2, 4, 8, 8], bfloat16[2, 2, 8, 8], bfloat16[2, 2, 8, 8]"


def test_attention_without_a_gradient_takes_a_mask_of_float32():
    q, k = (torch.randn(1, heads, 8, 16, dtype=torch.bfloat16) for heads in (4, 2))
    mask = torch.randn(8, 8)

    def attend(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)

    with torch.no_grad():
        assert [one.family for one in explain(attend, q, k, k, mask).taken] == ["attention"]
        found = torch.compile(attend, backend="kgen")(q, k, k, mask)
        exact = attend(*(x.double() for x in (q, k, k, mask)))
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2 * 2**-7 * float(k.abs().max()))


def test_attention_without_a_gradient_lies_in_memory_as_torchs_does():
    """As the queries do: torch's views of it say so."""
    heads = torch.randn(5, 2, 4, 16, dtype=torch.bfloat16)  # [M, B, H, D], as of nn.MultiheadAttention

    def attend(x):
        q = x.permute(1, 2, 0, 3)
        return F.scaled_dot_product_attention(q, q, q).permute(2, 0, 1, 3).contiguous().view(10, 64)

    with torch.no_grad():
        for options in (EMULATED, {"emulate": True}):
            torch._dynamo.reset()
            assert [one.family for one in explain(attend, heads).taken] == ["attention"]
            found = torch.compile(attend, backend=backend, options=options)(heads)
            torch.testing.assert_close(found, attend(heads), rtol=0, atol=2 * 2**-7 * float(heads.abs().max()))


def test_attention_with_a_gradient_is_torchs_where_kgens_is_another():
    def attend(q, k, v, **options):
        return F.scaled_dot_product_attention(q, k, v, **options).sum()

    def taken(*given, **options):
        return [one.name for one in explain(attend, *given, backward=True, **options).taken if "train" in one.name]

    q, k = (torch.randn(1, heads, 8, 16, dtype=torch.bfloat16, requires_grad=True) for heads in (4, 2))
    own = ["attention_full_train", "attention_full_train_grad_unordered"]
    assert taken(q, k, k, enable_gqa=True) == own
    assert taken(q, q, q, scale=0.5) == own
    assert taken(q, q, q, scale=-0.5) == []
    assert taken(q, q, q, attn_mask=torch.ones(8, 8, dtype=torch.bool)) == []
    assert taken(*(x.detach().float().requires_grad_() for x in (q, q, q))) == []
    wide = torch.randn(1, 2, 3, 520, dtype=torch.bfloat16, requires_grad=True)
    assert taken(wide, wide, wide) == []
    with torch.no_grad():
        report = explain(attend, wide, wide, wide)
    assert "attention" in [one.family for one in report.taken]


def test_a_report_says_what_is_left_and_why():
    class Odd(nn.Module):
        def forward(self, x, y):
            z = torch.cumsum(x, -1).sin() @ y
            return z + torch.linalg.inv(z).std(-1)

    report = explain(Odd(), torch.randn(4, 4), torch.randn(4, 4))
    left = {one.op: one.why for one in report.left}
    assert "no expression" in left["cumsum"]
    assert "no expression" in left["linalg_inv_ex"]
    assert [one.pointwise for one in report.left if one.op == "sin"] == [True]
    assert "of a sample" in left.get("var", left.get("var_mean", ""))
    text = str(report)
    assert "1 x gemm" in text
    assert "cumsum" in text
    assert report.as_json()["taken"][0]["ops"] == ("mm",)


def test_a_model_on_the_cpu_is_inductors_unless_the_emulator_is_wanted(monkeypatch):
    def refuse(*given, **named):
        raise AssertionError("a kernel ran")

    monkeypatch.setattr("kgen.runtime.operator.KernelOperator.launch", refuse)
    x, w = torch.randn(4, 8), torch.randn(8, 5)
    torch.testing.assert_close(torch.compile(torch.mm, backend=backend, options={"rest": "eager"})(x, w), x @ w)
    torch._dynamo.reset()
    with pytest.raises(AssertionError, match="a kernel ran"):
        torch.compile(torch.mm, backend=backend, options=EMULATED)(x, w)


def test_one_graph_serves_many_token_counts():
    model = model_of(Llama)
    run = torch.compile(model, backend=backend, options=EMULATED, dynamic=True)
    with torch.no_grad():
        for rows, columns in ((2, 8), (3, 5), (1, 7)):
            ids = tokens(rows, columns)
            torch._dynamo.mark_dynamic(ids, 1)
            with torch.compiler.set_stance("fail_on_recompile" if rows == 3 else "default"):
                torch.testing.assert_close(run(ids), model(ids), atol=0.05, rtol=0.05)


def test_regions_grow_without_texts_of_symbols(monkeypatch):
    """What sympy takes to print the sizes of a graph is many times what all else takes that is asked of its nodes."""

    def watched(*given):
        with monkeypatch.context() as patch:
            patch.setattr(
                "torch.fx.experimental.sym_node.SymNode.str", lambda symbol: pytest.fail("a symbol was printed")
            )
            return grown(*given)

    monkeypatch.setattr("kgen.runtime.backend.transform.grown", watched)
    ids = tokens(3, 5)
    torch._dynamo.mark_dynamic(ids, 0)
    torch._dynamo.mark_dynamic(ids, 1)
    with torch.no_grad():
        report = explain(model_of(GPT), ids)
    assert any(re.search(r"\[s\d+", one.of) for one in report.taken)


class Deep(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(Mlp() for _ in range(layers))
        self.down = nn.Linear(48, 32)

    def forward(self, x):
        for layer in self.layers:
            x = x + self.down(layer(x))
        return {"loss": x.square().mean(), "logits": x}


def test_the_backends_work_grows_as_the_model_does(monkeypatch):
    """Counted in calls of Python's functions: a graph that is sorted or read anew for each kernel makes it a square."""
    calls = []

    def counted(*given):
        with cProfile.Profile() as profile:
            transform(*given)
        calls.append(pstats.Stats(profile).total_calls)

    monkeypatch.setattr("kgen.runtime.backend.transform.transform", counted)
    reports = [explain(Deep(layers), torch.randn(3, 32), backward=True) for layers in (3, 12)]
    assert len(reports[1].taken) > 3.5 * len(reports[0].taken)
    assert sum(calls[2:]) < 5 * sum(calls[:2])


def test_explain_says_what_fails(monkeypatch):
    def failing(graph):
        raise IndexError("of a row")

    for model in (lambda x: [x.sum()], lambda x: {"logits": x.sum()}, lambda x: x.detach().sum()):
        with pytest.raises(DefinitionError, match=r"result is .*; expected a tensor, or one called loss"):
            explain(model, torch.randn(3, requires_grad=True), backward=True)
    monkeypatch.setattr("kgen.runtime.backend.transform.sink", failing)
    with pytest.raises(DefinitionError, match="cannot be compiled: IndexError: of a row"):
        explain(Mlp(), torch.randn(3, 32))


def test_what_is_taken_is_tuned_as_what_runs(monkeypatch):
    """By the model where there is no GPU."""
    torch.manual_seed(0)
    model, x = (
        Mlp().to(torch.bfloat16),
        torch.randn(2, 11, 32, dtype=torch.bfloat16),
    )  # as many rows as no other test has
    seen = []

    def recorded(*operands):
        seen.append(problem_of(*operands))
        return seen[-1]

    monkeypatch.setattr("kgen.runtime.call.problem_of", recorded)
    with torch.no_grad():
        report = explain(model, x)
        torch.compile(model, backend=backend, options=EMULATED)(x)
    assert sorted(one.family for one in report.taken) == ["gemm", "gemm", "rowwise"]
    assert {(p.graph.digest, p.key) for p in seen} == {(p.graph.digest, p.key) for p in report.problems}
    assert ["col" in [o.layout for o in p.operands] for p in report.problems] == [True, True, False]
    rows = [one for one in report.taken if one.family == "rowwise"]
    gpu = detect(0)
    (outcome,) = tune(Report(taken=rows), budget="1", gpu="auto" if gpu else "H200")
    assert outcome.measured == (gpu is not None)
    with open_store(database()) as store:
        choice = dispatch.choose(report.problems[-1], gpu or resolve("H200"), store)
    assert choice.how == "tuned"

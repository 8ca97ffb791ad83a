"""Adapters of transformers: each against the model's own code, on stand-ins with the same attributes, and on a tiny model of
transformers where that is installed."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kgen.integrations import transformers as layers

HALF = torch.bfloat16


class ToyRMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.linspace(0.5, 1.5, width)), 1e-5

    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(x.dtype)


class ToyMLP(nn.Module):
    def __init__(self, width, hidden, bias=False):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, hidden, bias=bias) for _ in range(2))
        self.down_proj, self.act_fn = nn.Linear(hidden, width, bias=bias), nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def rotate_half(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


own_rotary = apply_rotary_pos_emb


class ToyAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.q_proj, self.heads = nn.Linear(width, width, bias=False), heads

    def forward(self, x, cos, sin):
        q = self.q_proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q, k = apply_rotary_pos_emb(q, q[:, :1], cos, sin)
        return (q + k).transpose(1, 2).flatten(2)


class ToyForCausalLM(nn.Module):
    def __init__(self, width=16, vocabulary=24, heads=2):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(vocabulary, width), ToyRMSNorm(width)
        self.attention, self.mlp = ToyAttention(width, heads), ToyMLP(width, 24)
        self.head, self.loss_function, self.depth = nn.Linear(width, vocabulary, bias=False), own_loss, width // heads

    def forward(self, ids, labels):
        x = self.embedding(ids)
        angles = torch.arange(ids.shape[1])[:, None] / 100 ** (torch.arange(0, self.depth, 2) / self.depth)
        cos, sin = (f(torch.cat((angles, angles), -1))[None].to(x.dtype) for f in (torch.cos, torch.sin))
        x = x + self.attention(self.norm(x), cos, sin)
        logits = self.head(self.norm(x + self.mlp(x)))
        return logits, self.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1])


def own_loss(logits, labels, vocab_size, **named):
    return F.cross_entropy(
        logits[:, :-1].reshape(-1, vocab_size).to(torch.promote_types(logits.dtype, torch.float32)),
        labels[:, 1:].flatten(),
    )


@pytest.fixture(autouse=True)
def rotary_of_this_file_again():
    yield
    sys.modules[__name__].apply_rotary_pos_emb = own_rotary


def error(found, exact):
    return ((found.double() - exact.double()).norm() / exact.double().norm()).item()


def step(model, *inputs):
    model.zero_grad()
    logits, loss = model(*inputs)
    loss.backward()
    return [logits, loss, *(p.grad for p in model.parameters())]


def test_a_model_with_all_layers_replaced_is_as_near_to_float64_as_its_own():
    torch.manual_seed(0)
    model = ToyForCausalLM().to(HALF)
    ids = torch.randint(0, 24, (2, 5))
    labels = ids.clone()
    labels[0, 3] = -100
    truth, own = step(copy.deepcopy(model).double(), ids, labels), step(model, ids, labels)
    changed = copy.deepcopy(model)
    assert layers.apply(changed, attention=False) == {"norms": 1, "mlps": 1, "rotary": 1, "loss": 1}
    assert "kgen" in step.__globals__["apply_rotary_pos_emb"].__module__
    for exact, before, after in zip(truth, own, step(changed, ids, labels)):
        assert error(after, exact) <= 2 * max(error(before, exact), 2**-9)


def test_only_what_is_asked_for_and_known_is_replaced():
    model = ToyForCausalLM()
    kinds = dict.fromkeys(("attention", "norms", "mlps", "rotary", "loss"), False)
    assert layers.apply(model, **kinds) == {}
    assert layers.apply(model, **{**kinds, "norms": True}) == {"norms": 1}
    biased = ToyMLP(8, 8, bias=True)
    other = ToyMLP(8, 8)
    other.act_fn = nn.GELU()
    assert layers.apply(nn.ModuleList([biased, other, nn.LayerNorm(8)]), **{**kinds, "mlps": True, "norms": True}) == {}


def test_what_kgen_has_no_dtype_for_is_the_models_own():
    torch.manual_seed(0)
    norm, mlp = ToyRMSNorm(8), ToyMLP(8, 8)
    changed = copy.deepcopy(nn.ModuleList([norm, mlp]))
    layers.apply(changed)
    x = torch.randn(3, 8)
    assert torch.equal(changed[1](x), mlp(x))  # f32
    assert torch.equal(changed[0](x.to(HALF)), norm(x.to(HALF)))  # a weight in another dtype


@pytest.mark.filterwarnings("error:Dynamo detected")
def test_layers_compile_without_a_warning():
    torch._dynamo.reset()
    model = nn.Sequential(ToyRMSNorm(16), ToyMLP(16, 24)).to(HALF)
    layers.apply(model)
    x = torch.randn(3, 16, dtype=HALF)
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))


@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize("batch", [1, 2])
def test_rotary_is_torchs_with_tables_of_one_or_all_sequences(heads_first, batch):
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
    cos, sin = torch.randn(batch, 5, 8), torch.randn(batch, 5, 8)
    if not heads_first:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    expected = own_rotary(q, k, cos, sin, 1 if heads_first else 2)
    found = layers.rotary_forward(q, k, cos, sin, 1 if heads_first else 2)
    for x, y in zip(found, expected):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_loss_is_torchs(reduction):
    logits = torch.randn(2, 5, 12)
    labels = torch.randint(0, 12, (2, 5))
    labels[1, 2] = -100
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction=reduction)
    number = None if reduction == "mean" else torch.tensor(4)
    found = layers.causal_loss(logits, labels, 12, number)
    torch.testing.assert_close(found, expected if number is None else expected / number)
    shifted = layers.causal_loss(logits, None, 12, shift_labels=F.pad(labels, (0, 1), value=-100)[:, 1:])
    torch.testing.assert_close(shifted, layers.causal_loss(logits, labels, 12))


@pytest.mark.parametrize("kind", ["causal", "one row", "not causal", "bools", "added", "sinks"])
def test_attention_is_torchs(kind):
    torch.manual_seed(0)
    rows, columns = 1 if kind == "one row" else 6, 6
    q = torch.randn(2, 4, rows, 16, dtype=HALF)
    k, v = (torch.randn(2, 2, columns, 16, dtype=HALF) for _ in range(2))
    seen = (torch.rand(2, 1, rows, columns) < 0.7) | torch.eye(rows, columns, dtype=torch.bool)
    seen[1, :, 0] = kind != "bools"  # a row that sees nothing
    mask = {"bools": seen, "added": torch.where(seen, 0.0, -1e4).to(HALF)}.get(kind)
    module = nn.Module()
    module.is_causal = kind != "not causal"
    sinks = torch.randn(4, dtype=HALF) if kind == "sinks" else None
    found, weights = layers.attention_forward(module, q, k, v, mask, scaling=0.3, s_aux=sinks)
    assert weights is None
    scores = 0.3 * (q.double() @ k.double().repeat_interleave(2, 1).mT)
    if kind in ("causal", "sinks"):
        mask = torch.ones(rows, columns, dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask.double()
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(2, 4, rows, 1)], -1)
    expected = scores.softmax(-1).nan_to_num()[..., :columns] @ v.double().repeat_interleave(2, 1)
    assert found.shape == (2, rows, 4, 16)
    assert error(found, expected.transpose(1, 2)) < 2**-7


@pytest.mark.parametrize("kind", ["causal", "bools", "added"])
@pytest.mark.parametrize("extra", ["softcap", "sinks", "both"])
def test_what_torchs_attention_knows_not_is_as_kgens_in_other_dtypes(kind, extra):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 6, 16, dtype=HALF) for heads in (4, 2, 2))
    seen = (torch.rand(2, 1, 6, 6) < 0.7) | torch.eye(6, dtype=torch.bool)
    seen[1, :, 0] = False  # a row that sees nothing
    mask = {"bools": seen, "added": torch.where(seen, 0.0, -1e4).to(HALF)}.get(kind)
    named = {
        "softcap": 1.5 if extra != "sinks" else None,
        "s_aux": torch.randn(4, dtype=HALF) if extra != "softcap" else None,
    }
    kept, _ = layers.attention_forward(nn.Module(), q, k, v, mask, scaling=0.3, **named)
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    wide_mask = mask.double() if kind == "added" else mask
    found, _ = layers.attention_forward(nn.Module(), *wide, wide_mask, scaling=0.3, **named)
    assert found.dtype is torch.float64
    assert error(kept, found.detach()) < 2**-7
    found.sum().backward()
    assert all(x.grad.isfinite().all() for x in wide)
    dropped, _ = layers.attention_forward(nn.Module(), *wide, wide_mask, dropout=1.0, scaling=0.3, **named)
    assert not dropped.any()


@pytest.mark.parametrize("differentiated", [False, True])
def test_wide_heads_are_torchs_where_a_gradient_is_wanted(differentiated, monkeypatch):
    if differentiated:
        pytest.importorskip("transformers", minversion="5.0")
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 3, 320, dtype=HALF, requires_grad=differentiated) for _ in range(3))
    widths, own = [], layers.attention
    monkeypatch.setattr(layers, "attention", lambda *x, **named: [widths.append(x[0].shape[-1]), own(*x, **named)][1])
    found, _ = layers.attention_forward(nn.Module(), q, k, v, None, is_causal=True)
    expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    assert error(found, expected.transpose(1, 2)) < 2**-7
    assert widths == ([] if differentiated else [320])


def test_a_tiny_llama_of_transformers_is_as_near_to_float64_as_its_own():
    transformers = pytest.importorskip("transformers", minversion="5.0")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config).to(HALF)
    ids = torch.randint(0, 64, (2, 8))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0

    def run(one):
        one.zero_grad()
        found = one(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))
        found.loss.backward()
        return [found.logits[mask == 1], found.loss, *(p.grad for p in one.parameters())]

    changed = copy.deepcopy(model)
    truth, own = run(copy.deepcopy(model).double()), run(model)
    generated = model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0)
    before = sys.modules[type(model).__module__].apply_rotary_pos_emb
    try:
        assert layers.apply(changed) == {"norms": 5, "mlps": 2, "rotary": 1, "attention": 1, "loss": 1}
        for exact, there, here in zip(truth, own, run(changed)):
            assert error(here, exact) <= 2 * max(error(there, exact), 2**-8)
        assert torch.equal(changed.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0), generated)
    finally:
        sys.modules[type(model).__module__].apply_rotary_pos_emb = before

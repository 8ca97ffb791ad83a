"""transformers: attn_implementation="kgen", and the layers of a model of Llama's kind by kgen's operators.

    from kgen.integrations import transformers as layers
    layers.register()
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16, device_map="cuda", attn_implementation="kgen")
    print(layers.apply(model))

`register` makes the attention known, which `apply` does, too. `apply` replaces layers by what they compute, not by names of
models; each adapter leaves a call to the model's own code where dtypes or options are not kgen's.
"""

from __future__ import annotations

import sys
from collections import Counter
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn

from kgen.dsl import functions as F
from kgen.dsl import operator as dsl
from kgen.dsl.expr import Expr, where
from kgen.dsl.indexing import arange, size
from kgen.dsl.size import dims
from kgen.dsl.types import bf16, dtype_var, f16, f32, i64
from kgen.ops.attention.problem import NARROW, WIDEST
from kgen.ops.rowwise import rows
from kgen.runtime.attention import attention
from kgen.runtime.operator import operator
from kgen.runtime.shipped import shipped

B, H, S, D, M, N, K = dims("B H S D M N K")
P = dtype_var("P", f16, bf16)
T = dtype_var("T", f16, bf16, f32)
_HALVES = (torch.float16, torch.bfloat16)
_rms_norm = shipped("rms_norm")  # found here and not in a layer's call: Dynamo warns of functions with a cache


@operator
def rotary(
    x: dsl.Tensor[T, B, H, S, D], cos: dsl.Tensor[T, B, 1, S, D], sin: dsl.Tensor[T, B, 1, S, D]
) -> dsl.Tensor[T, B, H, S, D]:
    """The halves of each head rotated by the angles of its position in its sequence."""
    other = F.swap_halves(x)
    return x * cos + where(arange(D) // (size(D) // 2) == 0, -other, other) * sin


@operator
def gate(x: dsl.Tensor[P, ..., M, K], w: dsl.Tensor[P, N, K]) -> dsl.Tensor[P, ..., M, N]:
    """silu(x @ w.T)."""
    return F.silu(x @ w.T)


@operator
def gated(
    x: dsl.Tensor[P, ..., M, K], w: dsl.Tensor[P, N, K], gate: dsl.Tensor[P, ..., M, N]
) -> dsl.Tensor[P, ..., M, N]:
    """(x @ w.T) * gate."""
    return (x @ w.T) * gate


@operator
def token_loss(x: dsl.Tensor[T, M, N], target: dsl.Tensor[i64, M, 1], ignore_index: int = -100) -> dsl.Tensor[f32, M]:
    """cross_entropy of each row in f32, whatever the logits are in."""
    loss: Expr = rows.cross_entropy.function(x, target, ignore_index)
    return loss


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **named: Any,
) -> tuple[Tensor, None]:
    """What transformers calls as an attention implementation: [B, H, M, D] and fewer heads of keys -> [B, M, H, D].

    `attention_mask` is of bools, where a row that sees nothing is 0, or added to the scores; where there is none the module's
    `is_causal` says what is seen. `s_aux` are sinks, [H]. With dropout, or in another dtype than f16 and bf16, it is torch's;
    with sinks or a softcap, which that knows not, op by op.
    """
    other = named.get("position_bias") is not None or named.get("cache") is not None
    sinks, softcap = named.get("s_aux"), named.get("softcap")
    differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    too_wide = max(query.shape[-1], value.shape[-1]) > (NARROW if differentiated else WIDEST)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    left = dropout or query.dtype not in _HALVES or too_wide
    if left and (sinks is not None or (softcap is not None and not other)):
        return _op_by_op(query, key, value, attention_mask, dropout, scaling, causal, softcap, sinks), None
    if left or (other and sinks is None):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **named
        )
        return found
    bias, rows_seen = attention_mask, None
    if bias is not None:
        least = torch.finfo(query.dtype).min  # and no infinity: of a row of those the gradient is NaN
        if bias.dtype is torch.bool:
            rows_seen = bias.any(-1, keepdim=True).transpose(1, 2)
            bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill(~bias, least)
        bias = bias.to(query.dtype).clamp(min=least)
    result = attention(
        *(x.transpose(1, 2) for x in (query, key, value)),
        causal=causal,
        bias=bias,
        softcap=softcap,
        scale=scaling,
        layout="BNHD",
        sinks=sinks,
    )
    assert isinstance(result, Tensor)
    return (result if rows_seen is None else result * rows_seen), None


def _op_by_op(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    causal: bool,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention by torch's ops: its scores and weights are in memory, as of attn_implementation="eager"."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()[None, None]
    seen = mask if mask is not None and mask.dtype is torch.bool else None
    if seen is not None:
        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    elif mask is not None:
        scores = scores + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)], -1)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    weights = nn.functional.dropout(weights[..., : key.shape[2]], dropout)
    result = (weights @ value).transpose(1, 2).contiguous()
    return result if seen is None else result * seen.any(-1, keepdim=True).transpose(-3, -2)


def norm_forward(self: Any, x: Tensor) -> Tensor:
    """An RMS norm with `weight` and `variance_epsilon`."""
    if x.dtype is not self.weight.dtype:
        return type(self).forward(self, x)  # type: ignore[no-any-return]
    return _rms_norm(x, self.weight, eps=self.variance_epsilon)  # type: ignore[no-any-return]


def mlp_forward(self: Any, x: Tensor) -> Tensor:
    """A SwiGLU MLP with `gate_proj`, `up_proj` and `down_proj`."""
    if x.dtype not in _HALVES or x.dtype is not self.gate_proj.weight.dtype:
        return type(self).forward(self, x)  # type: ignore[no-any-return]
    hidden = gated(x, self.up_proj.weight, gate(x, self.gate_proj.weight))
    return self.down_proj(hidden)  # type: ignore[no-any-return]


def rotary_forward(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """`apply_rotary_pos_emb`: q [B, H, S, D], k with fewer heads, tables [B, S, D] or [1, S, D]; 2 of [B, S, H, D]."""

    tables = _tables(q, cos, sin)
    return _rotated(q, tables, unsqueeze_dim), _rotated(
        k, tables if k.dtype is q.dtype else _tables(k, cos, sin), unsqueeze_dim
    )


def _tables(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """As `rotary` takes them with x."""
    made = [t.to(x.dtype).expand(x.shape[0], -1, -1).unsqueeze(1) for t in (cos, sin)]
    return made[0], made[1]


def _rotated(x: Tensor, tables: tuple[Tensor, Tensor], unsqueeze_dim: int) -> Tensor:
    result: Tensor = rotary(x if unsqueeze_dim == 1 else x.transpose(1, 2), *tables)
    return result if unsqueeze_dim == 1 else result.transpose(1, 2)


def causal_loss(
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **named: Any,
) -> Tensor:
    """`loss_function` of a causal language model: the mean over the labels that count, or their sum over `num_items_in_batch`."""
    if shift_labels is None:
        shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    target = shift_labels.reshape(-1).to(logits.device)
    total: Tensor = token_loss(logits.reshape(-1, vocab_size), target, ignore_index=ignore_index).sum()
    return total / ((target != ignore_index).sum() if num_items_in_batch is None else num_items_in_batch)


def apply(
    model: nn.Module,
    *,
    attention: bool = True,
    norms: bool = True,
    mlps: bool = True,
    rotary: bool = True,
    loss: bool = True,
) -> dict[str, int]:
    """Replaces layers of a model in place; how many of each kind.

    Norms are those with `weight` and `variance_epsilon` whose class is called ...RMSNorm; MLPs those with `gate_proj`, `up_proj`
    and `down_proj` without biases and SiLU as `act_fn`. Rotary embeddings are the function `apply_rotary_pos_emb` of the
    file that the model's attention is defined in: for all models of that file in this process.
    """
    done = Counter[str]()
    for module in model.modules():
        if norms and type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            module.forward = MethodType(norm_forward, module)
            done["norms"] += 1
        elif mlps and _is_swiglu(module):
            module.forward = MethodType(mlp_forward, module)
            done["mlps"] += 1
    files = {type(m).__module__ for m in model.modules() if hasattr(m, "q_proj")}
    for file in sorted(files) if rotary else ():
        functions: Any = sys.modules[file]
        if hasattr(functions, "apply_rotary_pos_emb"):
            functions.apply_rotary_pos_emb = rotary_forward
            done["rotary"] += 1
    if attention and hasattr(model, "set_attn_implementation"):
        register()
        cast(Any, model).set_attn_implementation("kgen")
        done["attention"] += 1
    if loss and hasattr(model, "loss_function") and type(model).__name__.endswith("ForCausalLM"):
        setattr(model, "loss_function", causal_loss)  # noqa: B010  # a property of transformers' models
        done["loss"] += 1
    return dict(done)


def _is_swiglu(module: Any) -> bool:
    parts: list[Any] = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(isinstance(part, nn.Linear) for part in parts) or any(part.bias is not None for part in parts[:2]):
        return False
    return type(getattr(module, "act_fn", None)).__name__ in ("SiLU", "SiLUActivation")


def register() -> None:
    """Makes attn_implementation="kgen" known to transformers, with the masks that its "sdpa" gets."""
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

    AttentionInterface.register("kgen", attention_forward)
    AttentionMaskInterface.register("kgen", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])

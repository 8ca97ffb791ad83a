"""Attention in torch's graphs: with gradients, Dynamo's call of it becomes kgen.attention; else torch's kernel in ATen's graph.

Where a gradient is wanted, kgen's is: AOTAutograd meets kgen's operators, and those of their gradients. In graphs of ATen's ops
torch has chosen one of its own kernels, which becomes an operator of torch, `kgen::attention`. The results that only the gradient
of torch's kernel takes (random state, lengths) are not made: where they are used, torch's kernel stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.nn.functional import scaled_dot_product_attention

from kgen.ops.attention.problem import WIDEST, WIDEST_GRADIENT
from kgen.runtime.attention import attention
from kgen.runtime.backend.aten import Untaken
from kgen.runtime.backend.regions import tensor_of
from kgen.runtime.backend.views import VIEWS

_aten = torch.ops.aten

#: The places of what a kernel of torch's takes after q, k and v: of its bias, of what has to be 0, and of `is_causal`.
_PLACES: dict[Any, dict[str, int]] = {
    _aten._scaled_dot_product_flash_attention_for_cpu.default: {"dropout_p": 3, "is_causal": 4},
    _aten._scaled_dot_product_flash_attention.default: {"dropout_p": 3, "is_causal": 4},
    _aten._scaled_dot_product_efficient_attention.default: {"attn_bias": 3, "dropout_p": 5, "is_causal": 6},
    _aten._scaled_dot_product_cudnn_attention.default: {"attn_bias": 3, "dropout_p": 5, "is_causal": 6},
}

_LIBRARY = torch.library.Library("kgen", "FRAGMENT")
_LIBRARY.define(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? bias, bool causal, float scale) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float) -> Any:
    """The result, whose memory is [B, M, H, E], and the logarithm of each row's sum of exponentials."""
    with torch.no_grad():
        heads_last = [x.transpose(1, 2) for x in (q, k, v)]
        result, lse = attention(*heads_last, causal=causal, bias=bias, scale=scale, layout="BNHD", lse=True)
    return result.transpose(1, 2), lse


def _fake(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float) -> Any:
    B, H, M, _ = q.shape
    return q.new_empty(B, M, H, v.shape[-1]).transpose(1, 2), q.new_empty((B, H, M), dtype=torch.float32)


for _device in ("CPU", "CUDA"):
    _LIBRARY.impl("attention", _attention, _device)
torch.library.register_fake("kgen::attention", _fake, lib=_LIBRARY)
OP = torch.ops.kgen.attention.default


def differentiate(gm: GraphModule, wanted: Callable[[torch.device], bool]) -> None:
    """Has a graph of Dynamo's call kgen.attention where gradients of torch's attention are wanted, on the devices `wanted`."""

    def attend(q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
               scale: float | None = None, enable_gqa: bool = False) -> Tensor:  # fmt: skip
        operands = (q, k, v)
        plain = attn_mask is None and not dropout_p and all(x.dim() == 4 for x in operands) and wanted(q.device)
        differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in operands)
        if not (plain and differentiated) or _unfit(*operands, WIDEST_GRADIENT) or (scale is not None and scale < 0):
            return scaled_dot_product_attention(
                q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        found = attention(q, k, v, causal=is_causal, scale=scale)
        assert isinstance(found, Tensor)
        return found

    for module in gm.modules():
        if isinstance(module, GraphModule):
            for node in module.graph.find_nodes(op="call_function", target=scaled_dot_product_attention):
                node.target = attend
            module.recompile()


def _unfit(q: Tensor, k: Tensor, v: Tensor, widest: int) -> str:
    """Why these are no operands of kgen's attention of heads up to so wide; empty where they are."""
    if q.dtype not in (torch.float16, torch.bfloat16) or not q.dtype == k.dtype == v.dtype:
        return f"kgen has attention of float16 and bfloat16, not of {str(q.dtype).removeprefix('torch.')}"
    heads = [x.shape[1] for x in (q, k)]
    if not all(isinstance(n, int) for n in (*heads, q.shape[-1], v.shape[-1])) or heads[0] % heads[1]:
        return "its heads are not a multiple of those of its keys, or their number is not fixed"
    if max(q.shape[-1], v.shape[-1]) > widest:
        return f"its heads are wider than {widest}"
    return ""


def is_attention(node: Node) -> bool:
    """Whether a node is one of torch's kernels of attention."""
    return node.target in _PLACES


def arguments_of(node: Node) -> tuple[Any, ...]:
    """What `kgen::attention` takes in the place of a kernel of torch's. Untaken where it would not be the same."""
    places = _PLACES[node.target]

    def given(name: str) -> Any:
        at = places.get(name)
        default = None if at is None or at >= len(node.args) else node.args[at]
        return node.kwargs.get(name, default)

    q, k, v = (tensor_of(x) for x in node.args[:3])  # type: ignore[arg-type]
    if given("dropout_p"):
        raise Untaken("it drops weights by torch's own random numbers")
    if unfit := _unfit(q, k, v, WIDEST):
        raise Untaken(unfit)
    for user in node.users:
        if user.args[1] not in (0, 1) and user.users:
            raise Untaken("its gradient is torch's, which takes what only torch's kernel makes")
    bias: Any = given("attn_bias") or node.kwargs.get("attn_mask")
    if bias is not None and tensor_of(bias).dtype not in (q.dtype, torch.float32):  # of a bool one torch has made these
        raise Untaken("its mask is of another dtype than its values, and not of float32")
    scale = node.kwargs.get("scale")
    if scale is not None and (not isinstance(scale, (int, float)) or scale < 0):
        raise Untaken("its scale is no constant, or negative")
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    own, keys, values = node.args[:3]
    shared = [_before_repeated(x) for x in (keys, values)]
    if all(x is not None for x in shared) and len({str(tensor_of(x).shape[1]) for x in shared if x}) == 1:
        keys, values = shared
    return own, keys, values, bias, bool(given("is_causal")), factor


def _before_repeated(x: Any) -> Node | None:
    """Keys or values [B, K, N, D] of which x has each head several times, one after the other; None where it has not."""
    chain = [x]
    for kinds in (VIEWS, (_aten.clone.default,), (_aten.expand.default,), (_aten.unsqueeze.default,)):
        if chain[-1].target in kinds:
            chain.append(chain[-1].args[0])
        elif kinds[0] is not _aten.clone.default:
            return None
    *_, repeated, lone, heads = (tensor_of(node) for node in chain)
    sizes = [[str(n) for n in tensor.shape] for tensor in (heads, lone, repeated, tensor_of(x))]
    (B, K, N, D), after = sizes[0], sizes[3]
    fits = sizes[1] == [B, K, "1", N, D] and sizes[2][:2] + sizes[2][3:] == [B, K, N, D]
    return chain[-1] if fits and after[:1] + after[2:] == [B, N, D] else None

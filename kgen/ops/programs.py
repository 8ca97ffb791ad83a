"""The family `program`: graphs that no other serves, computed in several launches; and shipped operators that it serves.

Each is its mathematics alone, as of any operator: where it is cut, `kgen.dsl.partition` finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from kgen.dsl import functions as F
from kgen.dsl.expr import Expr, cast
from kgen.dsl.family import Family, register_family
from kgen.dsl.operator import Graph, Operator, Tensor
from kgen.dsl.partition import partition
from kgen.dsl.problem import Sizes
from kgen.dsl.size import dims
from kgen.dsl.types import bf16, dtype_var, f16, f32
from kgen.ops.common.axes import has_leading
from kgen.ops.common.sizes import distinct, fill
from kgen.ops.reduction.columns import STAGES
from kgen.ops.rowwise import rows


def suites(graph: Graph) -> Mapping[str, Sequence[Sizes]]:
    """`default`: 2^22, 2^24 and 2^26 elements; `large`: 2^27 elements; `small`: 2^20 elements."""

    def of(elements: int) -> Sizes:
        return fill(graph, elements, 2048)

    return {"default": distinct(map(of, (2**22, 2**24, 2**26))), "large": [of(2**27)], "small": [of(2**20)]}


family = register_family(
    Family(
        "program",
        (),
        matches=lambda graph: partition(graph) is not None,
        normalise=lambda problem: problem,
        dims=lambda graph: (*(["..."] if has_leading(graph) else []), *graph.dims),
        suites=suites,
        priority=-1,
    )
)

#: The batch, groups of channels, the channels of a group, and the positions of a channel (height times width).
B, G, C, S = dims("B G C S")
M, N, K = dims("M N K")
#: What mixed-precision layers hold their activations in.
H = dtype_var("H", f16, bf16, f32)
#: What matrix products are made of.
P = dtype_var("P", f16, bf16)


#: 320, 512 and 1280 channels in 32 groups, as in the blocks of an image model.
_GROUPS = (
    {"B": 16, "G": 32, "C": 10, "S": 4096},
    {"B": 8, "G": 32, "C": 16, "S": 4096},
    {"B": 16, "G": 32, "C": 40, "S": 256},
)


@partial(Operator, suites={"default": _GROUPS})
def group_norm(
    x: Tensor[H, B, G, C, S], weight: Tensor[H, G, C, 1], bias: Tensor[H, G, C, 1], eps: float = 1e-5
) -> Tensor[H, B, G, C, S]:
    """x less its mean over a group's channels and positions, over their deviation, times weight plus bias of the channel."""
    difference = x - F.mean(x, (-2, -1))
    return difference * F.rsqrt(F.mean(difference * difference, (-2, -1)) + eps) * weight + bias


@partial(Operator, suites={"default": STAGES})
def batch_norm_train(
    x: Tensor[H, B, C, S], weight: Tensor[H, C, 1], bias: Tensor[H, C, 1], eps: float = 1e-5
) -> tuple[Tensor[H, B, C, S], Tensor[f32, C], Tensor[f32, C]]:
    """Batch normalisation in training: the result, and mean and biased variance of every channel."""
    mean = F.mean(x, (-3, -1))
    difference = x - mean
    variance = F.mean(difference * difference, (-3, -1))
    return difference * F.rsqrt(variance + eps) * weight + bias, mean, variance


#: Tokens, a vocabulary and the size of a hidden state.
_LOGITS = ({"M": 512, "N": 32000, "K": 2048}, {"M": 2048, "N": 50257, "K": 1024}, {"M": 1024, "N": 32000, "K": 4096})


@partial(Operator, suites={"default": _LOGITS})
def linear_logsumexp(x: Tensor[P, M, K], w: Tensor[P, N, K]) -> Tensor[f32, M]:
    """logsumexp(x @ w.T) of every row, as in the loss over a vocabulary; the product is rounded to the dtype of its factors."""
    result: Expr = rows.logsumexp.function(cast(x @ w.T, x.dtype))
    return result


OPERATORS = (group_norm, batch_norm_train, linear_logsumexp)

"""The shipped operators of attention. Each is its mathematics alone; its masks are expressions of rows and columns.

q is [..., G, M, D], k [..., 1, N, D] and v [..., 1, N, E]: G heads of queries share a head of keys and values (1 of them in
ordinary attention). Scores are summed in f32, weights rounded to the dtype of the values. A row that its mask leaves nothing of
is 0.
"""

from __future__ import annotations

import math
from functools import partial

from kgen.dsl import functions as F
from kgen.dsl.expr import Expr, cast, where
from kgen.dsl.indexing import arange, size
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.size import dims
from kgen.dsl.types import bf16, dtype_var, f16, f32

G, M, N, D, E = dims("G M N D E")
T = dtype_var("T", f16, bf16)


def scaled_scores(q: Expr, k: Expr) -> Expr:
    """q @ k.T over the root of a head's columns."""
    return (q @ k.T) * F.rsqrt(cast(size(D), f32))


def attend(scores: Expr, v: Expr) -> tuple[Expr, Expr]:
    """softmax(scores) @ v, and the logarithm of the sum of the scores' exponentials of every row."""
    maximum = F.amax(scores)
    exponentials = F.exp(scores - where(maximum == -math.inf, 0.0, maximum))
    total = F.sum(exponentials)
    weights = where(total == 0, 0.0, exponentials / total)
    return cast(weights, v.dtype) @ v, maximum + F.log(total)


_DEFAULT = ({"...": (2, 8), "G": 4, "M": 2048, "N": 2048, "D": 128, "E": 128},)


@partial(Operator, suites={"default": _DEFAULT})
def attention_full(
    q: Tensor[T, ..., G, M, D], k: Tensor[T, ..., 1, N, D], v: Tensor[T, ..., 1, N, E]
) -> Tensor[T, ..., G, M, E]:
    """softmax(q @ k.T / sqrt(D)) @ v."""
    return attend(scaled_scores(q, k), v)[0]


@partial(Operator, suites={"default": _DEFAULT})
def attention_causal(
    q: Tensor[T, ..., G, M, D], k: Tensor[T, ..., 1, N, D], v: Tensor[T, ..., 1, N, E]
) -> tuple[Tensor[T, ..., G, M, E], Tensor[f32, ..., G, M]]:
    """attention_full of the keys up to the query's own, counted from the end of both, and the logarithm of the sums."""
    seen = arange(M, 1) + (size(N) - size(M)) >= arange(N)
    return attend(where(seen, scaled_scores(q, k), -math.inf), v)


OPERATORS = (attention_full, attention_causal)

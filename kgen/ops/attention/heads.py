"""The shipped operators of attention, and the variants of them that `kgen.attention` makes when they are asked for.

Each is its mathematics alone; a mask is an expression of rows and columns. q is [..., G, M, D], k [..., 1, N, D] and v
[..., 1, N, E]: G heads of queries share one of keys and values (1 of them in ordinary attention). Scores and sums are f32,
weights are rounded to the dtype of the values. A row that its mask leaves nothing of is 0.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Callable
from typing import Any, Literal

from kgen.dsl import functions as F
from kgen.dsl.expr import Expr, Shape, cast, matmul, where
from kgen.dsl.indexing import arange, take
from kgen.dsl.operator import Number, Operator, Tensor
from kgen.dsl.size import Size, SizeExpr, dims
from kgen.dsl.types import AnyDType, DType, bf16, bool_, dtype_var, e4m3, f16, f32, i32, i64

G, M, N, D, E = dims("G M N D E")
#: Heads of keys, pages of a batch, and rows of all pages, where keys are in pages.
K, L, R = dims("K L R")
#: Weights of 8 bits are this many times as large, as what is below 2^-9 is rounded to multiples of that.
_RAISED = 256.0
T = dtype_var("T", f16, bf16)

#: full: every key; causal: up to the query's own; window: no further than `left` and `right`; ranges: from `begin` to `end`.
Mask = Literal["full", "causal", "window", "ranges"]
#: What is added to the scores: True, of q's dtype; "f32"; "bool": nothing, but where it is false a column does not count.
Bias = Literal[False, True, "f32", "bool"]


def _exponentials(scores: Expr, sinks: Expr | None, whole: bool = False) -> tuple[Expr, Expr, Expr]:
    """The scores' exponentials, up to a factor of each row; every row's sum of them; the logarithm of the true sum.

    With `whole` a row's factor is a power of two.
    """
    maximum = F.amax(scores)
    if sinks is not None:
        maximum = F.maximum(maximum, sinks)
    if whole:
        maximum = F.ceil(maximum * math.log2(math.e)) * math.log(2)
    origin = where(maximum == -math.inf, 0.0, maximum)
    exponentials = F.exp(scores - origin)
    total = F.sum(exponentials)
    if sinks is not None:
        total = total + F.exp(sinks - origin)
    return exponentials, total, maximum + F.log(total)


def attend(
    scores: Expr,
    v: Expr,
    sinks: Expr | None = None,
    drop: Callable[[Expr], Expr] | None = None,
    accumulate: DType = f32,
) -> tuple[Expr, Expr]:
    """softmax(scores) @ v, and the logarithm of the sum of the scores' exponentials of every row.

    Of a row of -infinity alone, these are 0 and -infinity. `sinks` are one more score of each row, which has no value: it counts
    in the sum of exponentials alone. `drop` makes of the weights those that are multiplied with. Values are summed in
    `accumulate`.
    """
    exponentials, total, logarithm = _exponentials(scores, sinks)
    weights = where(total == 0, 0.0, exponentials / total)
    return matmul(cast(drop(weights) if drop else weights, v.dtype), v, accumulate), logarithm


def attend_fp8(scores: Expr, v: Expr, scale: Expr, sinks: Expr | None = None) -> tuple[Expr, Expr]:
    """As attend, of values of 8 bits, [E, N], which are multiples of `scale`.

    Weights are rounded before they are divided by their sum: what is below 2^-9 has no digits, so that they are raised. Of
    powers of two as a row's factor the rounding is the same whatever the largest score.
    """
    exponentials, total, logarithm = _exponentials(scores, sinks, whole=True)
    product = cast(exponentials * _RAISED, v.dtype) @ v.T
    return product * where(total == 0, 0.0, 1 / total) * (scale * (1 / _RAISED)), logarithm


def tensor(dtype: AnyDType, *shape: Size) -> Tensor:
    """Tensor[dtype, ..., shape]."""
    return Tensor(dtype, Shape(shape, leading=True))


def parameters_of(
    mask: Mask,
    bias: Bias,
    softcap: bool = False,
    sinks: bool = False,
    dropout: bool = False,
    lengths: bool = False,
    page: int = 0,
    fp8: bool = False,
    t: AnyDType = T,
) -> dict[str, tuple[Any, Any]]:
    """The operands of a variant, of 16 bits in t: type and default by name."""
    needed, positive = inspect.Parameter.empty, Number(f32, 0, math.inf)
    own = (K,) if page else ()
    found: dict[str, tuple[Any, Any]] = {
        "q": (tensor(t, *own, G, M, D), needed),
        "k": (Tensor(t, Shape((R, D))) if page else tensor(t, 1, N, D), needed),
        "v": (Tensor(t, Shape((R, E))) if page else tensor(t, 1, N, E), needed),
    }
    if fp8:
        found |= {"q": (tensor(e4m3, G, M, D), needed), "k": (tensor(e4m3, 1, N, D), needed)}
        found["v"] = (tensor(e4m3, 1, E, N), needed)
        found |= {"q_scale": (tensor(f32, G, 1, 1), needed)} | {
            name: (tensor(f32, 1, 1, 1), needed) for name in ("k_scale", "v_scale")
        }
    if page:
        found["pages"] = (tensor(i32, 1, 1, L), needed)
    if bias:
        kind = f32 if bias == "f32" else bool_ if bias == "bool" else t
        found["bias"] = (tensor(kind, *own, G, M, _columns(page)), needed)
    if sinks:
        found["sinks"] = (tensor(f32, *own, G, 1, 1), needed)
    if lengths:
        found["lengths"] = (tensor(i32, *[1] * len(own), 1, 1, 1), needed)
    if mask == "ranges":
        found |= {"begin": (Tensor(i32, Shape((M, 1))), needed), "end": (Tensor(i32, Shape((M, 1))), needed)}
    if page:
        found |= {"page_rows": (int, 1), "key_rows": (int, 1), "head_rows": (int, 1)}
    found["scale"] = (positive, 0.125)
    if softcap:
        found["softcap"] = (positive, 50.0)
    if dropout:
        found |= {"dropout_p": (Number(f32, 0, 1), 0.1), "seed": (i64, 0)}
    if mask in ("causal", "window"):
        found["shift"] = (int, 0)
    if mask == "window":
        found |= {"left": (int, 1024), "right": (int, 0)}
    return found


def _columns(page: int) -> SizeExpr:
    """How many keys there are, in pages of so many or in one piece."""
    columns = L * page if page else N
    assert isinstance(columns, SizeExpr)
    return columns


def _rows_of_pages(x: dict[str, Expr], page: int) -> Expr:
    """The rows of k and v that have the keys of a head, [..., K, 1, N]."""
    column = arange(_columns(page))
    of_page = cast(take(x["pages"], column // page, axis=-1), i64) * x["page_rows"]
    return of_page + column % page * x["key_rows"] + arange(K, 1, 1) * x["head_rows"]


def seen(mask: Mask, x: dict[str, Expr], lengths: bool, column: Expr) -> Expr:
    """Which columns rows see."""
    if mask == "ranges":
        return (x["begin"] <= column) & (column < x["end"])
    row = arange(M, 1) + x["shift"]
    if lengths:  # are alone on their side: any int may be one, and nothing overflows
        row, column = x["lengths"], column - row
        return row >= column if mask == "causal" else (row <= column + x["left"]) & (column - x["right"] <= row)
    return row >= column if mask == "causal" else (row - x["left"] <= column) & (column <= row + x["right"])


_DOCS = {
    "full": "softmax({scores}) @ v.",
    "causal": "softmax({scores}) @ v of the columns j <= i + shift.",
    "window": "softmax({scores}) @ v of the columns from i + shift - left to i + shift + right.",
    "ranges": "softmax({scores}) @ v of the columns from begin[i] to before end[i], as of documents one after another.",
}


@functools.cache
def variant(
    mask: Mask,
    *,
    bias: Bias = False,
    softcap: bool = False,
    sinks: bool = False,
    dropout: bool = False,
    lse: bool = False,
    lengths: bool = False,
    page: int = 0,
    fp8: bool = False,
    f16acc: bool = False,
    partial: bool = False,
) -> Operator:
    """Attention with a mask; with a bias, of q's dtype or of f32, added to the scores, or one that is bool and leaves a row the
    columns where it is true; with scores bounded before as softcap * tanh(scores / softcap); with the logarithm of each row's
    sum of exponentials, in f32, as a second result. `sinks`, f32 [..., G, 1, 1], are one more score of each row of a head,
    without a key or a value: its exponential is one of the row's sum. With `dropout` a weight is 0 with the probability
    dropout_p, and else divided by 1 - dropout_p, by random numbers under `seed` in the order of the weights [..., G, M, N].
    With `lengths`, i32 [..., 1, 1, 1], keys and values from there on count for nothing, NaN or not, and rows are counted from
    there: row i stands at lengths + shift + i.
    With a `page` of so many keys, q is [..., K, G, M, D], k [R, D] and v [R, E] have the rows of all heads and pages, and key
    j of head h is row pages[j // page] * page_rows + j % page * key_rows + h * head_rows, of `pages`, i32 [..., 1, 1, L]; 0
    where there is no such row. With `fp8` q, k and v are e4m3, v is [..., 1, E, N], and each has an f32 that it is a multiple of:
    q_scale, [..., G, 1, 1], k_scale and v_scale, [..., 1, 1, 1]; there are no lengths, no pages and no dropout. With `f16acc`
    both products are summed in f16, of operands of f16. With `partial` the result is f32: of a part of the keys, which
    `merging` puts together with that of others.
    """
    t, accumulate = (f16, f16) if f16acc else (T, f32)
    parameters = parameters_of(mask, bias, softcap, sinks, dropout, lengths, page, fp8, t)

    def function(*given: Expr) -> Any:
        x = dict(zip(parameters, given))
        k, v, column = x["k"], x["v"], arange(_columns(page))
        if page:
            rows = _rows_of_pages(x, page)
            k, v = take(k, rows, axis=0), take(v, rows, axis=0)
        products = matmul(x["q"], k.T, accumulate)
        scores = x["scale"] * (products * (x["q_scale"] * x["k_scale"]) if fp8 else products)
        if softcap:
            scores = x["softcap"] * F.tanh(scores / x["softcap"])
        if bias:
            scores = where(x["bias"], scores, -math.inf) if bias == "bool" else scores + x["bias"]
        if lengths:
            scores = where(column < x["lengths"], scores, -math.inf)
            v = cast(where(arange(_columns(page), 1) < x["lengths"], v, 0.0), v.dtype)
        if mask != "full":
            scores = where(seen(mask, x, lengths, column), scores, -math.inf)
        drop = (lambda weights: F.dropout(weights, x["dropout_p"], x["seed"], 0)) if dropout else None
        of_sinks = x["sinks"] if sinks else None
        if fp8:
            result, logarithm = attend_fp8(scores, v, x["v_scale"], of_sinks)
        else:
            result, logarithm = attend(scores, v, of_sinks, drop, accumulate)
        return (result, logarithm) if lse else result

    kinds = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind, default=default)
             for n, (kind, default) in parameters.items()]  # fmt: skip
    own = (K,) if page else ()
    result: Any = tensor(f32 if partial else t, *own, G, M, E)
    if lse:
        result = types.GenericAlias(tuple, (result, tensor(f32, *own, G, M)))
    function.__signature__ = inspect.Signature(kinds, return_annotation=result)  # type: ignore[attr-defined]
    scores = "scale * q @ k.T"
    scores = f"softcap * tanh({scores} / softcap)" if softcap else scores
    scores = f"where(bias, {scores}, -inf)" if bias == "bool" else f"{scores} + bias" if bias else scores
    more = " The second result is the logarithm of each row's sum of exponentials." if lse else ""
    more = " The result is f32, of a part of the keys." + more if partial else more
    more = " q, k and v are multiples of their scales, v is [E, N]." + more if fp8 else more
    more = " Weights are dropped with probability dropout_p, by `seed`." + more if dropout else more
    more = " Of each row's exponentials, exp(sinks) is one without a value." + more if sinks else more
    more = f" Keys and values are in pages of {page}, found by `pages`." + more if page else more
    more = " Columns from `lengths` on do not count, and rows are counted from there." + more if lengths else more
    more = " Both products are summed in f16." + more if f16acc else more
    function.__doc__ = _DOCS[mask].format(scores=scores) + more
    options = {
        "bias" if bias is True else f"bias_{bias}": bias,
        "softcap": softcap,
        "sinks": sinks,
        "dropout": dropout,
        "fp8": fp8,
        "f16acc": f16acc,
        "lengths": lengths,
        "partial": partial,
        "lse": lse,
    }
    words = ["attention", mask, *([f"pages_of_{page}"] if page else []), *(word for word, on in options.items() if on)]
    # Heads of 128 columns over a prompt, four of queries to one of keys, of 64 over a longer one, and one query over a cache.
    heads: list[dict[str, int | tuple[int, ...]]] = [
        {"...": (2, 8), "G": 4, "M": 2048, "N": 2048, "D": 128, "E": 128},
        {"...": (1, 16), "G": 1, "M": 4096, "N": 4096, "D": 64, "E": 64},
        {"...": (4, 8), "G": 4, "M": 1, "N": 8192, "D": 128, "E": 128},
    ]
    cache: dict[str, int | tuple[int, ...]] = {
        "...": (4,),
        "K": 8,
        "G": 4,
        "M": 1,
        "L": 512,
        "R": 2**18,
        "D": 128,
        "E": 128,
    }
    return Operator(function, "_".join(words), {"default": [cache] if page else heads})


@functools.cache
def merging(dtype: DType) -> Operator:
    """Attention to keys in two parts, in `dtype`, of the results of each, f32 [..., E], and the logarithms of their rows' sums of
    exponentials: 0 and -infinity where a row has no key in a part.
    """

    def function(
        a: Tensor[f32, ..., E], b: Tensor[f32, ..., E], a_lse: Tensor[f32, ..., 1], b_lse: Tensor[f32, ..., 1]
    ) -> Any:
        maximum = F.maximum(a_lse, b_lse)
        origin = where(maximum == -math.inf, 0.0, maximum)
        of_a, of_b = F.exp(a_lse - origin), F.exp(b_lse - origin)
        total = of_a + of_b
        return where(total == 0, 0.0, (a * of_a + b * of_b) / total)

    function.__annotations__["return"] = Tensor(dtype, Shape((E,), leading=True))
    function.__doc__ = (
        f"(exp(a_lse) * a + exp(b_lse) * b) / (exp(a_lse) + exp(b_lse)) in {dtype}; 0 where both are -infinity."
    )
    rows: list[dict[str, int | tuple[int, ...]]] = [{"...": (64, 32), "E": 128}, {"...": (16, 8192), "E": 64}]
    return Operator(function, f"merge_attention_{dtype}", {"default": rows})


OPERATORS = (variant("full"), variant("causal", lse=True), variant("window", softcap=True), variant("full", bias=True),
             variant("causal", sinks=True, lse=True), variant("causal", dropout=True), variant("causal", lengths=True),
             variant("causal", lengths=True, page=16), variant("ranges", lse=True),
             variant("causal", fp8=True, lse=True), variant("causal", f16acc=True), variant("full", partial=True, lse=True),
             merging(f16), merging(bf16))  # fmt: skip

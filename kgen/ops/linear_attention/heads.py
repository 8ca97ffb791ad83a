"""The shipped operators of linear attention, and the variants that `kgen.linear_attention` and its gradients call.

Each is its mathematics alone: q and k are [..., N, D], v [..., N, E], and a mask of places stands where attention has a softmax.
Weights are rounded to the dtype of the values. `decay` is the logarithm, f32 [..., 1, N], of what each row leaves of the rows
before it, and counts as at least -80 and at most 0: exp(-80) is nothing beside 1, and still a normal number of f32.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from kgen.dsl import functions as F
from kgen.dsl.expr import Expr, Shape, cast, where
from kgen.dsl.indexing import arange
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.size import Size, dims
from kgen.dsl.types import AnyDType, bf16, dtype_var, f16, f32

N, D, E = dims("N D E")
T, R = dtype_var("T", f16, bf16), dtype_var("R", f16, bf16, f32)

#: The least logarithm of decay.
LEAST = -80.0


def attend(q: Expr, k: Expr, v: Expr, decay: Expr | None, scale: Expr, *, backwards: bool = False) -> Expr:
    """The rows' sums of the values up to each row's own, or from there on where `backwards`."""
    weights = scale * (q @ k.T)
    if decay is not None:
        # A NaN spoils the rows behind it, which know of it; backwards, those before it do not.
        bounded = where(decay > LEAST, F.minimum(decay, 0.0), LEAST) if backwards else F.clamp(decay, LEAST, 0.0)
        total = F.cumsum(bounded)
        weights = weights * F.exp(total - total.T if backwards else total.T - total)
    row, column = arange(N, 1), arange(N)
    return cast(where(row <= column if backwards else row >= column, weights, 0.0), v.dtype) @ v


def _tensor(dtype: AnyDType, *shape: Size) -> Tensor:
    """Tensor[dtype, ..., shape]."""
    return Tensor(dtype, Shape(shape, leading=True))


@functools.cache
def variant(*, decay: bool, backwards: bool = False, wide: bool = False) -> Operator:
    """Linear attention with or without decay, over the columns up to each row's own, or from there on where `backwards`;
    `wide`: with results in f32.
    """
    needed = inspect.Parameter.empty
    parameters: dict[str, tuple[Any, Any]] = {
        "q": (_tensor(T, N, D), needed), "k": (_tensor(T, N, D), needed), "v": (_tensor(T, N, E), needed),
    }  # fmt: skip
    if decay:
        parameters["decay"] = (_tensor(f32, 1, N), needed)
    parameters["scale"] = (float, 0.125)

    def function(*given: Expr) -> Expr:
        x = dict(zip(parameters, given))
        return attend(x["q"], x["k"], x["v"], x.get("decay"), x["scale"], backwards=backwards)

    kinds = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind, default=default)
             for n, (kind, default) in parameters.items()]  # fmt: skip
    result = _tensor(f32 if wide else T, N, E)
    function.__signature__ = inspect.Signature(kinds, return_annotation=result)  # type: ignore[attr-defined]
    columns = "from each row's own on" if backwards else "up to each row's own"
    between = ", times the exponential of the sum of decay between them," if decay else ""
    function.__doc__ = f"(scale * q @ k.T{between} of the columns {columns}) @ v."
    options = {"decay": decay, "undecayed": not decay, "backwards": backwards, "wide": wide}
    # The heads of a layer over a prompt, and narrower ones over a longer one.
    heads: list[dict[str, int | tuple[int, ...]]] = [
        {"...": (2, 8), "N": 2048, "D": 128, "E": 128},
        {"...": (1, 16), "N": 4096, "D": 64, "E": 64},
    ]
    name = "_".join(["linear_attention", *(word for word, on in options.items() if on)])
    return Operator(function, name, {"default": heads})


@Operator
def linear_attention_moved(
    grad: Tensor[R, ..., N, E], result: Tensor[R, ..., N, E], v: Tensor[T, ..., N, E], grad_v: Tensor[T, ..., N, E]
) -> Tensor[f32, ..., N]:
    """What the running sum of decay moves at each row: what its weights give to the result, less what they take of its value."""
    return F.sum(cast(grad, f32) * cast(result, f32) - cast(v, f32) * cast(grad_v, f32))


OPERATORS = (variant(decay=False), variant(decay=True), variant(decay=True, backwards=True))

"""The shipped operators of linear attention, and the variants that `kgen.linear_attention` calls.

Each is its mathematics alone: q and k are [..., N, D], v [..., N, E], and a mask of places takes the softmax's place. Weights are
rounded to the dtype of the values. `decay` is the logarithm, f32 [..., 1, N], of what each row leaves of the rows before it, and
counts as at least -80 and at most 0: exp(-80) is nothing beside 1, and still a number of f32 that is not denormal.
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
T = dtype_var("T", f16, bf16)

#: The least logarithm of decay.
LEAST = -80.0


def _tensor(dtype: AnyDType, *shape: Size) -> Tensor:
    """Tensor[dtype, ..., shape]."""
    return Tensor(dtype, Shape(shape, leading=True))


@functools.cache
def variant(*, decay: bool, backwards: bool = False) -> Operator:
    """Linear attention with or without decay, over the columns up to each row's own, or from there on where `backwards`."""
    needed = inspect.Parameter.empty
    parameters: dict[str, tuple[Any, Any]] = {
        "q": (_tensor(T, N, D), needed), "k": (_tensor(T, N, D), needed), "v": (_tensor(T, N, E), needed),
    }  # fmt: skip
    if decay:
        parameters["decay"] = (_tensor(f32, 1, N), needed)
    parameters["scale"] = (float, 0.125)

    def function(*given: Expr) -> Any:
        x = dict(zip(parameters, given))
        weights = x["scale"] * (x["q"] @ x["k"].T)
        if decay:
            # Of rows behind a NaN, those before it may know; backwards, those behind it may not.
            bounded = where(x["decay"] > LEAST, F.minimum(x["decay"], 0.0), LEAST)
            total = F.cumsum(bounded if backwards else F.clamp(x["decay"], LEAST, 0.0))
            weights = weights * F.exp(total - total.T if backwards else total.T - total)
        row, column = arange(N, 1), arange(N)
        return cast(where(row <= column if backwards else row >= column, weights, 0.0), x["v"].dtype) @ x["v"]

    kinds = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind, default=default)
             for n, (kind, default) in parameters.items()]  # fmt: skip
    function.__signature__ = inspect.Signature(kinds, return_annotation=_tensor(T, N, E))  # type: ignore[attr-defined]
    columns = "from each row's own on" if backwards else "up to each row's own"
    between = ", times the exponential of the sum of decay between them," if decay else ""
    function.__doc__ = f"(scale * q @ k.T{between} of the columns {columns}) @ v."
    words = ["linear_attention", *(["decay"] if decay else []), *(["backwards"] if backwards else [])]
    # The heads of a layer, and those of several, over a prompt.
    heads: list[dict[str, int | tuple[int, ...]]] = [
        {"...": (2, 8), "N": 2048, "D": 128, "E": 128},
        {"...": (1, 16), "N": 4096, "D": 64, "E": 64},
    ]
    return Operator(function, "_".join(words), {"default": heads})


OPERATORS = (variant(decay=False), variant(decay=True), variant(decay=True, backwards=True))

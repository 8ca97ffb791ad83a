"""The shipped operators of sigmoid attention, and the variants of them that `kgen.sigmoid_attention` makes when asked for.

Operands, masks and rounding are those of attention (kgen/ops/attention/heads.py). A weight knows of no other in its row.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Literal

from kgen.dsl import functions as F
from kgen.dsl.expr import Expr, cast, where
from kgen.dsl.indexing import arange
from kgen.dsl.operator import Operator
from kgen.ops.attention.heads import E, G, M, Mask, N, T, parameters_of, seen, tensor

_COLUMNS = {
    "full": "",
    "causal": " of the columns j <= i + shift",
    "window": " of the columns from i + shift - left to i + shift + right",
}


@functools.cache
def sigmoid_variant(mask: Mask, *, bias: Literal[False, True, "f32"] = False) -> Operator:
    """Sigmoid attention with a mask, and with a bias that is one number, or a tensor of q's dtype or of f32."""
    parameters = parameters_of(mask, bias)
    if not bias:  # about minus the logarithm of a few thousand columns, by which a row's weights come to 1
        parameters["bias"] = (float, -8.0)

    def function(*given: Expr) -> Expr:
        x = dict(zip(parameters, given))
        weights = F.sigmoid(x["scale"] * (x["q"] @ x["k"].T) + x["bias"])
        if mask != "full":
            weights = where(seen(mask, x, False, arange(N)), weights, 0.0)
        return cast(weights, x["v"].dtype) @ x["v"]

    kinds = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind, default=default)
             for n, (kind, default) in parameters.items()]  # fmt: skip
    result: Any = tensor(T, G, M, E)
    function.__signature__ = inspect.Signature(kinds, return_annotation=result)  # type: ignore[attr-defined]
    function.__doc__ = f"sigmoid(scale * q @ k.T + bias) @ v{_COLUMNS[mask]}."
    words = ["sigmoid_attention", mask, *(["bias" if bias is True else f"bias_{bias}"] if bias else [])]
    # Heads of 128 columns over a prompt, four of queries to one of keys, and of 64 over a longer one.
    heads: list[dict[str, int | tuple[int, ...]]] = [
        {"...": (2, 8), "G": 4, "M": 2048, "N": 2048, "D": 128, "E": 128},
        {"...": (1, 16), "G": 1, "M": 4096, "N": 4096, "D": 64, "E": 64},
    ]
    return Operator(function, "_".join(words), {"default": heads})


OPERATORS = (sigmoid_variant("full", bias=True), sigmoid_variant("causal"))

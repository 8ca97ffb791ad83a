"""The shipped operators and the families that serve them. Importing this registers every family.

A family is a folder with its schedules and, beside them, files of operators; nms is both in one file. Each file of operators
ships those in its tuple `OPERATORS`, and is listed here once.
"""

from __future__ import annotations

import difflib
import functools

from kgen.dsl.any_order import unordered
from kgen.dsl.errors import ArgumentError
from kgen.dsl.gradient import backward_graphs
from kgen.dsl.operator import Operator
from kgen.dsl.program import launches_of
from kgen.ops import attention_gradient, nms, programs, scan
from kgen.ops.attention import heads, sigmoid
from kgen.ops.elementwise import fused, layouts, pointwise, rope
from kgen.ops.gather import lookups
from kgen.ops.gemm import products
from kgen.ops.linear_attention import heads as linear_heads
from kgen.ops.reduction import columns, reductions
from kgen.ops.rowwise import rows
from kgen.ops.scatter import scatters

__all__ = ["ALIASES", "UnknownOperatorError", "operator", "operators"]

_MODULES = (
    products, pointwise, fused, rope, layouts, rows, reductions, columns, lookups, scatters, scan, nms, heads,
    sigmoid, attention_gradient, linear_heads, programs,
)  # fmt: skip
_OPERATORS: dict[str, Operator] = {operator.name: operator for module in _MODULES for operator in module.OPERATORS}

#: Other names that the field uses for an operator.
ALIASES = {"swish": "silu", "nms": "nms_padded"}


class UnknownOperatorError(ArgumentError, AttributeError):
    """No operator has that name."""


def operators() -> dict[str, Operator]:
    """The shipped operators by name."""
    return dict(_OPERATORS)


def operator(name: str) -> Operator:
    """The shipped operator of that name or alias, or the launch `NAME_1`, `NAME_2` of one that takes several; what training runs
    of one, `NAME_train` (where that keeps more) and its gradient, `NAME_grad` or `NAME_train_grad`; `NAME_grad_unordered` is the
    gradient whose sums may be made in any order.

    Raises UnknownOperatorError, which names the nearest ones.
    """
    found = _OPERATORS.get(ALIASES.get(name, name)) or _derived(name) or _launch(name)
    if found is None:
        near = difflib.get_close_matches(name, [*_OPERATORS, *ALIASES], n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(_OPERATORS)}"
        raise UnknownOperatorError(f"no operator {name!r}: {hint}")
    return found


def _launch(name: str) -> Operator | None:
    head = name.rpartition("_")[0]
    whole = _OPERATORS.get(head) or _derived(head)
    return next((launch for launch in launches_of(whole) if launch.name == name), None) if whole else None


@functools.cache
def _derived(name: str) -> Operator | None:
    """What a training step runs of an operator: the call with what it keeps, or the gradients of all inputs."""
    if name.endswith("_grad_unordered"):
        ordered = _derived(name.removesuffix("_unordered"))
        return ordered and Operator.of_graphs(list(map(unordered, ordered.graphs)), ordered.__doc__ or "", {})
    base = _OPERATORS.get(name.removesuffix("_grad").removesuffix("_train"))
    if base is None or not name.endswith(("_train", "_grad")):
        return None
    steps = [backward_graphs(graph) for graph in base.graphs]
    graphs = [made for step in steps for made in step if made is not None and made.name == name]
    return Operator.of_graphs(graphs, f"Derived of {base.name}.", {}) if graphs else None

"""What a graph computes by way of linear attention, found by algebra: a weight of rows and columns that separates.

A graph is linear attention where every element of its result is a sum over j of weight(i, j) * v[j, :], j up to i or from i on,
and weight is a number times (q @ k.T)[i, j] times the exponential of what a running sum G falls between i and j, if any. Such a
weight is a product of what i has, what j has, and what lies between them: what all rows of other chunks add is q[i, :] @ S, where
the state S, a sum of multiples of k[j, :] and v[j, :], goes from chunk to chunk (Katharopoulos et al., "Transformers are RNNs",
2020; Sun et al., "Retentive Network", 2023). As G only falls, no factor on the way is above 1, as the weight's own is not.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from kgen.dsl.expr import Expr, apply, walk
from kgen.dsl.operator import Graph
from kgen.dsl.ops import POINTWISE, PRODUCTS, REDUCTIONS, SCANS
from kgen.dsl.product import factors
from kgen.dsl.ranges import never_negative
from kgen.dsl.types import DType, f32
from kgen.ops.attention.algebra import is_number

#: What decay may be computed of.
_DECAY = POINTWISE | {"input", "const", "scalar", "size"}


@dataclass(frozen=True)
class LinearAttention:
    """`result[i, :] = scale * sum over j of exp(decay between them) * (q @ k.T)[i, j] * v[j, :]`, in the graph's own nodes.

    j goes up to i, or from i on where `backwards`; the later one's decay counts, the earlier one's does not. `decay` is
    pointwise over the input `decayed`, f32 [..., 1, N], and never positive; None, with the name "", for 0. `scale` is a number,
    or None for 1.
    """

    q: str
    k: str
    v: str
    dtype: DType
    scale: Expr | None
    decay: Expr | None
    decayed: str
    backwards: bool


@functools.lru_cache(maxsize=1024)
def linear_attention(graph: Graph) -> LinearAttention | None:
    """The graph as linear attention, or None where it is anything else."""
    result, *others = graph.merged.results
    while result.op == "cast":
        result = result.args[0]
    nodes = walk((result,))
    products = [n for n in nodes if n.op in PRODUCTS]
    if others or len(products) != 2 or any(n.op in REDUCTIONS for n in nodes) or result.op != "matmul":
        return None
    product, (weights, value) = products[0], result.args
    found = factors(product) if product.op == "matmul" else None
    if not found or any(f.scale for f in found) or found[0].transposed or not found[1].transposed:
        return None
    if value.op != "input" or any(f.dtype is not value.dtype for f in found):
        return None
    if weights.op != "cast" or weights.dtype is not value.dtype or weights.args[0].op != "where":
        return None
    condition, weight, zero = weights.args[0].args
    backwards, taken = _direction(condition), _separated(weight, product)
    if backwards is None or taken is None or zero.op != "const" or zero.attr != 0:
        return None
    scale, fall = taken
    whole = LinearAttention(found[0].name, found[1].name, value.attr, value.dtype, scale, None, "", backwards)
    if fall is None:
        return whole
    decay = _decay(fall, backwards)
    names = {n.attr for n in walk((decay,)) if n.op == "input"} if decay is not None else set()
    return replace(whole, decay=decay, decayed=names.pop()) if len(names) == 1 else None


def _direction(condition: Expr) -> bool | None:
    """Whether a condition leaves row i the columns j >= i; False for j <= i, None for anything else."""
    if condition.op not in ("ge", "le") or any(n.op != "arange" for n in condition.args):
        return None
    a, b = (len(n.shape.dims) for n in condition.args)
    if {a, b} != {1, 2} or condition.args[0].shape.dims[0] != condition.args[1].shape.dims[0]:
        return None
    return (condition.op == "ge") == (a == 1)


def _separated(weight: Expr, product: Expr) -> tuple[Expr | None, Expr | None] | None:
    """The number that the product is multiplied by, None for 1, and what an exponential it is multiplied by is of."""
    scale, fall, seen, stack = None, None, False, [weight]
    while stack:
        node = stack.pop()
        if node is product and not seen:
            seen = True
        elif is_number(node):
            scale = node if scale is None else apply("mul", scale, node)
        elif node.op == "mul":
            stack.extend(node.args)
        elif node.op == "exp" and fall is None:
            fall = node.args[0]
        else:
            return None
    return (scale, fall) if seen else None


def _decay(fall: Expr, backwards: bool) -> Expr | None:
    """What G of `G.T - G`, or of `G - G.T` where columns come after rows, is the running sum of; None of anything else."""
    if fall.op != "sub":
        return None
    later, earlier = fall.args[::-1] if backwards else fall.args
    if later.op != "transpose" or later.args[0] is not earlier or earlier.op not in SCANS - {"cumprod", "logcumsumexp"}:
        return None
    decay = earlier.args[0]
    plain = all(n.op in _DECAY and (n.op != "input" or n.dtype is f32) for n in walk((decay,)))
    whole = decay.shape.dims[0] == 1 and all(n.shape == decay.shape for n in walk((decay,)) if n.op == "input")
    return decay if plain and whole and len(decay.shape.dims) == 2 and _never_positive(decay) else None


def _never_positive(value: Expr) -> bool:
    if value.op == "const":
        return bool(value.attr <= 0)
    if value.op in ("minimum", "maximum", "add", "where"):
        signs = [_never_positive(x) for x in value.args[-2:]]
        return any(signs) if value.op == "minimum" else all(signs)
    return value.op == "neg" and never_negative(value.args[0])

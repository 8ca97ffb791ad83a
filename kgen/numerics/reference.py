"""Reference: what an operator must compute, by torch: exactly (float64, int64), and as torch's own kernels would.

`evaluate` is the meaning of a graph: floats in float64, integers in int64, rounded only where the graph casts. `native` takes
the same steps in the operator's own dtypes, which says how large an error is to be expected.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from kgen.dsl.expr import Expr, walk
from kgen.dsl.operator import Graph, left_out
from kgen.dsl.ops import OPS, accumulator
from kgen.dsl.product import blocked
from kgen.dsl.types import DType, compute_dtype, e4m3, e5m2, f16, tf32
from kgen.numerics.dtypes import round_to, torch_dtype, ulp
from kgen.numerics.operands import FP8_SUM_DIGITS, sum_digits
from kgen.numerics.parts import by_parts
from kgen.numerics.products import (
    blocked_matmul,
    fp8_matmul,
    half_matmul,
    integer_matmul,
    plain_matmul,
    rounded,
    widened_matmul,
)
from kgen.numerics.values import VALUES, Arithmetic, reduced


def _is_moved(node: Expr) -> bool:
    return OPS[node.op].keeps and all(_is_moved(a) for a in node.args)


class _Ranged(Arithmetic):
    """The exact arithmetic with infinity beyond the range of what a kernel computes in.

    With `doubtful`, what rounding or the order of a sum decides is another value: denormals are zero, and what is left where
    computed values cancel to no more than their rounding; NaN, or 0 where they are NaN anyway, are sums that overflow in one
    order of their terms and not in another, and what is `left` where large computed values cancel.
    With `shown`, terms of products by computed weights are left
    out where the weight is 0, or below the smallest normal number of its dtype, which rounding may make 0, or a mask made the
    score -infinity that it is made of, whatever the other factor and its row: a kernel need not look at what a mask hides. With
    `regrouped`, products of weights that are multiples of another product are another value where (a b^T) c may be another one
    than a (b^T c), which a kernel of linear attention computes. With `factored`, a row's condition and the reciprocal of its
    divisor (0 where it would be denormal, and never infinite) are factors of computed elements, as in kernels of attention's
    gradients: NaN where one is 0 and an element is not finite. Where a row's inputs agree, its exponentials are finite if the
    sum that was kept of them is 0, or as large.
    """

    def __init__(
        self,
        doubtful: bool = False,
        shown: bool = False,
        regrouped: bool = False,
        factored: bool = False,
        left: float = math.nan,
    ) -> None:
        self.doubtful, self.shown, self.regrouped, self.left = doubtful, shown, regrouped, left
        self.factored = factored
        self.factors: dict[int, list[Tensor]] = {}
        self.hidden: dict[int, Tensor] = {}

    def done(self, node: Expr, value: Tensor, args: list[Tensor]) -> Tensor:
        row = OPS[node.op]
        if self.shown:
            self._hide(node, value, args)
        if self.regrouped and node.op == "cast":
            self.factors[id(node)] = args
        if self.factored:
            value = self._factored(node, value, args)
        if not node.dtype.is_float or row.keeps:
            return value
        limits = torch.finfo(torch_dtype(accumulator(node)))
        whole = value
        if self.shown and _is_weighted(node):
            value = self._without_hidden(node, value, args)
        value = torch.where(value.abs() <= limits.max, value, value.sign() * math.inf)
        if self.regrouped and row.kind == "product":
            self.factors[id(node)] = args
            value = self._regrouped(node, value, args)
        if not self.doubtful:
            return value
        value = torch.where(value.abs() < limits.tiny, 0.0, value)
        if row.sums:
            other = torch.where(value.isnan(), 0.0, math.nan)
            value = torch.where(self._order_decides(node, whole, args, limits), other, value)
        elif row.multiplies:
            value = torch.where(_leaves_range(args[0], limits), math.nan, value)
        elif row.cancels and not all(_is_moved(a) for a in node.args):
            largest = torch.maximum(*(a.double().abs() for a in args))
            value = torch.where(value.abs() < largest * 2.0**-20, 0.0, value)
            value = torch.where((largest > 1e3) & (value.abs() < largest / 8), self.left, value)
        return value

    def _order_decides(self, node: Expr, value: Tensor, args: list[Tensor], limits: torch.finfo) -> Tensor:
        """Where some orders of a sum's terms come to another infinity, or to none, or terms cancel to less than rounding leaves.

        All partial sums lie between that of the negative and that of the positive terms. If only one is beyond the range, and
        the whole sum is too, or a term that is infinite, it is that infinity in every order.
        """
        finite = [a.nan_to_num(0.0, 0.0, 0.0) if a.is_floating_point() else a for a in args]
        plus = [a.clamp_min(0) if a.is_floating_point() else a for a in finite]
        minus = [(-a).clamp_min(0) if a.is_floating_point() else a for a in finite]
        up, down = self._sum_of(node, plus), self._sum_of(node, minus)
        if OPS[node.op].kind == "product":  # terms are positive where both factors have one sign
            up, down = up + down, self._sum_of(node, [plus[0], *minus[1:]]) + self._sum_of(node, [minus[0], *plus[1:]])
        beyond = min(
            limits.max * (1 + 2.0**-20), torch.finfo(torch.float64).max
        )  # a term at the limit is not yet beyond it
        rises, falls = up > beyond, down > beyond
        # Of float64 the sum here overflows, too: an infinity among its terms may be a product's, which fused is none.
        overflowed = (rises | falls) & (limits.max == torch.finfo(torch.float64).max)
        sure = ((value > beyond) & ~falls) | ((value < -beyond) & ~rises) | (value.isnan() & ~overflowed)
        cancels = value.isfinite() & ((up - down).abs() < 8 * limits.eps * torch.minimum(up, down))
        return ((rises | falls) & ~sure) | cancels

    def _hide(self, node: Expr, value: Tensor, args: list[Tensor]) -> None:
        """Notes which elements of a value are made of a score of -infinity that a mask put there."""
        found = [(self.hidden[id(x)], arg) for x, arg in zip(node.args, args) if id(x) in self.hidden]
        if node.op == "where" and node.args[2].op == "const" and node.args[2].attr == -math.inf:
            found.append((~args[0], value))
        if node.op == "transpose":
            found = [(hidden.mT, arg) for hidden, arg in found]
        elif node.op in ("add", "sub"):  # what is added to a weight, which is 0, is not hidden
            found = [(hidden & (arg == -math.inf), arg) for hidden, arg in found]
        elif OPS[node.op].kind != "pointwise":
            return
        if found:
            self.hidden[id(node)] = functools.reduce(operator.or_, (hidden for hidden, _ in found)).expand(value.shape)

    def _without_hidden(self, node: Expr, value: Tensor, args: list[Tensor]) -> Tensor:
        """A product without its terms of weights that are hidden, or 0 but for rounding, which may be NaN."""
        weights, other, *rest = args
        unknown = torch.zeros_like(weights, dtype=torch.bool)
        if id(node.args[0]) in self.hidden:
            hidden = self.hidden[id(node.args[0])]
            unknown, weights = hidden & ~weights.isfinite(), torch.where(hidden, 0.0, weights)
        weights = torch.where(weights.abs() < torch.finfo(torch_dtype(node.args[0].dtype)).tiny, 0.0, weights)

        def some(w: Tensor, x: Tensor) -> Tensor:
            """Where there is a term of such a weight and such a factor."""
            return self._sum_of(node, [w.to(weights.dtype), x.to(other.dtype), *rest]) > 0

        up, down = other == math.inf, other == -math.inf
        rises = some(weights > 0, up) | some(weights < 0, down)
        falls = some(weights > 0, down) | some(weights < 0, up)
        left = self._sum_of(node, [weights, other.nan_to_num(0.0, 0.0, 0.0), *rest])
        left = torch.where(rises, math.inf, torch.where(falls, -math.inf, left))
        lost = (rises & falls) | some(weights != 0, other.isnan())
        without = some(weights == 0, ~other.isfinite()) | some(unknown, torch.ones_like(other, dtype=torch.bool))
        return torch.where(without, torch.where(lost, math.nan, left), value)

    def _factored(self, node: Expr, value: Tensor, args: list[Tensor]) -> Tensor:
        """A computed value of which a row's condition, as 0 or 1, or the reciprocal of its divisor is a factor."""

        def of_row(x: Expr) -> bool:
            return x.shape.dims[-1:] in ((), (1,)) and node.shape.dims[-1:] not in ((), (1,))

        if node.op == "div" and of_row(node.args[1]):
            limits, inverse = torch.finfo(torch_dtype(node.dtype)), 1 / args[1]
            return args[0] * torch.where(inverse.abs() < limits.tiny, 0.0, inverse.clamp(-limits.max, limits.max))
        if node.op == "where" and of_row(node.args[0]):
            holds = args[0].to(torch.float64)
            for x, other, factor in ((1, 2, holds), (2, 1, 1 - holds)):
                if _is_zero(node.args[other]) and not _is_moved(node.args[x]):
                    return args[x] * factor
        return value

    def _regrouped(self, node: Expr, value: Tensor, args: list[Tensor]) -> Tensor:
        """NaN, or 0 for NaN, where a factor that counts is not finite, a weight infinite, or a sum may leave its range."""
        inner = _inner_product(node)
        if inner is None:
            return value
        (weights, c), (a, b) = args, self.factors[id(inner)]
        weights = self.factors.get(id(node.args[0]), [weights])[0]  # a state holds what rounding to a weight loses
        terms = b.abs().amax(-2).unsqueeze(-1) * c.abs()
        finite = terms.isfinite()
        seen = (weights != 0).to(terms.dtype)
        sums = seen @ torch.where(finite, terms, 0.0)
        lost = (seen @ (~finite).to(terms.dtype) > 0) | (sums > torch.finfo(torch_dtype(node.args[0].dtype)).max / 2)
        lost |= a.abs().sum(-1, keepdim=True) * sums > torch.finfo(torch_dtype(node.dtype)).max / 2
        lost |= ~a.isfinite().all(-1, keepdim=True) | weights.isinf().any(-1, keepdim=True)
        return torch.where(lost, torch.where(value.isnan(), 0.0, math.nan), value)

    def _sum_of(self, node: Expr, terms: list[Tensor]) -> Tensor:
        if OPS[node.op].kind == "reduction":
            return reduced("sum", terms[0].double(), node.attr)
        return VALUES[node.op](node, terms, self)


def _leaves_range(terms: Tensor, limits: torch.finfo) -> Tensor:
    """Where among the elements so far, along the last axis, some neighbours' product overflows or underflows.

    Without those that are 0, infinite or NaN, which decide a product.
    """
    size = terms.double().abs()
    size = torch.where(size.isfinite() & (size > 0), size, 1.0).log2().cumsum(-1)
    # Of what there is up to an element, less what there is up to one before it: at the start nothing.
    least, most = size.cummin(-1).values.clamp_max(0.0), size.cummax(-1).values.clamp_min(0.0)
    return ((size - least).cummax(-1).values > math.log2(limits.max) - 0.5) | (
        (size - most).cummin(-1).values < math.log2(limits.tiny) + 0.5
    )


class _Proof(Arithmetic):
    """The exact arithmetic that also watches whether a kernel's arithmetic has to come to the same values."""

    def __init__(self) -> None:
        self.holds = True
        self.factors: dict[int, list[Tensor]] = {}

    def done(self, node: Expr, value: Tensor, args: list[Tensor]) -> Tensor:
        if not self.holds:
            return value
        row = OPS[node.op]
        if row.kind == "product":
            self.factors[id(node)] = args
            self.holds = self._regroups(node, args)
            if not self.holds:
                return value
        if row.exactness == "rounded" and node.dtype.is_float:
            self.holds = False
        elif row.sums:
            sums = [(args, sum_digits(node)), *_block_sums(node, args)]
            self.holds = all(_largest_sum(node, terms, 2.0**digits) <= 2.0**digits for terms, digits in sums)
        elif node.dtype.is_float and row.kind != "move" and node.op != "input":
            held = round_to(value, node.dtype if row.exactness == "cast" else compute_dtype(node.dtype))
            self.holds = bool((held.to(torch.float64) == value).all())
        return value

    def _regroups(self, node: Expr, args: list[Tensor]) -> bool:
        """Whether (a b^T) c is exact as a (b^T c) too: no weight is rounded, b^T c has twice the digits of their dtype."""
        inner = _inner_product(node)
        if inner is None:
            return True
        dtype, (a, b), c = node.args[0].dtype, self.factors[id(inner)], args[1]
        sums = torch.matmul(b.abs(), c.abs())
        largest = min(2.0 ** (2 * dtype.digits), torch.finfo(torch_dtype(dtype)).max)
        return bool((torch.matmul(a.abs(), b.abs()) <= 2.0**dtype.digits).all()) and bool((sums <= largest).all())


class _Regrouped(Arithmetic):
    """The exact arithmetic, without the rounding of weights that a kernel need not make which computes a (b^T c)."""

    def __init__(self, graph: Graph) -> None:
        self.weights = {id(node.args[0]) for node in graph.nodes if _inner_product(node) is not None}

    def done(self, node: Expr, value: Tensor, args: list[Tensor]) -> Tensor:
        return args[0] if id(node) in self.weights and node.op == "cast" else value


class _NextRounding(Arithmetic):
    """The exact arithmetic; products of computed weights are greater by what other neighbours of these add.

    Of 8 bits one weight has another one. The largest one's unit in the last place counts, times the other factor: the fourth root
    of the sum of fourth powers. Of 16 bits, where results have more, all weights may be rounded as multiples of a row's, which
    moves each by up to one and a half units. Of twice that the squares add up: of many sums the largest is far from the mean.
    """

    def __init__(self, graph: Graph) -> None:
        digits = min(spec.dtype.bits for spec in graph.outputs)
        weighted = [node for node in graph.nodes if _is_weighted(node)]
        eight = {id(node): (4, 1) for node in weighted if _is_narrow(node.args[0].dtype)}
        sixteen = (node for node in weighted if 8 < node.args[0].dtype.bits < digits and _is_share(node.args[0]))
        #: The power of which there is a sum, and units of a weight.
        self.products = eight | {id(node): (2, 3) for node in sixteen}

    def done(self, node: Expr, value: Tensor, args: list[Tensor]) -> Tensor:
        if id(node) not in self.products:
            return value
        (power, units), (weights, other) = self.products[id(node)], args
        unit = units * ulp(weights.double(), node.args[0].dtype).where(weights.isfinite(), 0.0)
        return value + torch.matmul(unit**power, other.double().nan_to_num(0.0, 0.0, 0.0) ** power) ** (1 / power)


class _Native(Arithmetic):
    """The operator's own dtypes, by torch's kernels. `wide`: results are kept in more bits than the matrices have."""

    def __init__(self, graph: Graph) -> None:
        self.result_bits = max(spec.dtype.bits for spec in graph.outputs)

    def held(self, dtype: DType) -> torch.dtype:
        return torch_dtype(dtype)

    def load(self, x: Tensor, dtype: DType) -> Tensor:
        return x.to(torch_dtype(dtype))

    def matmul(self, node: Expr, a: Tensor, b: Tensor) -> Tensor:
        source, total = node.args[0].dtype, node.attr
        if node.dtype.kind == "int":
            return integer_matmul(a, b).to(torch_dtype(node.dtype))
        if source in (e4m3, e5m2):
            return fp8_matmul(a, b)
        if blocked(node):
            return blocked_matmul(a, b, blocked(node))
        if total is f16:
            return half_matmul(a, b)
        if source is tf32:  # for small matrices torch multiplies in f32, whatever is allowed
            a, b = rounded(a, tf32.digits), rounded(b, tf32.digits)
        with plain_matmul():
            if source.bits < 32 <= self.result_bits:
                return widened_matmul(a, b)
            return torch.matmul(a, b).to(torch_dtype(node.dtype))


def _run(graph: Graph, tensors: Mapping[str, Tensor], scalars: Mapping[str, float], how: Arithmetic) -> list[Tensor]:
    """The results of a graph by the given arithmetic; each value is dropped after its last use."""
    nodes = graph.nodes
    last = {id(arg): i for i, node in enumerate(nodes) for arg in node.args}
    last.update({id(result): len(nodes) for result in graph.results})
    values: dict[int, Tensor] = {}
    how.begin(graph, tensors, scalars)
    parts = by_parts(graph, tensors, how, lambda part: _run(graph, part, scalars, how))
    if parts is not None:
        return parts
    for i, node in enumerate(nodes):
        args = [values[id(arg)] for arg in node.args]
        value = VALUES[node.op](node, args, how)
        values[id(node)] = how.done(node, value, args)
        for arg in node.args:
            if last[id(arg)] == i:
                values.pop(id(arg), None)
    return [fitted(graph, k, values[id(result)], tensors) for k, result in enumerate(graph.results)]


def fitted(graph: Graph, index: int, value: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    """A result in the shape its output is declared with: a reduced last axis dropped, broadcast ones spread."""
    spec, node = graph.outputs[index], graph.results[index]
    for axis in left_out(node, spec):
        value = value.squeeze(axis)
    return value.expand(tensors[spec.name].shape) if spec.name in tensors else value


def evaluate(graph: Graph, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]) -> tuple[Tensor, ...]:
    """The graph's results in float64 or int64 (bool stays), on the tensors' device, not rounded to the outputs' dtypes.

    `tensors` are the inputs by name; outputs may be among them and then give the shape to broadcast to.
    """
    return tuple(_run(graph, tensors, scalars, Arithmetic()))


def evaluate_exactly(
    graph: Graph, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]
) -> tuple[Tensor, ...] | None:
    """As `evaluate`, where these very values leave no rounding to any order of the operator's own arithmetic; else None.

    Then every right kernel gives the same bits: each step's result is representable, each sum is small enough that all its
    partial sums are exact in the accumulator.
    """
    proof = _Proof()
    results = _run(graph, tensors, scalars, proof)
    return tuple(results) if proof.holds else None


def evaluate_ranged(
    graph: Graph, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """As `evaluate`, but what is beyond the range of the dtype that a kernel computes in is infinite; and for each result
    where it is in doubt (a bool for each element): rounding, denormals, or the order of a sum whose terms come near that
    range, decide what comes out.
    """
    ranged = _run(graph, tensors, scalars, _Ranged())
    others = [_run(graph, tensors, scalars, _Ranged(doubtful=True))]
    if any(OPS[node.op].cancels and not all(map(_is_moved, node.args)) for node in graph.nodes):
        others.append(_run(graph, tensors, scalars, _Ranged(doubtful=True, left=0.0)))  # what is NaN all the same
    if any(_is_weighted(node) for node in graph.nodes):
        others.append(_run(graph, tensors, scalars, _Ranged(shown=True)))
        others.append(_run(graph, tensors, scalars, _Ranged(factored=True)))
    if any(_inner_product(node) is not None for node in graph.nodes):
        others.append(_run(graph, tensors, scalars, _Ranged(regrouped=True)))
    doubts = tuple(
        functools.reduce(operator.or_, (_differ(value, other[i]) for other in others)) for i, value in enumerate(ranged)
    )
    return tuple(ranged), doubts


def _differ(a: Tensor, b: Tensor) -> Tensor:
    """Where two evaluations differ by more than rounding in f32 does."""
    return ~torch.isclose(a.double(), b.double(), rtol=2.0**-20, atol=1e-30, equal_nan=True)


def _is_zero(node: Expr) -> bool:
    return node.op == "const" and bool(node.attr == 0)


def _is_weighted(node: Expr) -> bool:
    """Whether a node is a product by weights that were computed."""
    return OPS[node.op].kind == "product" and not _is_moved(node.args[0])


def _is_share(weights: Expr) -> bool:
    """Whether weights are made of a product and of sums of rows, as attention's are."""
    kinds = {OPS[node.op].kind for node in walk((weights,))}
    return {"product", "reduction"} <= kinds


def _is_narrow(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits <= 8


def _inner_product(node: Expr) -> Expr | None:
    """The product whose multiples, where a mask leaves them, are the weights of another one."""
    if OPS[node.op].kind != "product":
        return None
    masked, found = False, node.args[0]
    while found.op in ("cast", "where", "mul"):
        masked |= found.op == "where"
        inner = [x for x in found.args if any(OPS[n.op].kind == "product" for n in walk((x,)))]
        if len(inner) != 1:
            return None
        found = inner[0]
    return found if masked and OPS[found.op].kind == "product" else None


def native(graph: Graph, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]) -> tuple[Tensor, ...]:
    """The graph op by op by torch in its own dtypes, rounded to the outputs' dtypes: the error that is to be expected.

    Matrix products are torch.matmul in the storage dtype (f32 results of narrower matrices keep f32). Accumulation in f16,
    and the fp8 tensor cores' shortened sums, which torch does not offer everywhere, are followed step by step.
    """
    results = _run(graph, tensors, scalars, _Native(graph))
    return tuple(round_to(value, spec.dtype) for value, spec in zip(results, graph.outputs))


def regrouped(graph: Graph, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]) -> tuple[Tensor, ...] | None:
    """As `evaluate`, with weights that are multiples of another product as they are: what a kernel of linear attention computes
    of far rows, and the definition rounds. None where there are none.
    """
    how = _Regrouped(graph)
    return tuple(_run(graph, tensors, scalars, how)) if how.weights else None


def next_rounding(
    graph: Graph, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]
) -> tuple[Tensor, ...] | None:
    """As `evaluate`, with one of each sum's weights of 8 bits rounded to its other neighbour, or all of 16 bits rounded otherwise
    where results have more; None where no weights are.

    A score's last bits decide which of two neighbours of 8 bits a weight becomes, and they are an eighth or a sixteenth of it
    apart. Kernels of attention round exponentials, which they divide by their sum afterwards.
    """
    how = _NextRounding(graph)
    return tuple(_run(graph, tensors, scalars, how)) if how.products else None


def _block_sums(node: Expr, args: list[Tensor]) -> Iterator[tuple[list[Tensor], int]]:
    """The terms of the sums that tensor cores make of a product's scaled blocks, and the digits they have for each."""
    depth = blocked(node)
    for k in range(0, args[0].shape[-1] if depth else 0, max(depth, 1)):
        yield [args[0][..., k : k + depth], args[1][..., k : k + depth, :]], FP8_SUM_DIGITS - 1


def _largest_sum(node: Expr, args: list[Tensor], enough: float) -> float:
    """A bound on every partial sum of a contraction of integers, which need be no closer than `enough`.

    Infinity where the values are not integers.
    """
    if any(a.numel() == 0 for a in args):
        return 0.0
    kind = OPS[node.op].kind
    values = [a.double() for a in (args[1:] if kind == "scatter" else args)]
    if not all(bool((v == v.round()).all()) for v in values):
        return math.inf
    if kind == "scatter":
        if values[0].dim() == 0 or values[0].shape == args[0].shape:
            return float(values[0].abs().sum()) * (args[0].numel() if values[0].dim() == 0 else 1)
        return float(values[0].abs().sum(node.attr[1]).max())
    if kind in ("reduction", "scan"):
        return float(reduced("sum", values[0].abs(), node.attr).max())
    a, b = (v.abs() for v in values[:2])
    if "matrices" in OPS[node.op].roles:  # the largest of all groups
        b = b.amax(0)
    quick = float(a.max()) * float(b.max()) * a.shape[-1]
    return quick if quick <= enough else float(torch.matmul(a, b).max())

"""Gradient: a graph's derivative as graphs of the same language, by reverse mode over the table of derivatives.

`training(graph)` is the graph with what its derivative wants kept beside the results; `backward(graph, given, wanted)` gives the
gradients of inputs from those of outputs. Whatever runs graphs runs these: the partitioner cuts them, families serve them.

What is kept is decided by bytes: inputs and results are there anyway; of values that a reduction gives one f32 a row is kept,
of a product's what is behind it needs once, in the narrower dtype of its factors; all that is pointwise is computed again. Sums
are made in f32 and rounded once, to the input's dtype.

An adjoint that passed a `where` remembers the condition instead of being 0 where it fails, so that what the branch not taken
would multiply it with (an infinity, NaN) never meets it. The largest element that an expression subtracts just for the range of
exp has no part in the result; where that can be shown (kgen.dsl.invariance) nothing is differentiated through it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Union

from kgen.dsl.adjoint import Adjoint, LeadingSum, plus, repeats_along, spread, total_of
from kgen.dsl.derivatives import rule_of
from kgen.dsl.errors import ArgumentError, DefinitionError
from kgen.dsl.expr import Expr, Shape, made_at, walk, with_arguments
from kgen.dsl.family import has_kernel
from kgen.dsl.invariance import STILL
from kgen.dsl.invariance import ways as moves
from kgen.dsl.leading import closed, fresh, is_foldable, names_of
from kgen.dsl.operator import Graph, TensorSpec, left_out
from kgen.dsl.ops import CONTRACTIONS, LEAVES, OPS, PRODUCTS
from kgen.dsl.partition import partition, telling
from kgen.dsl.size import Dim, SizeExpr, symbols_of
from kgen.dsl.types import DType

#: Rounded so coarsely, a result does not stand for the value it was made of.
_NARROW = 16


@dataclass(frozen=True)
class Source:
    """What an input of a backward graph is: the forward graph's input, output, or an output's gradient, of that index."""

    kind: Literal["input", "output", "gradient"]
    index: int


#: What expressions subtract for the range of exp: the largest element, or the larger of that and another number.
_EXTREMES = frozenset({"amax", "amin", "maximum", "minimum"})

#: What the graph is called that keeps what its derivative wants.
_KEEPING = "_train"

#: What becomes of leading dimensions where something is summed over them: they are named, as one; or folded into the first
#: named one, where rows of rows are rows. Else they are kept.
Lead = Literal["kept", "named", "folded"]


@dataclass(frozen=True)
class Backward:
    """The gradients of some inputs. `graph` computes them from its inputs, which are `sources`; None where there is no work.

    `gradients`, one for each wanted input: the index of the graph's output; or that of the output of the forward graph whose
    gradient it is, as a Source; or None for zeros. A gradient that is the same along an axis may have size 1 there.
    """

    graph: Graph | None
    sources: tuple[Source, ...]
    gradients: tuple[Union[int, Source, None], ...]
    lead: Lead


class NoDerivative(DefinitionError):
    """An operator has no derivative that kgen finds; the message says of which op, and what to do."""


def differentiable(graph: Graph) -> tuple[int, ...]:
    """The inputs that have gradients: floats."""
    return tuple(i for i, spec in enumerate(graph.inputs) if spec.dtype.is_float)


@functools.lru_cache(maxsize=4096)
def backward(graph: Graph, given: tuple[int, ...], wanted: tuple[int, ...]) -> Backward:
    """The gradients of the inputs `wanted` from those of the outputs `given`.

    Raises NoDerivative, with the op's name, where there is none, or with the inputs' where nothing serves what it is made of.
    """
    lead: Lead = "kept"
    if _sums_over_leading(graph, given, wanted):
        lead, graph = ("folded" if is_foldable(graph) else "named"), closed(graph)
    for nested in (False, True):
        found = _Reverse(graph, nested).backward(given, wanted, lead)
        if found.graph is None or launch_count(found.graph) < math.inf:
            return found
    names = ", ".join(graph.inputs[i].name for i in wanted)
    own = graph.name.removesuffix(_KEEPING)
    raise NoDerivative(
        f"{graph.where}: {own} has no derivative by {names}: no family serves what it is made of, nor a few launches one after "
        f"another; give one by @{own}.gradient, or pass such a tensor detached"
    )


@functools.lru_cache(maxsize=4096)
def _sums_over_leading(graph: Graph, given: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    try:
        _Reverse(graph).adjoints(given, wanted)
    except LeadingSum:
        return True
    return False


@functools.lru_cache(maxsize=4096)
def needed(graph: Graph, wanted: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The inputs and the outputs, by place, that gradients of the inputs `wanted` are made of, of whichever outputs' gradients.

    What is computed again for the gradient of one output may be read for that of another.
    """
    given = tuple(i for i, spec in enumerate(graph.outputs) if spec.dtype.is_float)
    whole = closed(graph) if _sums_over_leading(graph, given, wanted) else graph
    some = {given, *((i,) for i in given)}
    sources = {source for one in some for source in _Reverse(whole).backward(one, wanted, "kept").sources}
    inputs, outputs = ([s.index for s in sources if s.kind == kind] for kind in ("input", "output"))
    return tuple(sorted(inputs)), tuple(sorted(outputs))


def _all(graph: Graph) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(i for i, spec in enumerate(graph.outputs) if spec.dtype.is_float), differentiable(graph)


# Reverse mode.


class _Reverse:
    """Reverse mode over one graph. `nested`: sums over axes that others stand between are made one axis after the other."""

    def __init__(self, graph: Graph, nested: bool = False) -> None:
        self.nested = nested
        self.graph = graph.merged
        self.nodes = self.graph.nodes
        self.products = [node for node in self.nodes if id(node) in self.outputs]
        self._visible: dict[int, set[int]] = {}
        #: The extremes that adjoints passed, which go to what is equal to them.
        self._compared: set[int] = set()

    def adjoints(self, given: tuple[int, ...], wanted: tuple[int, ...]) -> dict[str, Expr | None]:
        """By input, the adjoint of its value, of at most its shape; None for zeros."""
        graph = self.graph
        names = {graph.inputs[i].name for i in wanted}
        reaches = self._reaching(names)
        self._roots = [graph.results[k] for k in given]
        parts: dict[int, list[Adjoint]] = {id(node): [] for node in self.nodes}
        self.gradients: dict[int, str] = {}
        taken = names_of(graph)
        for k in given:
            spec, result = graph.outputs[k], graph.results[k]
            # Axes of size 1 that the declared shape leaves out are there again.
            shape = result.shape if left_out(result, spec) else spec.shape
            name = self.gradients[k] = fresh(f"grad_{spec.name}", taken)
            taken.add(name)
            factor = result.args[0].dtype if result.op in PRODUCTS else spec.dtype
            same = factor.torch == spec.dtype.torch  # tf32 is f32 that is multiplied in another way
            seed = Expr("input", (), factor if same else spec.dtype, shape, name, result.where)
            with made_at(result.where):
                seeded = self._summed_to(seed, shape, result.shape)
            if seeded is not None:
                parts[id(result)].append(Adjoint(seeded))
        found: dict[str, Expr | None] = dict.fromkeys(names)
        for node in reversed(self.nodes):
            if not parts[id(node)] or not reaches[id(node)]:
                continue
            with made_at(node.where):
                adjoint, *others = parts[id(node)]
                for more in others:
                    adjoint = Adjoint(plus(adjoint.settled(), more.settled()))
                if node.op == "input":
                    found[node.attr] = adjoint.settled()
                for place, operand in enumerate(node.args):
                    if reaches[id(operand)] and not self._vanishes(node, operand):
                        parts[id(operand)] += self._passed(node, place, adjoint)
        return found

    def _passed(self, node: Expr, place: int, adjoint: Adjoint) -> list[Adjoint]:
        """What a node's adjoint gives one of its operands."""
        operand, rule, kind = node.args[place], rule_of(node, place), OPS[node.op].kind
        if "ids" in OPS[node.op].roles and any(a.shape.leading for a in node.args):
            raise LeadingSum
        if isinstance(rule, str):
            raise NoDerivative(
                f"{node.where}: {self.graph.name} has no derivative by {operand.op if operand.op != 'input' else operand.attr} "
                f"through {node.op}: {rule}; give one by @{self.graph.name}.gradient, or pass that tensor detached"
            )
        if rule is None:
            return []
        if node.op in ("amax", "amin"):
            self._compared.add(id(node))
        if node.op == "where":
            adjoint = adjoint.under(_chosen(node, place))
        if kind != "pointwise" or operand.shape != node.shape:
            adjoint = Adjoint(adjoint.settled())
        if kind == "reduction" and node.attr is None and operand.shape.leading:
            raise LeadingSum
        if kind not in ("pointwise", "reduction"):
            adjoint = Adjoint(spread(adjoint.value, node.shape))
        value = rule(node, adjoint.value)
        if value is None:
            return []
        if value.op == "mul" and value.args[0].op == "div":
            # A quotient of the forward pass is used again: softmax's gradient is of its result.
            (above, below), factor = value.args[0].args, value.args[1]
            known = next((n for n in self.nodes if n.op == "div" and n.args[0] is factor and n.args[1] is below), None)
            value = value if known is None else above * known
        if kind == "pointwise":
            summed = self._summed_to(value, node.shape, operand.shape)
        elif node.op in PRODUCTS:
            whole = Shape((*node.shape.dims[:-2], *operand.shape.dims[-2:]), node.shape.leading)
            summed = self._summed_to(value, whole if node.op == "matmul" else operand.shape, operand.shape)
        else:
            summed = value
        return [] if summed is None else [Adjoint(summed, adjoint.holds)]

    def _summed_to(self, g: Expr, whole: Shape, target: Shape) -> Expr | None:
        """An adjoint of a value of shape `whole` for an operand of shape `target` that was broadcast to it; None for 0.

        `g` itself may have size 1 where it is the same along an axis.
        """
        if whole == target:
            return g
        if whole.leading and not target.leading:
            raise LeadingSum
        rank = len(whole.dims)
        padded = (1,) * (rank - len(target.dims)) + target.dims
        axes = [a - rank for a in range(rank) if padded[a] == 1 and whole.dims[a] != 1]
        if not axes:
            return g
        own = (1,) * (rank - len(g.shape.dims)) + g.shape.dims
        along = [a for a in axes if own[a] != 1]
        repeats = repeats_along(whole, [a for a in axes if own[a] == 1], g)
        total: Expr | None = g
        between = along != list(range(along[0], along[-1] + 1)) if along else False
        for group in [(a,) for a in reversed(along)] if self.nested and between else [tuple(along)] if along else []:
            total = None if total is None else total_of(total, group, self.products)
        return total if total is None or repeats is None else total * repeats

    def _reaching(self, names: Collection[str]) -> dict[int, bool]:
        """Of each node whether its value moves with one of these inputs."""
        found: dict[int, bool] = {}
        for node in self.nodes:
            if node.op == "input":
                found[id(node)] = node.attr in names
            else:
                flows = [found[id(a)] and rule_of(node, i) is not None for i, a in enumerate(node.args)]
                found[id(node)] = node.dtype.is_float and any(flows)
        return found

    def _vanishes(self, node: Expr, operand: Expr) -> bool:
        """Whether all that leads from an extreme through `node` to the results does not depend on it."""
        return operand.op in _EXTREMES and id(node) not in self._seen(operand)

    def _seen(self, extreme: Expr) -> set[int]:
        """The nodes that are found from the results without passing one that does not depend on the extreme."""
        if id(extreme) not in self._visible:
            ways = moves(self.nodes, extreme)
            seen: set[int] = set()
            stack = list(self._roots)
            while stack:
                node = stack.pop()
                if id(node) not in seen and ways[id(node)] != STILL:
                    seen.add(id(node))
                    stack.extend(node.args)
            self._visible[id(extreme)] = seen
        return self._visible[id(extreme)]

    def backward(self, given: tuple[int, ...], wanted: tuple[int, ...], lead: Lead) -> Backward:
        graph = self.graph
        found = self.adjoints(given, wanted)
        inputs = [graph.inputs[i] for i in wanted]
        results: list[tuple[TensorSpec, Expr]] = []
        gradients: list[int | Source | None] = []
        names = {name: k for k, name in self.gradients.items()}
        taken = names_of(graph) | set(names)
        for spec in inputs:
            node = found[spec.name]
            if node is None:
                gradients.append(None)
            elif node.op == "input" and node.attr in names and node.dtype is spec.dtype:
                gradients.append(Source("gradient", names[node.attr]))
            else:
                name = fresh(f"grad_{spec.name}", taken)
                taken.add(name)
                gradients.append(len(results))
                results.append((_declared(node, replace(spec, name=name)), node))
        if not results:
            return Backward(None, (), tuple(gradients), lead)
        made = self._graph(results, names)
        sources = [_source(graph, names, spec.name) for spec in made.inputs]
        return Backward(made, tuple(sources), tuple(gradients), lead)

    def _graph(self, results: Sequence[tuple[TensorSpec, Expr]], gradients: Collection[str]) -> Graph:
        """The graph of gradients, with inputs for outputs of the forward graph where their values are wanted."""
        graph = self.graph
        roots = tuple(node for _, node in results)
        made: dict[int, Expr] = {}
        again = self._found_again()
        for node in walk(roots):
            spec = None if id(node) in again else self.outputs.get(id(node))
            if spec is not None:
                made[id(node)] = Expr("input", (), spec.dtype, spec.shape, spec.name, node.where)
            else:
                made[id(node)] = with_arguments(node, tuple(made[id(a)] for a in node.args))
        final = tuple(made[id(root)] for root in roots)
        whole = Graph(f"{graph.name}_grad", (), graph.scalars, tuple(s for s, _ in results), final, graph.where)
        final = whole.merged.results
        nodes = walk(final)
        leaves = {n.attr: TensorSpec(n.attr, n.dtype, n.shape) for n in nodes if n.op == "input"}
        read = tuple(leaves.values())
        for spec, node in zip(whole.outputs, final):  # each may become a launch of its own
            leaves |= {told.name: told for told in telling(walk((node,)), (*read, spec), graph.inputs)}
        order = [*gradients, *(s.name for s in graph.inputs), *(s.name for s in graph.outputs)]
        inputs = tuple(leaves[name] for name in dict.fromkeys(order) if name in leaves)
        numbers = {n.attr for n in nodes if n.op == "scalar"}
        scalars = tuple(s for s in graph.scalars if s.name in numbers)
        return replace(whole, inputs=inputs, scalars=scalars, results=final)

    @functools.cached_property
    def outputs(self) -> dict[int, TensorSpec]:
        """The results that stand for the values they were made of, by node."""
        found: dict[int, TensorSpec] = {}
        for spec, node in zip(self.graph.outputs, self.graph.results):
            if node.op not in LEAVES and spec.dtype.bits >= _NARROW and spec.dtype.is_float:
                found.setdefault(id(node), replace(spec, shape=node.shape))
        return found

    def _found_again(self, kept: Collection[int] = ()) -> set[int]:
        """Extremes that no kept value stands for: that, or what adjoints compare it with, is rounded, so that none is equal.

        `kept`: nodes that are no results yet, whose values will be there as they are.
        """
        results = list(zip(self.graph.outputs, self.graph.results))
        whole = {*kept, *(id(node) for spec, node in results if spec.dtype is node.dtype)}
        rounded = {
            id(node) for spec, node in results if spec.dtype.bits < node.dtype.bits and not _is_exact(node, spec.dtype)
        }
        rounded |= {id(n) for n in self.nodes if n.op in PRODUCTS and n.args[0].dtype.bits < n.dtype.bits}
        moved: dict[int, bool] = {}  # by node, whether its value, computed again, may be another
        found: set[int] = set()
        for node in self.nodes:
            under = any(moved[id(a)] for a in node.args)
            moved[id(node)] = id(node) in rounded or (under and id(node) not in whole)
            if id(node) in self._compared and (under or id(node) in rounded):
                found.add(id(node))
        return found

    def kept(self, narrow: bool) -> list[int]:
        """The nodes, by place, that a derivative by all inputs wants kept beside inputs and results: see the module.

        `narrow`: only those that have fewer axes than the widest value.
        """
        place = {id(node): i for i, node in enumerate(self.nodes)}
        derived = {id(n) for n in self.nodes if any(m.op in CONTRACTIONS for m in walk((n,)))}
        widest = max(_axes(n) for n in self.nodes)
        found: list[int] = []
        stack = [node for node in self.adjoints(*_all(self.graph)).values() if node is not None]
        rounded = {id(n) for n in self.nodes if n.op == "cast" and n.dtype.bits < n.args[0].dtype.bits}
        again = self._found_again([] if narrow else derived & rounded)
        seen = {*self.outputs} - again
        while stack:
            node = stack.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            wide = not narrow and (node.op in PRODUCTS or id(node) in rounded)
            if id(node) in derived - again and node.dtype.is_float and (wide or _axes(node) < widest):
                found.append(place[id(node)])
            else:
                stack.extend(node.args)
        return sorted(found)


def _is_exact(node: Expr, dtype: DType) -> bool:
    """Whether a value is surely one of the dtype, as those of an operand in it are."""
    if node.op == "const":
        return bool(node.attr in (0, math.inf, -math.inf))
    if node.op in ("input", "cast"):
        return node.dtype is dtype
    chosen = OPS[node.op].exactness in ("moved", "chosen") and node.op not in LEAVES
    return chosen and all(_is_exact(x, dtype) for x in node.args if x.dtype.is_float)


def _axes(node: Expr) -> int:
    return sum(d != 1 for d in node.shape.dims) + node.shape.leading


def _source(graph: Graph, gradients: dict[str, int], name: str) -> Source:
    if name in gradients:
        return Source("gradient", gradients[name])
    inputs = [spec.name for spec in graph.inputs]
    if name in inputs:
        return Source("input", inputs.index(name))
    return Source("output", [spec.name for spec in graph.outputs].index(name))


def _declared(node: Expr, spec: TensorSpec) -> TensorSpec:
    """A gradient as it is made: in the input's shape, or in its node's, where that has other axes of size 1."""
    axes, rank = left_out(node, spec), len(node.shape.dims)
    kept = tuple(d for a, d in enumerate(node.shape.dims) if a - rank not in axes)
    inside = walk((node,))
    told = {name for d in node.shape.dims if isinstance(d, SizeExpr) for name in symbols_of(d)}
    told |= {d.name for n in inside if n.op == "input" for d in n.shape.dims if isinstance(d, Dim)}
    sizes = {n.attr.name for n in inside if n.op == "size"}
    # Sums by index are made in the shape that they have.
    fits = spec.shape == Shape(kept, node.shape.leading) and not (axes and any(n.op == "scatter_add" for n in inside))
    return spec if fits or not sizes <= told else replace(spec, shape=node.shape)


def _chosen(node: Expr, place: int) -> Expr:
    """Where a `where` takes this operand. Of relu, written so, where its value is above 0, or NaN."""
    condition, a, b = node.args
    zero = a.op == "const" and a.attr == 0
    if place == 2 and zero and condition.op in ("lt", "le") and condition.args[0] is b:
        limit = condition.args[1]
        if limit.op == "const" and limit.attr == 0:
            return ~(node <= 0.0)
    return condition if place == 1 else ~condition


# What is kept.


@functools.lru_cache(maxsize=4096)
def training(graph: Graph) -> Graph:
    """The graph with more outputs, behind its own: what its derivative wants kept. Itself where that is nothing.

    Products and what is rounded are not kept where that would cost the forward pass a launch, and numbers of rows neither where
    these alone would.
    """
    try:
        sums = _sums_over_leading(graph, *_all(graph))
        whole = _Reverse(closed(graph)) if sums else _Reverse(graph)
        choices = [_with_kept(graph, whole.kept(narrow)) for narrow in (False, True)]
    except NoDerivative:
        return graph
    return next((made for made in choices if launch_count(made) <= launch_count(graph)), graph)


def _with_kept(graph: Graph, kept: Sequence[int]) -> Graph:
    """The graph with these nodes, by place, as further outputs. Itself where there are none."""
    if not kept:
        return graph
    own = _Reverse(graph)
    taken = names_of(graph)
    outputs, results = list(graph.outputs), list(own.graph.results)
    for place in kept:  # closing a graph leaves its nodes' order
        node = own.nodes[place]
        name = fresh(node.op, taken)
        taken.add(name)
        narrow = node.op in PRODUCTS and node.args[0].dtype.bits < node.dtype.bits
        outputs.append(TensorSpec(name, node.args[0].dtype if narrow else node.dtype, node.shape))
        results.append(node)
    return replace(graph, name=f"{graph.name}{_KEEPING}", outputs=tuple(outputs), results=tuple(results))


def backward_graphs(graph: Graph, wanted: Collection[str] = ()) -> tuple[Graph, Graph | None]:
    """What a call runs whose gradients are wanted, and the graph of the gradients of these inputs, or of all.

    None where the gradients are those of the results as they are. Raises NoDerivative, or ArgumentError for an unknown name.
    """
    names = [spec.name for spec in graph.inputs]
    for name in wanted:
        if name not in names:
            raise ArgumentError(f"{graph.name} has no tensor {name!r}; expected some of {', '.join(names)}")
    floats, inputs = _all(graph)
    whole = training(graph)
    return whole, backward(whole, floats, tuple(i for i in inputs if not wanted or names[i] in wanted)).graph


def launch_count(graph: Graph) -> float:
    """How many launches compute a graph; infinitely many where no family serves it."""
    cut = partition(graph)
    return len(cut.graphs) if cut is not None else 1 if has_kernel(graph) else math.inf

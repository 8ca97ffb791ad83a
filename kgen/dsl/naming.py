"""Problems and calls as users name them: sizes by dimension, dtypes by name or torch's own, layouts and numbers by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kgen.dsl.errors import ArgumentError
from kgen.dsl.operator import Graph, Operator
from kgen.dsl.problem import Problem, Sizes
from kgen.dsl.types import DType, dtype, from_torch


def named_problem(
    definition: Operator,
    sizes: Sizes | None,
    leading: int | Sequence[int],
    dtypes: str | DType | Sequence[str | DType] | None,
    layouts: Mapping[str, str] | None,
    dims: Mapping[str, int],
) -> Problem:
    """The problem of dense, aligned operands, as `KernelOperator.problem` takes it: sizes in a dictionary, in `dims`, or both."""
    for what, value in (("sizes", sizes), ("layouts", layouts)):
        if value is not None and not isinstance(value, Mapping):
            raise ArgumentError(
                f"{definition.name}: {what} is a {type(value).__name__}; expected a dictionary by "
                f"{'dimension, or sizes by name: M=64' if what == 'sizes' else 'operand'}"
            )
    graph = named_graph(definition, dtypes)
    given: dict[str, Any] = {**(sizes or {}), **dims}
    if not isinstance(leading, tuple) or leading:
        given["..."] = leading
    names = [spec.name for spec in (*graph.inputs, *graph.outputs)]
    for name, layout in (layouts or {}).items():
        if name not in names:
            raise ArgumentError(f"{graph.name} has no operand {name!r}; expected one of {', '.join(names)}")
        if layout not in ("row", "col"):
            raise ArgumentError(f"{graph.name}: layout {layout!r} of {name}; expected row or col")
    return Problem.dense(graph, given, layouts)


def named_graph(definition: Operator, dtypes: str | DType | Sequence[str | DType] | None) -> Graph:
    """The graph whose distinct dtypes, in the order of its operands, are these, or begin with them; the first without any."""
    if dtypes is None:
        return definition.graphs[0]
    given = dtypes.replace(",", " ").split() if isinstance(dtypes, str) else dtypes
    named: list[Any] = [from_torch(t) for t in (given if isinstance(given, Sequence) else (given,))]
    wanted = [t if isinstance(t, DType) else dtype(t) for t in named]
    graphs = definition.graphs
    lists = [list(dict.fromkeys(spec.dtype for spec in (*g.inputs, *g.outputs))) for g in graphs]
    fitting = [g for g, found in zip(graphs, lists) if found == wanted]
    fitting += [g for g, found in zip(graphs, lists) if found[: len(wanted)] == wanted]
    if fitting:
        return fitting[0]
    choices = [",".join(t.name for t in found) for found in lists]
    told = ",".join(t.name for t in wanted)
    raise ArgumentError(
        f"{definition.name} is not defined for {told or 'no dtype'}; expected one of {'; '.join(choices)}"
    )


def named_arguments(
    definition: Operator, given: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The tensors and the numbers of a call: numbers may be given by position after the tensors, tensors by name."""
    names = [*definition.tensors, *(s.name for s in definition.scalars)]
    if len(given) > len(names):
        raise ArgumentError(f"{definition.name} takes {len(names)} arguments ({', '.join(names)}), got {len(given)}")
    values = dict(zip(names, given))
    for name, value in named.items():
        if name in values:
            raise ArgumentError(f"{definition.name} got {name} twice, by position and by name")
        values[name] = value
    missing = [name for name in definition.tensors if name not in values]
    if missing:
        raise ArgumentError(
            f"{definition.name} takes {len(definition.tensors)} tensors ({', '.join(definition.tensors)}); "
            f"missing {', '.join(missing)}"
        )
    return tuple(values.pop(name) for name in definition.tensors), values

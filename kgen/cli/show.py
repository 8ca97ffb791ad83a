"""kgen show: an operator's signature, its mathematics, and the best configs known for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kgen.cli import options
from kgen.cli.output import plain, print_json, print_table, trial_json, trial_time
from kgen.dsl.ops import LEAVES

if TYPE_CHECKING:
    from kgen.dsl.expr import Expr
    from kgen.dsl.operator import Graph
    from kgen.tuning_db import BestRecord


def run(op: options.Operator, db: options.Database = None, json: options.Json = False) -> None:
    """Show an operator: its types, its graph, its best configs.

    Also how its shapes are written, and its suites."""
    from kgen.cli.problems import find_operator, shape_text
    from kgen.dsl.family import family_of, suites_of

    operator = find_operator(op)
    definition = operator.definition
    graphs = definition.graphs
    family = family_of(graphs[0])
    best = _best(graphs, db)
    facts: dict[str, Any] = {
        "operator": definition.name,
        "family": family.name,
        "schedules": [s.__name__ for s in family.schedules],
        "launches": [launch.__name__ for launch in operator.launches],
        "space": str(operator.restriction),
        "techniques": {s.__name__: dict(s.techniques) for s in family.schedules},
        "doc": " ".join((definition.__doc__ or "").split()),
        "where": str(graphs[0].where),
        "shape": "x".join(family.dims(graphs[0])),
        "signatures": [_signature(graph) for graph in graphs],
        "graph": _lines(graphs[0]),
        "suites": {name: [shape_text(s) for s in sizes] for name, sizes in suites_of(definition).items()},
    }
    if json:
        print_json(
            {**facts, "best": [{"gpu": plain(r.gpu), "problem": r.problem.text, **trial_json(r.trial)} for r in best]}
        )
        return
    print(f"{facts['operator']}: {facts['doc']}")
    served = facts["schedules"] or facts["launches"]
    print(f"family {family.name} ({', '.join(served)}); a shape is written {facts['shape']}\n")
    print("\n".join(facts["signatures"]) + "\n")
    print("\n".join(facts["graph"]) + "\n")
    for name, sizes in facts["suites"].items():
        print(f"suite {name}: {'  '.join(sizes)}")
    for schedule, techniques in facts["techniques"].items():
        print(f"techniques of {schedule}: {'; '.join(techniques)}")
    if facts["space"]:
        print(f"restricted to {facts['space']}")
    print("\nbest configs known:" if best else "\nno config is known yet; kgen tune finds one")
    if best:
        rows = [(r.gpu.name, r.problem.text, trial_time(r.trial), r.trial.config.text) for r in best]
        print_table(("GPU", "problem", "time", "config"), rows)


def _best(graphs: tuple[Graph, ...], url: str | None) -> list[BestRecord]:
    from kgen.cli.machine import reading

    with reading(url) as store:
        if store is None:
            return []
        gpus = store.statistics().gpus
        return [record for gpu in gpus for graph in graphs for record in store.best_of_operator(graph.digest, gpu)]


def _signature(graph: Graph) -> str:
    inputs = [f"{s.name}: {s.dtype}{s.shape}" for s in graph.inputs]
    inputs += [f"{s.name}: {s.dtype}" + ("" if s.default is None else f" = {s.default}") for s in graph.scalars]
    outputs = [f"{s.dtype}{s.shape}" for s in graph.outputs]
    return f"{graph.name}({', '.join(inputs)}) -> {', '.join(outputs)}"


def _lines(graph: Graph) -> list[str]:
    """The graph as assignments, one node a line; inputs, numbers and constants stand where they are used."""
    names: dict[int, str] = {}
    lines: list[str] = []
    for node in graph.nodes:
        if node.op in LEAVES:
            names[id(node)] = str(node.attr)
            continue
        names[id(node)] = f"%{len(lines)}"
        lines.append(f"%{len(lines)} = {node.op}{_attribute(node)}({', '.join(names[id(a)] for a in node.args)})"
                     f"  # {node.dtype}{node.shape}")  # fmt: skip
    lines += [
        f"{spec.name} = {names[id(result)]}  # {spec.dtype}" for spec, result in zip(graph.outputs, graph.results)
    ]
    return lines


def _attribute(node: Expr) -> str:
    return "" if node.attr is None else f"<{node.attr}>"

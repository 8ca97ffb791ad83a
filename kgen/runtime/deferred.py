"""Problems that are first met while a CUDA graph is captured: noted in the database, and tuned by `kgen tune --deferred`.

A note is data: the operator's name, or the file and name of one of the user's, the digest of the graph, and the operands as
text. A gradient is noted by the operator that it is derived of, and found again by its digest.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kgen import ops
from kgen.codegen.settings import database
from kgen.dsl.errors import DatabaseError, KgenError
from kgen.dsl.family import family_of
from kgen.dsl.gradient import NoDerivative, backward, differentiable, training
from kgen.dsl.operator import Graph, Operator
from kgen.dsl.problem import Problem, read_operand
from kgen.dsl.target import Target
from kgen.runtime import dispatch
from kgen.tuner import records
from kgen.tuning_db import DeferredRecord, ProblemKey

if TYPE_CHECKING:
    from kgen.runtime.plan import Plan
    from kgen.runtime.registry import Launchable


def note(operator: Launchable, plan: Plan, target: Target) -> None:
    """Notes a plan's problem for tuning later, where a launch has no config of its own and the operator can be found again.

    Of operators that are restricted to some configs nothing is noted: a note does not hold the restriction.

    A database that cannot be written costs one warning and no call.
    """
    place = "" if operator.pinned or operator.restriction else place_of(operator)
    if not place or all(choice.how in ("given", "tuned", "shipped") for choice in plan.choices):
        return
    problem = plan.problem
    key = ProblemKey(
        problem.graph.name, problem.graph.digest, problem.key, family_of(problem.graph).name, problem.sizes
    )
    from kgen.tuning_db import open_store  # SQLAlchemy, which a call that is not noted does without

    try:
        with open_store(database()) as store:
            store.defer(key, records.gpu_facts(target), place)
    except DatabaseError as error:
        dispatch.warn_once(str(error), f"{error}; its tuning is not noted")


def place_of(operator: Launchable) -> str:
    """A shipped operator's name, or `file.py:name` of one of the user's; "" where there is no such place."""
    definition = operator.root
    shipped = ops.shipped(definition.name)
    if shipped is not None and shipped.graphs == definition.graphs:
        return definition.name
    function = inspect.unwrap(definition.function)
    path = inspect.getsourcefile(function) or ""
    outer = "." in function.__qualname__
    return "" if outer or not os.path.isfile(path) else f"{os.path.abspath(path)}:{definition.name}"


def problem_of(record: DeferredRecord, operator: Operator) -> Problem:
    """The problem that was noted, of the operator that is at its place. Raises KgenError where it is another one now."""
    graph = next((g for g in _graphs(operator) if g.digest == record.problem.digest), None)
    if graph is None:
        raise KgenError(
            f"{record.place} has no {record.problem.operator} any more as it was noted; it is noted anew where it is "
            f"called in a capture again"
        )
    return Problem.bind(graph, [read_operand(text) for text in record.problem.text.split()])


def _graphs(operator: Operator) -> Iterator[Graph]:
    """The graphs of an operator, and what training runs of it: all gradients first, then those of some inputs and results."""
    yield from operator.graphs
    for whole in map(training, operator.graphs):
        yield whole
        results = tuple(k for k, spec in enumerate(whole.outputs) if spec.dtype.is_float)
        for given, wanted in itertools.product(_subsets(results), _subsets(differentiable(whole))):
            with contextlib.suppress(NoDerivative):
                made = backward(whole, given, wanted).graph
                if made is not None:
                    yield made


def _subsets(places: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All but the empty one, the largest first."""
    for count in range(len(places), 0, -1):
        yield from itertools.combinations(places, count)

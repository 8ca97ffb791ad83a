"""Every shipped operator, called on CPU tensors, where an axis has one element or none, or is expanded (stride 0)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
import torch
from compiled import compile_calls

import kgen
from kgen.dsl.errors import ArgumentError, ConfigError
from kgen.dsl.family import family_of
from kgen.dsl.operator import Graph
from kgen.dsl.problem import Operand, Problem, dense_strides
from kgen.dsl.size import evaluate
from kgen.numerics.operands import make_operands, scalar_values
from kgen.ops import operators
from kgen.tuner.verify import Gate

#: Sizes that operators ask for; else they are 4, 5 and 6 in turn.
SIZES = {"D": 6, "P": 3}
#: What TMA alone brings has rows of whole 16 bytes: others are refused (`kgen.attention` copies them).
WHOLE_ROWS = {"attention_causal_fp8_lse": {"D": 16, "E": 16, "N": 16}}
LEADING = (2, 3)


class Call:
    """An operator called on tensors, as the gate runs a kernel."""

    emulated = True

    def __init__(self, name: str) -> None:
        self.operator = getattr(kgen, name)

    def run(self, tensors: Mapping[str, torch.Tensor], scalars: Mapping[str, float]) -> None:
        definition = self.operator.definition
        inputs = [tensors[name] for name in definition.tensors]
        outputs = tuple(tensors[spec.name] for spec in definition.graphs[0].outputs)
        self.operator(*inputs, out=outputs, **scalars)

    def vary(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


def problem_of(
    graph: Graph, sizes: Mapping[str, int], leading: tuple[int, ...], expanded: int | None = None
) -> Problem:
    """Dense operands of these sizes; where `expanded`, inputs have stride 0 along that axis, each along one after the last's."""
    made = []
    for number, spec in enumerate((*graph.inputs, *graph.outputs)):
        shape = (*(leading if spec.shape.leading else ()), *(evaluate(d, sizes) for d in spec.shape.dims))
        held = list(shape)
        if expanded is not None and shape and number < len(graph.inputs):
            held[(expanded + number) % len(shape)] = 1
        strides = [0 if n != h else s for n, h, s in zip(shape, held, dense_strides(held))]
        made.append(Operand(spec.name, spec.dtype, shape, tuple(strides)))
    return Problem.bind(graph, made)


def cases(graph: Graph, n: int) -> Iterator[tuple[str, dict[str, int], tuple[int, ...], int | None]]:
    """Sizes with each dimension in turn, and all of them, of size n; for n = 1 inputs expanded too, along each of their axes."""
    leading = LEADING if any(s.shape.leading for s in (*graph.inputs, *graph.outputs)) else ()
    asked = {**SIZES, **WHOLE_ROWS.get(graph.name, {})}
    sizes = {name: asked.get(name, 4 + i % 3) for i, name in enumerate(graph.dims)}
    for name in graph.dims:
        yield f"{name}={n}", {**sizes, name: n}, leading, None
    if leading:
        yield f"...={n}", sizes, (n,), None
    if len(graph.dims) > 1 or leading:
        yield f"all={n}", dict.fromkeys(graph.dims, n), leading and (n,), None
    if n == 1:
        for axis in range(max(len(operand.shape) for operand in problem_of(graph, sizes, leading).inputs)):
            yield f"expanded from {axis}", sizes, leading, axis


def _whole_rows(problem: Problem) -> bool:
    """Whether TMA brings q, k and v: rows of several elements lie densely, 16 bytes or a multiple apart; or there is no query."""
    matrices = [o for o in problem.inputs if o.dtype.bytes == 1]
    apart = all(o.shape[-2] <= 1 or o.strides[-2] > 0 == o.strides[-2] % 16 for o in matrices)
    several = all(o.shape[-1] > 1 and o.strides[-1] == 1 for o in matrices) and matrices[2].shape[-2] > 1
    return 0 in matrices[0].shape[:-1] or (apart and several)


#: What asks for a size above 0, for an even one, or for dense offsets.
ASKING = {"amax", "amin", "argmax", "exchange", "grouped_matmul"}


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("name", operators())
def test_axes_of_no_element_of_one_and_expanded_ones(name: str, n: int) -> None:
    graph, wrong = operators()[name].graphs[0], []
    asks = any(node.op in ASKING for node in graph.nodes)
    problems: dict[str, Problem] = {}
    for label, *what in cases(graph, n):
        try:
            problem = problem_of(graph, *what)
            family_of(graph).normalise(problem)
        except ArgumentError as error:
            if not (asks and "expected" in str(error)):
                wrong.append(f"{label}: refused: {error}")
            continue
        if name in WHOLE_ROWS and not _whole_rows(problem):
            with pytest.raises(ConfigError, match="no config serves"), kgen.emulate():
                Call(name).run(make_operands(problem), scalar_values(graph))
            continue
        problems[label] = problem
    compile_calls(problems.values())
    for label, problem in problems.items():
        if problem.empty:
            Call(name).run(make_operands(problem), scalar_values(graph))
            continue
        with kgen.emulate():
            gate = Gate(problem, special=False)
            gate.comparable = True  # the mean of nothing is NaN
            verdict = gate.check(Call(name), repeats=1)  # type: ignore[arg-type]
        if not verdict.ok:
            wrong.append(f"{label}: {verdict.evidence}")
    assert not wrong, "\n".join(wrong)

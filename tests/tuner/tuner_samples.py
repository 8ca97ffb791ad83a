"""Problems, and kernels that are wrong in one way each, for the tests of the tuner."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kgen.codegen.source import Integer, Launch, Pointer, Source
from kgen.dsl.errors import KgenError
from kgen.dsl.family import family_of, normalised
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.program import program_of
from kgen.dsl.size import Dim, ceil_div, dims
from kgen.dsl.target import sm
from kgen.dsl.types import f32
from kgen.ops import operator, operators


def problem_of(name: str, sizes: Mapping[str, Any], layouts: Mapping[str, str] | None = None, **dtypes: Any) -> Problem:
    """A normalised problem of a shipped operator, or of one that is derived of it."""
    graph = operator(name).graph(dtypes)
    return family_of(graph).normalise(Problem.dense(graph, sizes, layouts))


def launches(
    name: str, count: int, size: Callable[[random.Random, bool], int], dtypes: int | None = None
) -> Iterator[NormalProblem]:
    """Launches of an operator, of its first `dtypes` or of all. `size` draws a size, and is told of the first, as a rule M."""
    drawn = random.Random(name)
    for graph in operators()[name].graphs[:dtypes]:
        for _ in range(count):
            sizes: dict[str, Any] = {dim: size(drawn, place == 0) for place, dim in enumerate(graph.dims)}
            if any(spec.shape.leading for spec in graph.inputs):
                sizes["..."] = (drawn.choice((1, 4, 33)),)
            try:
                yield from map(normalised, program_of(Problem.dense(graph, sizes)).launches)
            except KgenError:  # sizes that the operator does not take
                continue


N = Dim("N")


def double_and_add(x: Tensor[f32, N], y: Tensor[f32, N]) -> Tensor[f32, N]:
    return 2.0 * x + y


OPERATOR = Operator(double_and_add)
SIZE = 300


def sample_problem(size: int = SIZE) -> Problem:
    """out = 2 x + y over one dimension, dense; not normalised, so that its operands keep their names and sizes."""
    return Problem.dense(OPERATOR.graphs[0], {"N": size})


BODIES = {
    "right": "out[i] = 2.0f * x[i] + y[i];",
    "wrong everywhere": "out[i] = x[i] + y[i];",
    "wrong at the end": "out[i] = i == N - 1 ? 0.0f : 2.0f * x[i] + y[i];",
    "coarse": "out[i] = (2.0f * x[i] + y[i]) * 1.0001f;",
    "one not written": "if (i != 17) out[i] = 2.0f * x[i] + y[i];",
    "input changed": "const float value = 2.0f * x[i] + y[i]; if (i == 5) const_cast<float*>(y)[i] = 3.0f; out[i] = value;",
    "NaN": "out[i] = i == 9 ? __int_as_float(0x7fffffff) : 2.0f * x[i] + y[i];",
}


def source_of(body: str) -> Source:
    """A kernel with one thread an element and this statement for element i."""
    text = (
        'extern "C" __global__ void __launch_bounds__(128) sample(const float* x, const float* y, float* out, int N) {\n'
        f"  const int i = blockIdx.x * 128 + threadIdx.x;\n  if (i < N) {{ {body} }}\n}}\n"
    )
    params = (
        Pointer("x", f32, "x", "in"),
        Pointer("y", f32, "y", "in"),
        Pointer("out", f32, "out", "out"),
        Integer("N", Dim("N")),
    )
    return Source("", (), "", text, "sample", params, Launch((ceil_div(Dim("N"), 128), 1, 1), (128, 1, 1)), sm(75))


M, K = dims("M K")

"""scatter_add: every value of every field over ragged shapes, layouts, and kinds of sums."""

import pytest
import torch
from cases import TARGET
from suite import names, run_and_compile

from kgen import emulator
from kgen.dsl.family import family_of
from kgen.dsl.indexing import scatter_add
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims
from kgen.dsl.types import i32, i64
from kgen.ops.scatter import ScatterAdd, ScatterBins
from kgen.ops.scatter.scatters import histogram
from kgen.tuner.execute import Runner
from kgen.tuner.ragged import symbols

N, K = dims("N K")

NAMES = [*names("ScatterAdd"), *names("ScatterBins"), *names("ScatterRows")]


@pytest.mark.parametrize("name", NAMES)
def test_cases(name: str) -> None:
    run_and_compile(name)


@pytest.mark.parametrize("schedule", [ScatterAdd, ScatterBins])
def test_counts_beyond_32_bits_are_right(schedule: type[Schedule]) -> None:
    """Of so many ids that one bin may have 2^31: made here of few that count 2^30 each."""

    @Operator
    def counted(x: Tensor[i32, N]) -> Tensor[i64, K]:
        return scatter_add(K, x, 2**30)

    problem = family_of(counted.graphs[0]).normalise(Problem.dense(counted.graphs[0], {"N": 301, "K": 5}))
    config = schedule.default(problem, TARGET)
    source = config.source(problem)
    x, out = torch.arange(301, dtype=torch.int32) % 6, torch.empty(5, dtype=torch.int64)
    Runner(emulator.compile(source), source, symbols(config, problem, 2)).run({"x": x, "out": out}, {})
    assert out.tolist() == [count * 2**30 for count in (51, 50, 50, 50, 50)]
    many = family_of(histogram.graphs[3]).normalise(Problem.dense(histogram.graphs[3], {"...": (2**31,), "BINS": 5}))
    assert schedule.applies(many)
    assert "using Sum = long long;" in schedule.default(many, TARGET).source(many).body

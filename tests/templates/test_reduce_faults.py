"""What hand-written reductions get wrong: sums in narrow types, special values, the order of blocks, means far from zero."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from cases import TARGET
from launches import dense, launch, problem_of, runner

from kgen.codegen.source import Pointer
from kgen.dsl import functions as F
from kgen.dsl.errors import ConfigError
from kgen.dsl.family import family_of, has_kernel
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Operand, Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims
from kgen.dsl.types import bf16, e4m3, f16, f32, f64, i8, i32, i64
from kgen.gpu.target import resolve
from kgen.numerics.operands import make_operands, same_bits
from kgen.ops import operator
from kgen.ops.reduction import ChannelStats, ColumnStats, Reduce
from kgen.tuner.verify import Gate

B, C, M, N, S = dims("B C M N S")
H200 = resolve("H200")


def moments(x: Tensor[f32, ...]) -> tuple[Tensor[f32], Tensor[f32]]:
    mean = F.mean(x, None)
    return mean, F.mean((x - mean) * (x - mean), None)


def moments_of_sum(
    x: Tensor[f16, M, N], b: Tensor[f16, N]
) -> tuple[Tensor[f32], Tensor[f32], Tensor[f32], Tensor[f64]]:
    y = x + b
    mean = F.mean(y, None)
    variance = F.mean(F.pow(mean - y, 2), None)
    return mean, F.rsqrt(variance + 1e-5), F.amax(y, None), F.sum((y - mean) * (y - mean), None) / 7


def quotient(x: Tensor[bf16, M, N], y: Tensor[f32, M, N]) -> Tensor[f32]:
    """The cosine of two tensors."""
    return F.sum(x * y, None) * F.rsqrt(F.sum(x * x, None)) / F.sqrt(F.sum(y * y, None))


def one(
    name: str, dtype: Any, x: torch.Tensor, result: torch.dtype, fields: dict[str, Any] | None = None
) -> torch.Tensor:
    """What an operator of one tensor gives."""
    known = operator(name)
    graphs = [g for g in known.graphs if g.inputs[0].dtype is dtype]
    wanted = {
        torch.float32: f32,
        torch.float16: f16,
        torch.float64: f64,
        torch.int64: i64,
        torch.int32: i32,
        torch.int8: i8,
    }
    graph = next(g for g in graphs if g.outputs[0].dtype is wanted[result])
    out = torch.zeros((), dtype=result)
    launch(graph, [x, out], Reduce, fields)
    return out


# Accumulation.


def test_sums_of_halves_do_not_saturate() -> None:
    x = torch.ones(70001).half()
    assert one("reduce_sum", f16, x, torch.float32) == 70001
    assert one("reduce_sum", f16, x, torch.float16) == math.inf
    assert one("reduce_mean", f16, x, torch.float16) == 1
    assert one("reduce_sum", f16, torch.full((4099,), 60000.0).half(), torch.float32) == 4099 * 60000


def test_sums_of_integers_are_exact_in_64_bits() -> None:
    x = torch.full((131073,), -128, dtype=torch.int8)
    out = torch.zeros((), dtype=torch.int64)
    launch(operator("idot").graphs[0], [x, x, out], Reduce)
    assert out == 131073 * 16384
    assert one("reduce_isum", i8, x, torch.int64) == -128 * 131073
    assert one("reduce_isum", i32, torch.full((5,), 2**31 - 1, dtype=torch.int32), torch.int64) == 5 * (2**31 - 1)
    assert one("reduce_mean", i32, torch.full((7,), -(2**31), dtype=torch.int32), torch.float32) == -(2.0**31)


def test_bytes_are_summed_four_at_a_time_in_whole_vectors() -> None:
    problem = dense(operator("idot").graphs[0], {"...": (1000,)})
    config = Reduce.default(problem, TARGET)
    assert "__dp4a" in config.source(problem).body
    assert "__dp4a" not in config.replace(pack=1).source(problem).body


def test_long_sums_are_as_good_as_their_terms() -> None:
    # The sum of squares is 2^20 times the result: sums of f32 alone would lose it.
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1 << 16, generator=generator)
    x[1::2] = -x[::2] * (1 + 2.0**-10)
    got = one("reduce_sum", f32, x, torch.float32)
    assert abs(float(got) - float(x.double().sum())) < 1e-6 * float(x.double().norm())


# Special values.


@pytest.mark.parametrize("at", [0, 3, 1000, 4098])
def test_special_values(at: int) -> None:
    for value in (math.nan, math.inf, -math.inf):
        x = torch.linspace(-3, 3, 4099)
        x[at] = value
        for name in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min"):
            want = getattr(torch, name.removeprefix("reduce_").replace("max", "amax").replace("min", "amin"))(x)
            got = one(name, f32, x, torch.float32)
            same = got.isnan() if want.isnan() else got == want or (want.isfinite() and abs(got - want) < 1e-5)
            assert same, (name, value, got, want)
    x = torch.zeros(4099)
    x[at], x[at // 2 + 7] = math.inf, -math.inf
    assert one("reduce_sum", f32, x, torch.float32).isnan()


@pytest.mark.parametrize("pack", [1, 4])
def test_argmax_takes_the_first_of_the_largest(pack: int) -> None:
    fields = {"pack": pack, "threads": 32, "items": 2}

    def at(x: torch.Tensor) -> int:
        return int(one("reduce_argmax", f32, x, torch.int64, fields))

    x = torch.zeros(777)
    assert at(x) == 0
    x[[776, 500, 333]] = 2.0
    assert at(x) == 333
    x[[700, 400]] = math.nan
    assert at(x) == 400
    assert at(torch.full((99,), -math.inf)) == 0
    assert at(torch.full((99,), math.nan)) == 0
    down = torch.arange(1000.0).flip(0).reshape(10, 100).T
    assert at(down) == int(down.argmax())  # counted in the tensor's own order, not in that of its memory
    assert int(one("reduce_argmax", i8, torch.full((50,), -128, dtype=torch.int8), torch.int64)) == 0


def test_infinite_means_and_variances() -> None:
    x = torch.ones(5000)
    x[4321] = math.inf
    mean, variance = torch.zeros(()), torch.zeros(())
    launch(Operator(moments).graphs[0], [x, mean, variance], Reduce)
    assert mean == math.inf
    assert variance.isnan()
    huge = torch.full((5000,), 1e30)
    launch(Operator(moments).graphs[0], [huge, mean, variance], Reduce)
    assert abs(float(mean) / 1e30 - 1) < 1e-6
    assert not variance.isnan()


def test_nothing_to_sum() -> None:
    out = torch.full((), math.nan)
    graph = operator("reduce_sum").graph({"x": f32})
    launch(graph, [torch.empty(0), out], Reduce)
    assert out == 0
    launch(operator("reduce_mean").graph({"x": f32}), [torch.empty(3, 0), out], Reduce)
    assert out.isnan()
    columns = torch.full((5,), math.nan)
    launch(operator("column_sum").graph({"x": f32}), [torch.empty(0, 5), columns], ColumnStats, {"pack": 1})
    assert (columns == 0).all()


# Variances of means far from zero, and of data that does not begin near its mean.


@pytest.mark.parametrize("outlier", [False, True])
@pytest.mark.parametrize("schedule", [Reduce, ColumnStats, ChannelStats])
def test_variances_around_large_means(schedule: type[Schedule], outlier: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    x = 1e4 + torch.randn(9, 3, 1024, generator=generator)
    if outlier:
        x[0, :, :3] = 0
    if schedule is ColumnStats:
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    if schedule is Reduce:
        mean, variance = torch.zeros(()), torch.zeros(())
        launch(Operator(moments).graphs[0], [x, mean, variance], Reduce)
        exact = x.double().flatten()[None]
    else:
        mean, variance = torch.zeros(3), torch.zeros(3)
        launch(operator("batch_norm_stats").graph({"x": f32}), [x, mean, variance], schedule)
        exact = x.double().movedim(1, 0).reshape(3, -1)
    assert ((mean.double().reshape(-1) - exact.mean(1)).abs() < 1e-3).all()
    ratio = variance.double().reshape(-1) / exact.var(1, unbiased=False)
    # A mean of f32 is off by up to 2^-24 of 1e4, which is 6e-4 standard deviations: partial means err by that.
    assert ((ratio - 1).abs() < 5e-5).all(), ratio


# The gate of the tuner, where sums are rounded.


@pytest.mark.parametrize("definition", [moments, moments_of_sum, quotient])
def test_rounded_results_pass_the_gate(definition: Any) -> None:
    graph = Operator(definition).graphs[0]
    sizes = {"...": (4567,)} if not graph.dims else {"M": 37, "N": 129}
    problem = dense(graph, sizes)
    gate = Gate(problem)
    for fields in (
        {},
        {"threads": 32, "items": 1, "pack": 1, "blocks_per_sm": 16},
        {"items": 2, "threads": 512, "blocks_per_sm": 1},
    ):
        config = Reduce.default(problem, TARGET).replace(**fields)
        verdict = gate.check(runner(config, problem))
        assert verdict.ok, (config, verdict.evidence)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("batch_norm_stats", {"B": 5, "C": 19, "S": 49}),
        ("batch_norm_backward_sums", {"B": 3, "C": 8, "S": 64}),
        ("layer_norm_backward_weight", {"M": 131, "N": 72}),
        ("rms_norm_backward_weight", {"M": 70, "N": 33}),
        ("column_mean", {"...": (2,), "M": 33, "N": 40}),
    ],
)
@pytest.mark.parametrize("schedule", [ColumnStats, ChannelStats])
def test_shipped_column_operators_pass_the_gate(name: str, sizes: dict[str, Any], schedule: type[Schedule]) -> None:
    problem = dense(operator(name).graph({next(iter(operator(name).tensors)): f16}), sizes)
    gate = Gate(problem)
    smaller: dict[str, Any] = {"threads": 64, "items": 2, "blocks_per_sm": 16}
    for fields in ({}, smaller | ({"lanes": 1, "pack": 1} if schedule is ColumnStats else {"threads": 32})):
        config = schedule.default(problem, TARGET).replace(**fields)
        verdict = gate.check(runner(config, problem))
        assert verdict.ok, (config, verdict.evidence)


# Blocks.


def shared(kind: str) -> tuple[Problem, Schedule]:
    """A problem whose results are shared by several blocks."""
    if kind == "reduce":
        problem = dense(Operator(moments).graphs[0], {"...": (5001,)})
        return problem, Reduce(pack=1, items=2, threads=64, blocks_per_sm=8, load="default")
    if kind == "columns":
        problem = dense(operator("layer_norm_backward_weight").graph({"x": f16}), {"M": 300, "N": 48})
        return problem, ColumnStats(pack=2, items=2, threads=64, lanes=8, blocks_per_sm=16, load="default")
    problem = dense(operator("batch_norm_stats").graph({"x": f16}), {"B": 9, "C": 3, "S": 130})
    return problem, ChannelStats(pack=2, items=1, threads=32, blocks_per_sm=16, load="default")


@pytest.mark.parametrize("kind", ["reduce", "columns", "channels"])
def test_results_do_not_depend_on_the_order_of_blocks(kind: str) -> None:
    problem, config = shared(kind)
    tensors = make_operands(problem, "normal", 2)
    first: dict[str, torch.Tensor] = {}
    for seed in range(4):
        launcher = runner(config, problem, seed=seed, threads=2)
        assert max(launcher.bound.grid[:2]) > 4
        launcher.run(tensors, {})
        for o in problem.outputs:
            assert same_bits(tensors[o.name], first.setdefault(o.name, tensors[o.name].clone()))


@pytest.mark.parametrize(("rows", "columns", "pack"), [(250, 20, 1), (37, 20, 4), (131, 33, 1), (700, 100, 4)])
def test_columns_that_many_blocks_share(rows: int, columns: int, pack: int) -> None:
    x, out = torch.randint(-9, 9, (rows, columns)).float(), torch.empty(columns)
    fields = {"pack": pack, "items": 1, "threads": 64, "lanes": 32, "blocks_per_sm": 16, "load": "default"}
    launch(operator("column_sum").graph({"x": f32}), [x, out], ColumnStats, fields)
    assert torch.equal(out, x.sum(0))


@pytest.mark.parametrize("elements", [1000, 8178, 16000])
def test_one_block_does_without_others_where_it_may(elements: int) -> None:
    config = Reduce.default(problem := huge("norm", f32, n=elements), H200)
    assert config.source(problem).bind({**config.symbols(problem), "SM_COUNT": 132}).grid == (1, 1, 1)


def test_threads_of_few_rows_have_few_in_flight() -> None:
    graph = operator("column_sum").graph({"x": f32})
    for rows in (2, 5):
        assert ColumnStats.default(dense(graph, {"M": rows, "N": 153523}), H200).items <= 2 * rows


def test_a_row_by_itself_has_threads_side_by_side() -> None:
    problem = dense(operator("column_max").graph({"x": f16}), {"M": 1, "N": 11691})
    assert ColumnStats.worth_searching(problem, H200)
    assert not ChannelStats.worth_searching(problem, H200)


@pytest.mark.parametrize("kind", ["reduce", "columns", "channels"])
def test_workspaces_are_left_as_they_were_found(kind: str) -> None:
    problem, config = shared(kind)
    tensors = make_operands(problem, "normal", 1)
    launcher = runner(config, problem)
    access = {i: p.access for i, p in enumerate(launcher.source.params) if isinstance(p, Pointer)}
    first: dict[str, torch.Tensor] = {}
    for _ in range(3):
        launcher.run(tensors, {})
        for o in problem.outputs:
            assert same_bits(tensors[o.name], first.setdefault(o.name, tensors[o.name].clone()))
            tensors[o.name].fill_(math.nan)
        for index, memory in launcher._workspaces.items():
            if access[index] == "counters":
                assert (memory == 0).all()
            else:
                memory.fill_(0xFF)  # NaN


# Which family serves what.


def test_what_takes_two_passes_is_no_one_launch() -> None:
    def spread(x: Tensor[f32, M, N]) -> Tensor[f32]:
        return F.sum(x - F.amax(x, None), None)

    def two_sets_of_axes(x: Tensor[f32, M, N]) -> tuple[Tensor[f32], Tensor[f32, N]]:
        return F.sum(x, None), F.sum(x, -2)

    spread.__annotations__ = {"x": Tensor[f32, M, N], "return": Tensor[f32]}
    two_sets_of_axes.__annotations__ = {"x": Tensor[f32, M, N], "return": tuple[Tensor[f32], Tensor[f32, N]]}
    for definition in (spread, two_sets_of_axes):
        graph = Operator(definition).graphs[0]
        assert not has_kernel(graph)
        assert family_of(graph).name == "program"


def test_families() -> None:
    assert family_of(Operator(moments).graphs[0]).name == "reduce"
    assert family_of(operator("column_sum").graphs[0]).name == "column_stats"
    assert family_of(operator("batch_norm_stats").graphs[0]).name == "column_stats"


def test_reductions_over_different_elements_are_an_error() -> None:
    def two(x: Tensor[f32, ...], y: Tensor[f32, ...]) -> tuple[Tensor[f32], Tensor[f32]]:
        return F.sum(x, None), F.sum(y, None)

    two.__annotations__ = {"x": Tensor[f32, ...], "y": Tensor[f32, ...], "return": tuple[Tensor[f32], Tensor[f32]]}
    graph = Operator(two).graphs[0]
    problem = problem_of(graph, [torch.ones(1), torch.ones(9), torch.ones(()), torch.ones(())])
    with pytest.raises(ConfigError, match="run over the same elements"):
        Reduce.default(problem, TARGET)


# Indices.


def huge(name: str, dtype: Any, **sizes: int) -> Problem:
    known = operator(name)
    return dense(known.graph({next(iter(known.tensors)): dtype}), sizes if "M" in sizes else {"...": (sizes["n"],)})


def test_wide_indices() -> None:
    assert "using Index = unsigned;" in Reduce.default(p := huge("reduce_sum", f16, n=2**33), H200).source(p).body
    assert (
        "using Index = unsigned long long;"
        in Reduce.default(p := huge("reduce_sum", f16, n=2**35), H200).source(p).body
    )
    p = huge("reduce_argmax", e4m3, n=2**31)
    assert "using Index = unsigned long long;" in Reduce.default(p, H200).source(p).body


def test_offsets_beyond_two_gigabytes() -> None:
    # Rows so far apart that an offset of 32 bits would wrap: the memory between them is never touched.
    problem = dense(operator("column_sum").graph({"x": f32}), {"...": (), "M": 3, "N": 8})
    x, *rest = problem.operands
    far = Problem(
        problem.graph, (Operand(x.name, x.dtype, x.shape, (2**31 + 8, 1)), *rest), problem.leading, problem.bindings
    )
    for schedule in (ColumnStats, ChannelStats):
        config = schedule.default(far, TARGET)
        symbols = config.symbols(far)
        source = config.source(far)
        assert 2**31 + 8 in symbols.values()
        assert all(p.bits == 64 for p in source.params if getattr(p, "name", "").startswith("x_s"))


def test_defaults_on_an_h200_fill_it() -> None:
    for name, dtype in (("reduce_sum", f32), ("dot", e4m3), ("idot", i8), ("reduce_argmax", f16), ("norm", f64)):
        problem = huge(name, dtype, n=2**28)
        config = Reduce.default(problem, H200)
        grid = config.source(problem).bind({**config.symbols(problem), "SM_COUNT": 132}).grid
        assert config.pack * dtype.bytes == 16
        assert grid[0] == 132 * config.blocks_per_sm
        assert config.threads * config.blocks_per_sm * config.items * 16 * len(problem.inputs) >= 40_000

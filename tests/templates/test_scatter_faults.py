"""What kernels that add at ids get wrong: workspaces left dirty, outputs that are inputs, equal ids, few bins, wide addresses."""

from __future__ import annotations

import pytest
import torch
from cases import TARGET
from launches import dense, launch, problem_of, runner

from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.size import dims
from kgen.dsl.target import GENERIC
from kgen.dsl.types import bf16, f16, f32, i8, i32, i64
from kgen.ops import operator
from kgen.ops.scatter import ScatterAdd, ScatterBins
from kgen.ops.scatter.plan import plan

M, N, V = dims("M N V")


@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
def test_the_output_may_be_what_is_added_to(dtype: object) -> None:
    graph = operator("index_add").graph({"x": dtype, "ids": i64})  # type: ignore[dict-item]
    held = {f16: torch.float16, bf16: torch.bfloat16, f32: torch.float32}[dtype]  # type: ignore[index]
    x = torch.randint(-4, 5, (9, 16)).to(held)
    ids, source = torch.tensor([3, 3, 0, 8, 3]), torch.randint(-4, 5, (5, 16)).to(held)
    want = x.clone().index_add_(0, ids, source, alpha=2)
    launch(graph, [x, ids, source, x], ScatterAdd, scalars={"alpha": 2.0})
    assert torch.equal(x, want)


@pytest.mark.parametrize("name", ["embedding_backward", "histogram"])
def test_the_same_workspace_serves_again(name: str) -> None:
    if name == "histogram":
        graph = operator(name).graph({"x": i32})
        tensors = {"x": torch.randint(0, 12, (500,), dtype=torch.int32), "out": torch.empty(10, dtype=torch.int32)}
    else:
        graph = operator(name).graph({"dy": f16, "ids": i64})
        ids = torch.randint(0, 12, (50,))
        tensors = {"dy": torch.randint(-2, 3, (50, 8)).half(), "ids": ids, "out": torch.empty(10, 8).half()}
    problem = problem_of(graph, list(tensors.values()))
    made = runner(ScatterAdd.default(problem, TARGET), problem)
    first = None
    for _ in range(3):
        tensors["out"].fill_(7)
        made.run(tensors, {})
        first = tensors["out"].clone() if first is None else first
        assert torch.equal(tensors["out"], first)


@pytest.mark.parametrize("ids", ["equal", "sorted", "few", "permutation", "random", "outside"])
def test_patterns_of_ids(ids: str) -> None:
    n = 130
    generator = torch.Generator().manual_seed(0)
    pattern = {
        "equal": torch.full((n,), 5),
        "sorted": torch.arange(n) // 7,
        "few": torch.randint(0, 3, (n,), generator=generator),
        "permutation": torch.randperm(n, generator=generator),
        "random": torch.randint(0, n, (n,), generator=generator),
        "outside": torch.randint(-n, 2 * n, (n,), generator=generator) * 2**33,
    }[ids]
    x, source = torch.randint(-2, 3, (n, 8)).half(), torch.randint(-2, 3, (n, 8)).half()
    inside = (pattern >= 0) & (pattern < n)
    want = x.clone().index_add_(0, pattern[inside], source[inside])
    out = torch.empty_like(x)
    launch(
        operator("index_add").graph({"x": f16, "ids": i64}),
        [x, pattern, source, out],
        ScatterAdd,
        scalars={"alpha": 1.0},
    )
    assert torch.equal(out, want)


def test_equal_ids_side_by_side_are_added_in_f32() -> None:
    # Sums of halves would stay at 2048.
    source, out = torch.ones(4096, 8).half(), torch.empty(1, 8).half()
    x = torch.zeros(1, 8).half()
    graph = operator("index_add").graph({"x": f16, "ids": i64})
    fields = {"items": 4, "rounds": 16}
    launch(graph, [x, torch.zeros(4096, dtype=torch.long), source, out], ScatterAdd, fields, scalars={"alpha": 1.0})
    assert out.min() > 4000


@pytest.mark.parametrize("bins", [1, 2, 31, 256, 1000])
@pytest.mark.parametrize("kind", ["uniform", "one", "outside"])
def test_histograms(bins: int, kind: str) -> None:
    x = {
        "uniform": torch.randint(0, bins, (3001,)),
        "one": torch.full((3001,), bins - 1),
        "outside": torch.randint(-bins, 2 * bins, (3001,)),
    }[kind]
    out = torch.empty(bins, dtype=torch.int32)
    launch(operator("histogram").graph({"x": i64}), [x, out], ScatterBins)
    assert torch.equal(out.long(), torch.bincount(x[(x >= 0) & (x < bins)], minlength=bins))


def test_bytes_are_counted_without_a_sign() -> None:
    x = torch.arange(256, dtype=torch.uint8).repeat(3)[:700]
    out = torch.empty(256, dtype=torch.int32)
    launch(operator("histogram_bytes").graph({"x": i8}), [x.view(torch.int8), out], ScatterBins)
    assert torch.equal(out.long(), torch.bincount(x.long(), minlength=256))


def test_more_bins_than_shared_memory_holds_are_added_to_in_memory() -> None:
    graph = operator("histogram").graph({"x": i32})
    assert ScatterBins.applies(dense(graph, {"...": (1000,), "BINS": 32768}))
    many = dense(graph, {"...": (1000,), "BINS": 32769})
    assert not ScatterBins.applies(many)
    assert ScatterAdd.default(many, TARGET)


def test_sums_are_made_where_the_result_can_hold_them() -> None:
    def direct(name: str, **sizes: int) -> bool:
        graph = operator(name).graph({next(iter(operator(name).tensors)): f16})
        return plan(dense(graph, sizes)).direct

    assert direct("index_add", V=4, N=4, C=8)
    assert not direct("embedding_backward", V=4, N=4, C=8)


def test_vectors_of_additions_need_sm_90() -> None:
    graph = operator("index_add").graph({"x": f16, "ids": i64})
    problem = dense(graph, {"V": 1000, "N": 20000, "C": 512})
    assert ScatterAdd.default(problem, TARGET).values["atomic"] == "vector"
    assert ScatterAdd.default(problem, GENERIC["sm_80"]).values["atomic"] == "pair"


def added(x: Tensor[i32, V, N], ids: Tensor[i64, M], y: Tensor[i32, M, N]) -> Tensor[i32, V, N]:
    from kgen.dsl.indexing import scatter_add

    return x + scatter_add(V, ids, y)


def test_rows_further_apart_than_32_bits_count() -> None:
    # Memory that is never touched costs nothing.
    storage = torch.empty(2**31 + 4096, dtype=torch.int32)
    out = storage.as_strided((2, 64), (2**31 + 1024, 1))
    x, y = torch.ones(2, 64, dtype=torch.int32), torch.arange(64, dtype=torch.int32).reshape(1, 64)
    launch(Operator(added).graphs[0], [x, torch.tensor([1]), y, out], ScatterAdd, checks=False)
    assert torch.equal(out[0], x[0])
    assert torch.equal(out[1], x[1] + y[0])


def test_nothing_to_add_leaves_what_the_output_begins_as() -> None:
    out = torch.empty(10, dtype=torch.int32)
    for schedule in (ScatterBins, ScatterAdd):
        out.fill_(7)
        launch(operator("histogram").graph({"x": i32}), [torch.empty(0, dtype=torch.int32), out], schedule)
        assert not out.any()
    x, y = torch.randn(4, 8), torch.empty(4, 8)
    graph = operator("index_add").graph({"x": f32, "ids": i64})
    launch(graph, [x, torch.empty(0, dtype=torch.long), torch.empty(0, 8), y], ScatterAdd, scalars={"alpha": 1.0})
    assert torch.equal(x, y)

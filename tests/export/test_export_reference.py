"""The reference in C++ against the graph evaluated in float64."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from export_samples import bias_gelu, problem, scaled_product, softmax_mean, split_sign

from kgen.dsl import functions as F
from kgen.dsl.errors import DefinitionError
from kgen.dsl.external import external
from kgen.dsl.indexing import arange, scatter_add, size, take
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.size import dims
from kgen.dsl.types import f32, i32, i64
from kgen.export.reference import externals, reference, tolerance
from kgen.ops import operators

M, N, K = dims("M N K")

_PROGRAM = """
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

template <typename T> double rounded(double value) {{ return std::ldexp(std::nearbyint(std::ldexp(value, 8)), -8); }}
using __half = float;

struct Input {{
  std::vector<int64_t> sizes;
  std::vector<double> data;
  template <typename... I> double operator()(I... indices) const {{
    const int64_t at[] = {{indices..., 0}};
    int64_t offset = 0;
    for (size_t axis = 0; axis < sizes.size(); ++axis) offset = offset * sizes[axis] + at[axis];
    return data[offset];
  }}
  int64_t size(int axis) const {{ return sizes[axis]; }}
}};

{functions}
int main() {{
{inputs}
  const auto expected = [&](const std::array<int64_t, {rank}>& at) -> double {{
{body}
  }};
  std::array<int64_t, {rank}> at{{}};
  for (int64_t position = 0; position < {total}; ++position) {{
    int64_t rest = position;
    const int64_t sizes[] = {{{sizes}}};
    for (int axis = {rank} - 1; axis >= 0; --axis) at[axis] = rest % sizes[axis], rest /= sizes[axis];
    std::printf("%.17g\\n", expected(at));
  }}
}}
"""


def computed(
    of: Problem, data: dict[str, np.ndarray], scalars: dict[str, float], output: int, folder: Path
) -> np.ndarray:
    """What the generated C++ gives for every element of an output."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler for the host")
    lines = []
    for name, array in data.items():
        sizes, values = ", ".join(map(str, array.shape)), ", ".join(map(repr, array.ravel().tolist()))
        lines.append(f"  const Input {name}{{{{{sizes}}}, {{{values}}}}};")
    lines += [f"  const double {name} = {value!r};" for name, value in scalars.items()]
    shape = of.outputs[output].shape
    called = externals(of)
    program = _PROGRAM.format(
        functions="\n".join(called.values()),
        inputs="\n".join([*lines, *called]),
        rank=len(shape),
        body=reference(of, output),
        total=of.outputs[output].elements,
        sizes=", ".join(map(str, shape)),
    )
    (folder / "program.cpp").write_text(program)
    subprocess.run(
        [compiler, "-std=c++17", "-Wall", "-Werror", "-o", str(folder / "program"), str(folder / "program.cpp")],
        check=True,
        timeout=120,
    )
    told = subprocess.run([str(folder / "program")], capture_output=True, text=True, check=True, timeout=60).stdout
    return np.array([float(line) for line in told.split()]).reshape(shape)


def drawn(of: Problem) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {o.name: rng.integers(-8, 9, o.shape) / 4.0 for o in of.inputs}


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def test_broadcast_and_scalar(tmp_path: Path) -> None:
    of = problem(bias_gelu, {"x": f32}, {"...": (2, 3), "N": 5})
    data = drawn(of)
    got = computed(of, data, {"alpha": 0.75}, 0, tmp_path)
    np.testing.assert_allclose(got, gelu(data["x"] * 0.75 + data["b"]), rtol=1e-12, atol=1e-14)


def test_contraction(tmp_path: Path) -> None:
    of = problem(scaled_product, {}, {"...": (2,), "M": 3, "N": 4, "K": 5})
    data = drawn(of)
    got = computed(of, data, {}, 0, tmp_path)
    np.testing.assert_allclose(got, gelu(data["a"] @ data["b"].T + data["bias"]), rtol=1e-12, atol=1e-14)


def test_scales_of_blocks(tmp_path: Path) -> None:
    of = problem("fp8gemm_blockwise", {}, {"M": 3, "N": 130, "K": 260})
    data = drawn(of)
    a = data["a"] * data["scale_a"].repeat(128, 1)[:, :260]
    b = data["b"] * data["scale_b"].repeat(128, 0)[:130].repeat(128, 1)[:, :260]
    np.testing.assert_allclose(computed(of, data, {}, 0, tmp_path), a @ b.T, rtol=1e-12, atol=1e-12)


def test_groups(tmp_path: Path) -> None:
    of = problem("grouped_hgemm", {}, {"M": 9, "N": 4, "K": 5, "G": 4})
    data = drawn(of) | {"offsets": np.array([0, 3, 3, 4, 7])}
    expected = np.zeros((9, 4))
    for g, (begin, end) in enumerate(((0, 3), (3, 3), (3, 4), (4, 7))):
        expected[begin:end] = data["a"][begin:end] @ data["b"][g]
    np.testing.assert_allclose(computed(of, data, {}, 0, tmp_path), expected, rtol=1e-12, atol=1e-12)


def test_row_reductions(tmp_path: Path) -> None:
    of = problem(softmax_mean, {}, {"M": 3, "N": 4})
    (x,) = drawn(of).values()
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    expected = e / e.sum(axis=-1, keepdims=True) + x.mean(axis=-1, keepdims=True)
    np.testing.assert_allclose(computed(of, {"x": x}, {}, 0, tmp_path), expected, rtol=1e-12)


@pytest.mark.parametrize("output", [0, 1])
def test_outputs_and_casts(output: int, tmp_path: Path) -> None:
    of = problem(split_sign, {}, {"...": (4, 6)})
    (x,) = drawn(of).values()
    expected = np.where(x > 0, x, 0) if output == 0 else np.where(x > 0, 0, x * 3)
    np.testing.assert_array_equal(computed(of, {"x": x}, {}, output, tmp_path), expected)


@Operator
def positions(x: Tensor[f32, ..., M, N]) -> Tensor[f32, ..., M, N]:
    return x + arange(M, 1) * size(N) + arange(N) // 2 * 10 + arange(N) % 3


def test_positions_and_sizes(tmp_path: Path) -> None:
    of = problem(positions, {}, {"...": (2,), "M": 3, "N": 5})
    data = drawn(of)
    n = np.arange(5)
    expected = data["x"] + np.arange(3)[:, None] * 5 + n // 2 * 10 + n % 3
    np.testing.assert_array_equal(computed(of, data, {}, 0, tmp_path), expected)


@Operator
def over_axes(x: Tensor[f32, ..., M, K, N]) -> tuple[Tensor[f32, ..., K], Tensor[f32, ..., M, K, N]]:
    return F.sum(x, axis=(-3, -1)), x - F.mean(x, axis=(-3, -1)) * F.amax(x, axis=-2)


@pytest.mark.parametrize("output", [0, 1])
def test_several_axes(output: int, tmp_path: Path) -> None:
    of = problem(over_axes, {}, {"...": (2,), "M": 3, "N": 5, "K": 4})
    (x,) = drawn(of).values()
    whole = x - x.mean(axis=(-3, -1), keepdims=True) * x.max(axis=-2, keepdims=True)
    expected = x.sum(axis=(-3, -1)) if output == 0 else whole
    np.testing.assert_allclose(computed(of, {"x": x}, {}, output, tmp_path), expected, rtol=1e-12)


@Operator
def totals(x: Tensor[f32, ...]) -> tuple[Tensor[f32], Tensor[i64], Tensor[f32]]:
    return F.mean(x, axis=None), F.argmax(x, axis=None), F.amin(x, axis=None)


@pytest.mark.parametrize("output", [0, 1, 2])
def test_over_all_elements(output: int, tmp_path: Path) -> None:
    of = problem(totals, {}, {"...": (3, 4)})
    (x,) = drawn(of).values()
    expected = (x.mean(), x.argmax(), x.min())[output]
    np.testing.assert_allclose(computed(of, {"x": x}, {}, output, tmp_path), expected, rtol=1e-12)


@Operator
def row_argmax(x: Tensor[f32, M, N]) -> Tensor[i64, M]:
    return F.argmax(x)


def test_argmax_is_the_first_and_nan_the_largest(tmp_path: Path) -> None:
    of = problem(row_argmax, {}, {"M": 5, "N": 4})
    inf = np.inf
    x = np.array([[1, 3, 3, 2], [-inf] * 4, [1, np.nan, 5, np.nan], [np.nan, 1, inf, 0], [-inf, -inf, -5, -6]])
    got = computed(of, {"x": np.nan_to_num(x, nan=1e300, posinf=1e200, neginf=-1e200)}, {}, 0, tmp_path)
    np.testing.assert_array_equal(got, [1, 0, 1, 0, 2])
    assert "std::isnan" in reference(of, 0)


@Operator
def looked_up(x: Tensor[f32, ..., M, K], ids: Tensor[i32, N]) -> Tensor[f32, ..., M, N]:
    return take(x, ids, axis=-1) * 2


def test_take_of_ids_inside_and_outside(tmp_path: Path) -> None:
    of = problem(looked_up, {}, {"...": (2,), "M": 3, "N": 5, "K": 4})
    data = {"x": drawn(of)["x"], "ids": np.array([3, 0, 4, -1, 3])}
    expected = np.where((data["ids"] >= 0) & (data["ids"] < 4), data["x"][..., data["ids"] % 4], 0) * 2
    np.testing.assert_array_equal(computed(of, data, {}, 0, tmp_path), expected)


@Operator
def embedded(table: Tensor[f32, K, N], ids: Tensor[i32, ...]) -> Tensor[f32, ..., N]:
    return take(table, ids, axis=0)


def test_take_of_rows_by_leading_ids(tmp_path: Path) -> None:
    of = problem(embedded, {}, {"...": (2, 3), "N": 4, "K": 5})
    data = {"table": drawn(of)["table"], "ids": np.array([[0, 4, 2], [1, 1, 3]])}
    np.testing.assert_array_equal(computed(of, data, {}, 0, tmp_path), data["table"][data["ids"]])


@Operator
def added_rows(ids: Tensor[i32, M], x: Tensor[f32, M, N]) -> Tensor[f32, K, N]:
    return scatter_add(K, ids, x * 2, axis=0)


@Operator
def histogram(ids: Tensor[i32, ...]) -> Tensor[i32, K]:
    return scatter_add(K, ids, 1)


def test_scatter_add(tmp_path: Path) -> None:
    of = problem(added_rows, {}, {"M": 6, "N": 2, "K": 4})
    data = {"ids": np.array([0, 3, 3, 5, -1, 0]), "x": drawn(of)["x"]}
    expected = np.zeros((4, 2))
    for i, row in zip(data["ids"], data["x"]):
        if 0 <= i < 4:
            expected[i] += 2 * row
    np.testing.assert_array_equal(computed(of, data, {}, 0, tmp_path), expected)


def test_histogram(tmp_path: Path) -> None:
    of = problem(histogram, {}, {"...": (2, 5), "K": 4})
    ids = np.array([[0, 1, 1, 3, 9], [3, 3, -2, 0, 3]])
    np.testing.assert_array_equal(computed(of, {"ids": ids}, {}, 0, tmp_path), [2, 2, 0, 4])


@Operator
def exchanged(x: Tensor[f32, ..., N]) -> tuple[Tensor[f32, ..., N], Tensor[f32, ..., N]]:
    return F.swap_halves(x * 2), F.swap_pairs(x + arange(N))


@pytest.mark.parametrize("output", [0, 1])
def test_exchange(output: int, tmp_path: Path) -> None:
    of = problem(exchanged, {}, {"...": (3,), "N": 6})
    (x,) = drawn(of).values()
    halves = np.concatenate([x[..., 3:], x[..., :3]], -1) * 2
    pairs = (x + np.arange(6)).reshape(3, 3, 2)[..., ::-1].reshape(3, 6)
    np.testing.assert_array_equal(computed(of, {"x": x}, {}, output, tmp_path), (halves, pairs)[output])


def test_random_numbers_are_those_of_the_reference(tmp_path: Path) -> None:
    import torch

    import kgen.ops
    from kgen.numerics.reference import evaluate

    dropout = kgen.ops.operator("dropout")
    of = problem(dropout, {"x": f32}, {"...": (3, 7)})
    (x,) = drawn(of).values()
    scalars = {"p": 0.5, "seed": 2.0**40 + 12345.0, "offset": 2.0**33 + 1.0}
    (want,) = evaluate(of.graph, {"x": torch.tensor(x)}, {**scalars, "seed": 2**40 + 12345, "offset": 2**33 + 1})
    np.testing.assert_allclose(computed(of, {"x": x}, scalars, 0, tmp_path), want.numpy(), rtol=1e-12)
    assert 0 < (want == 0).sum() < x.size


def test_what_no_graph_expresses_brings_its_own(tmp_path: Path) -> None:
    """Boxes on a grid: many overlap, many scores are equal, some boxes have a negative size."""
    torch = pytest.importorskip("torch")
    from kgen.numerics.reference import evaluate

    of = problem("nms", {}, {"N": 300})
    rng = np.random.default_rng(0)
    data = {"boxes": rng.integers(-8, 9, (300, 4)) / 2.0, "scores": rng.integers(-40, 41, 300) / 8.0}
    given = {name: torch.tensor(array, dtype=torch.float32) for name, array in data.items()}
    kept, count = evaluate(of.graph, given, {"iou_threshold": 0.25})
    assert 10 < int(count) < 290
    for output, want in enumerate((kept, count)):
        got = computed(of, data, {"iou_threshold": 0.25}, output, tmp_path)
        np.testing.assert_array_equal(got, want.numpy())
        assert tolerance(of, output) == (0.0, 0.0)


def test_what_no_graph_expresses_needs_it() -> None:
    def copied(x: Tensor[f32, N]) -> Tensor[f32, N]:
        return external("copied", [(f32, (N,))], x, reference=lambda x: (x,))[0]

    of = problem(Operator(copied), {}, {"N": 4})
    with pytest.raises(DefinitionError, match=r"copied has no plain C\+\+ form.*expected external\(\.\.\., cpp=FILE\)"):
        externals(of)


def test_tolerance_follows_the_coarsest_rounding() -> None:
    of = problem(split_sign, {}, {"...": (8,)})
    assert tolerance(of, 1) == tolerance(of, 0)  # an f32 output of f16 values
    assert tolerance(problem("dgemm", {}, {"M": 8, "N": 8, "K": 8}), 0)[0] < 1e-12
    assert tolerance(problem("igemm", {}, {"M": 8, "N": 8, "K": 8}), 0) == (0.0, 0.0)


def test_shipped_operators_have_a_reference() -> None:
    import kgen.ops

    for operator in kgen.ops.operators().values():
        assert isinstance(operator, Operator)
        graph = operator.graphs[0]
        sizes = dict.fromkeys(graph.dims, 4) | {"...": (3,)}
        of = Problem.dense(graph, sizes)
        externals(of)
        for output in range(len(of.outputs)):
            assert reference(of, output).rstrip().endswith(";")


def test_what_no_term_changes_is_computed_once() -> None:
    attended = operators()["attention_full"].graphs[0]
    text = reference(Problem.dense(attended, {"...": (1,), "G": 2, "M": 3, "N": 4, "D": 5, "E": 6}), 0)
    loops = [len(line) - len(line.lstrip()) for line in text.splitlines() if line.lstrip().startswith("for")]
    assert sorted(set(loops)) == [2, 4]  # the largest score, the sum and the result, each with a product within
    assert len(loops) == 6

"""The reference in C++ against the graph evaluated in float64."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from export_samples import bias_gelu, problem, scaled_product, softmax_mean, split_sign

from kgen.dsl.operator import Operator
from kgen.dsl.problem import Problem
from kgen.dsl.types import f32
from kgen.export.reference import reference, tolerance

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
    program = _PROGRAM.format(
        inputs="\n".join(lines),
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
        for output in range(len(of.outputs)):
            assert reference(of, output).rstrip().endswith(";")

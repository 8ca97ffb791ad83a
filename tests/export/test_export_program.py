"""The exported test: right kernels pass it, wrong ones fail, whatever the layout. Runs on the host, with no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from export_host import run
from export_samples import (
    TARGET,
    bias_gelu,
    default,
    elementwise,
    problem,
    scaled_product,
    shifted,
    split_sign,
    tma_shift,
)

from kgen.dsl.types import DType, bf16, f16, f32
from kgen.export.project import files

BIAS_GELU = """
void bias_gelu(const {T}* x, const {T}* b, {T}* out, int n0, int n1, long long, int x_s0, int out_s0,
    float alpha) {{
  for (long long i = 0; i < n0; ++i)
    for (long long j = 0; j < n1; ++j) {{
      const float v = float(x[i * x_s0 + j]) * alpha + float(b[j]);
      out[i * out_s0 + j] = {T}(0.5f * v * (1.0f + std::tanh(0.7978845608f * (v + 0.044715f * v * v * v))));
    }}
  {fault}
}}
"""

SCALED_PRODUCT = """
void scaled_product(const __half* a, const __half* b, const __half* bias, __half* out, int M, int N, int K,
                    {strides}) {{
  for (long long m = 0; m < M; ++m)
    for (long long n = 0; n < N; ++n) {{
      float v = 0.0f;
      for (long long k = 0; k < K; ++k) v += float(a[{a}]) * float(b[n * b_sn + k]);
      v += float(bias[n]);
      out[m * out_sm + n] = __half(0.5f * v * (1.0f + std::tanh(0.7978845608f * (v + 0.044715f * v * v * v))));
    }}
  {fault}
}}
"""

FAULTS = {
    "none": ("", 0),
    "last element": ("out[(n0 - 1) * out_s0 + n1 - 1] = {T}(1000.0f);", 1),
    "beyond the end": ("out[(n0 - 1) * out_s0 + n1] = {T}(0.0f);", 1),
    "not written": ("for (int j = 0; j < n1; ++j) out[j] = {T}(NAN);", 1),
    "half an element off": ("out[3] = {T}(float(out[3]) * 1.01f + 0.01f);", 1),
}


def with_math(kernel: str) -> str:
    """The kernel, after the headers it needs: the namespace is left for them and entered again."""
    return (
        "}\n#include <cmath>\nnamespace " + kernel.strip().split("(")[0].removeprefix("void ") + "_kernel {\n" + kernel
    )


@pytest.mark.parametrize(("fault", "dtype"), [("none", bf16), ("none", f32), *((fault, f16) for fault in FAULTS)])
def test_pointwise(fault: str, dtype: DType, tmp_path: Path) -> None:
    of = problem(bias_gelu, {"x": dtype}, {"...": (33,), "N": 512})
    text, expected = FAULTS[fault]
    ctype = of.operands[0].dtype.ctype
    kernel = BIAS_GELU.format(T=ctype, fault=text.format(T=ctype))
    code, told = run(files(of, elementwise(of, blocks_per_sm=2), TARGET, [TARGET.arch]), with_math(kernel), tmp_path)
    assert code == expected, told
    assert told.count(": ok") == (3 if expected == 0 else 0), told


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("fault", [False, True])
def test_contraction(transposed: bool, fault: bool, tmp_path: Path) -> None:
    of = problem(
        scaled_product, {}, {"...": (), "M": 96, "N": 128, "K": 64}, {"a": "col"} if transposed else {}
    )  # fmt: skip
    kernel = SCALED_PRODUCT.format(
        strides=f"long long a_s{'k' if transposed else 'm'}, long long b_sn, long long out_sm",
        a="k * a_sk + m" if transposed else "m * a_sm + k",
        fault="out[(M - 1) * out_sm] = __half(0.5f);" if fault else "",
    )
    found = files(of, default(of, "SimtGemm"), TARGET, [TARGET.arch])
    code, told = run(found, with_math(kernel), tmp_path)
    assert code == (1 if fault else 0), told


def test_two_outputs(tmp_path: Path) -> None:
    of = problem(split_sign, {}, {"...": (5, 7, 11)})
    kernel = """
void split_sign(const __half* x, __half* out0, float* out1, long long n0) {
  for (long long i = 0; i < n0; ++i) {
    const float v = float(x[i]);
    out0[i] = __half(v > 0 ? v : 0.0f);
    out1[i] = v > 0 ? 0.0f : float(__half(v * 3));
  }
}
"""
    code, told = run(files(of, elementwise(of), TARGET, [TARGET.arch]), kernel, tmp_path)
    assert code == 0, told


SHIFTED = """
namespace ptx {
struct alignas(64) TensorMap { unsigned long long words[16]; };
}
void shifted(const ptx::TensorMap map_x, const float* b, const ptx::TensorMap map_out, int n1) {
  if (map_x.words[11] != 32 || map_x.words[12] != 32 || map_x.words[1] != (unsigned)n1) return;
  const char* x = reinterpret_cast<const char*>(map_x.words[0]);
  char* out = reinterpret_cast<char*>(map_out.words[0]);
  for (unsigned long long row = 0; row < map_x.words[2]; ++row)
    for (int column = 0; column < n1; ++column)
      reinterpret_cast<float*>(out + row * map_out.words[6])[column] =
          reinterpret_cast<const float*>(x + row * map_x.words[6])[column] + b[column];
}
"""


def test_tensor_maps_show_the_operands(tmp_path: Path) -> None:
    of = problem(shifted, {}, {"M": 64, "N": 128})
    code, told = run(files(of, tma_shift(), TARGET, [TARGET.arch]), SHIFTED, tmp_path)
    assert code == 0, told
    assert told.count(": ok") == 3, told


def test_a_launch_that_refuses_nothing_fails(tmp_path: Path) -> None:
    of = problem(bias_gelu, {"x": f16}, {"...": (33,), "N": 512})
    found = files(of, elementwise(of), TARGET, [TARGET.arch])
    lax = "\n".join(line for line in found["bias_gelu.cu"].split("\n") if "% 8 != 0" not in line)
    kernel = "void bias_gelu(const __half*, const __half*, __half*, int, int, long long, int, int, float) {}"
    code, told = run(found | {"bias_gelu.cu": lax}, kernel, tmp_path)
    assert code == 1
    assert "n1 is not a multiple of 8" in told

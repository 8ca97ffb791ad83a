"""Conversions and intrinsics of the narrow formats are bit exact; the mathematical functions are there and right."""

# ruff: noqa: E501 (tables and CUDA)
from __future__ import annotations

import math

import numpy as np
import pytest
from emulated_kernels import aligned, make, write

from kgen import emulator

torch = pytest.importorskip("torch")

CONVERT = """
extern "C" __global__ void __launch_bounds__(128) convert(const float* x, const double* wide, unsigned short* h, unsigned short* b,
                                                          unsigned char* e4, unsigned char* e5, unsigned short* hd,
                                                          unsigned short* bd, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  reinterpret_cast<__half*>(h)[i] = __float2half_rn(x[i]);
  reinterpret_cast<__nv_bfloat16*>(b)[i] = __nv_bfloat16(x[i]);
  reinterpret_cast<__nv_fp8_e4m3*>(e4)[i] = __nv_fp8_e4m3(x[i]);
  reinterpret_cast<__nv_fp8_e5m2*>(e5)[i] = __nv_fp8_e5m2(x[i]);
  reinterpret_cast<__half*>(hd)[i] = __double2half(wide[i]);
  reinterpret_cast<__nv_bfloat16*>(bd)[i] = __double2bfloat16(wide[i]);
}
"""


def samples() -> np.ndarray:
    """Random values of every magnitude, ties, the edges of each format, and what is special."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 40000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = (rng.standard_normal(20000) * 2.0 ** rng.integers(-20, 12, 20000)).astype(np.float32)
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = halves[~np.isnan(halves)]
    with np.errstate(all="ignore"):
        ties = (halves[:-1] + halves[1:]) / 2
    up = np.nextafter(halves, np.float32(np.inf))
    edges = np.array([448, 449, 463.9, 464, 464.1, 480, 57344, 61439, 61440, 65504, 65519, 65520, 2**-9, 2**-10, 2**-10 * 1.01,
                      2**-17, 2**-16, 2**-24, 2**-25, 2**-25 * 1.001, 0, -0.0, np.inf, -np.inf], np.float32)  # fmt: skip
    with np.errstate(all="ignore"):
        return aligned(np.concatenate([bits, near, halves, up, ties, edges, -edges]).astype(np.float32))


def test_conversions_round_to_nearest_even() -> None:
    x = samples()
    x = aligned(x[~np.isnan(x)])
    n = len(x)
    # Twice rounded values differ from once rounded ones just beside a tie of the narrow format.
    wide = aligned(x.astype(np.float64) * (1 + np.float64(2) ** -50))
    h, b, hd, bd = (aligned(np.zeros(n, np.uint16)) for _ in range(4))
    e4, e5 = (aligned(np.zeros(n, np.uint8)) for _ in range(2))
    arrays = [write(a, initialized=True) for a in (x, wide, h, b, e4, e5, hd, bd)]
    emulator.compile(make(CONVERT)).launch([*arrays, n], ((n + 127) // 128, 1, 1))
    t = torch.from_numpy(x)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(h, x.astype(np.float16).view(np.uint16))
        np.testing.assert_array_equal(hd, wide.astype(np.float16).view(np.uint16))
    np.testing.assert_array_equal(b, t.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16))
    # Saturating: NVIDIA clamps what is out of range, infinities included, which torch does not.
    for got, kind, top in ((e4, torch.float8_e4m3fn, 448.0), (e5, torch.float8_e5m2, 57344.0)):
        expected = t.clamp(-top, top).to(kind).view(torch.uint8).numpy()
        np.testing.assert_array_equal(got, expected)
    # bf16 of a double: f32 neighbours around it tell how to round.
    exact = torch.from_numpy(wide)
    low = torch.from_numpy(bd.view(np.int16)).view(torch.bfloat16).double()
    finite = torch.isfinite(exact) & torch.isfinite(low) & (exact.abs() < 3e38)
    bits = torch.from_numpy(bd.astype(np.int32))
    for step in (-1, 1):
        neighbour = (bits + step).clamp(0, 65535).to(torch.int16).view(torch.bfloat16).double()
        assert bool(((exact - low).abs() <= (exact - neighbour).abs())[finite & torch.isfinite(neighbour)].all())


DECODE = """
extern "C" __global__ void __launch_bounds__(128) decode(float* h, float* b, float* e4, float* e5) {
  int i = blockIdx.x * 128 + threadIdx.x;
  h[i] = __half2float(__ushort_as_half((unsigned short)i));
  b[i] = float(__ushort_as_bfloat16((unsigned short)i));
  __nv_fp8_e4m3 x;
  __nv_fp8_e5m2 y;
  x.__x = y.__x = (unsigned char)i;
  e4[i] = float(x);
  e5[i] = float(y);
}
"""


def test_every_code_is_decoded() -> None:
    outs = [aligned(np.zeros(65536, np.float32)) for _ in range(4)]
    emulator.compile(make(DECODE)).launch([write(o) for o in outs], (512, 1, 1))
    codes = torch.arange(65536, dtype=torch.int32)
    for out, kind in zip(outs, (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)):
        narrow = codes.to(torch.int16) if kind.itemsize == 2 else (codes % 256).to(torch.uint8)
        np.testing.assert_array_equal(out, narrow.view(kind).float().numpy())


def evaluate(*expressions: str, kind: str = "float", before: str = "") -> np.ndarray:
    """The values of CUDA expressions."""
    lines = "\n".join(f"  out[{i}] = {expression};" for i, expression in enumerate(expressions))
    body = f'extern "C" __global__ void __launch_bounds__(32) values({kind}* out) {{\n  if (threadIdx.x) return;\n{before}\n{lines}\n}}\n'
    out = np.zeros(len(expressions), {"float": np.float32, "int": np.int32, "double": np.float64}[kind])
    emulator.compile(make(body, 32)).launch([write(out)], (1, 1, 1))
    return out


def test_half_intrinsics() -> None:
    before = """
  __half2 h = __floats2half2_rn(1.5f, -2.25f), g = __halves2half2(__float2half(3.0f), __int2half_rn(4));
  __nv_bfloat162 b = __floats2bfloat162_rn(1.5f, -2.25f), c = __float2bfloat162_rn(3.0f);
  __half tenth = __half(0.1f);
  tenth += __half(1.0f);
"""
    values = evaluate(
        "__low2float(__hadd2(h, g))", "__high2float(__hmul2(h, g))", "__half22float2(__hfma2(h, g, g)).y", "float(h.x - g.y)",
        "__half2float(__hmax(h.x, h.y))", "float(-h.y)", "__half2float(__habs(h.y))", "h.x > h.y ? 1.0f : 0.0f",
        "__bfloat1622float2(__hmul2(b, c)).y", "__bfloat162float(__hadd(b.x, c.y))", "float(b.x / c.x)", "float(tenth)",
        "float(hsqrt(g.y))", "float(__float2bfloat16(1.00390625f))", "float(__float2bfloat16(1.01171875f))",
        before=before,
    )  # fmt: skip
    bf16 = lambda x: float(torch.tensor(x).bfloat16())  # noqa: E731
    tenth = np.float16(np.float16(0.1) + np.float16(1.0))
    expected = [4.5, -9.0, -5.0, -2.5, 1.5, 2.25, 2.25, 1.0, -6.75, 4.5, bf16(0.5), float(tenth), 2.0, 1.0, 1.015625]
    assert values.tolist() == expected


def test_math_functions() -> None:
    cases = {
        "__expf(1.5f)": math.exp(1.5), "__logf(1.5f)": math.log(1.5), "__sinf(1.0f)": math.sin(1), "__cosf(1.0f)": math.cos(1),
        "__powf(2.0f, 3.0f)": 8, "__fdividef(1.0f, 4.0f)": 0.25, "exp2f(3.0f)": 8, "rsqrtf(4.0f)": 0.5, "__frcp_rn(8.0f)": 0.125,
        "__fsqrt_rn(9.0f)": 3, "__fmaf_rn(2.0f, 3.0f, 1.0f)": 7, "fmaf(2.0f, 3.0f, 1.0f)": 7, "tanhf(0.5f)": math.tanh(0.5),
        "erff(0.5f)": math.erf(0.5), "log1pf(0.5f)": math.log1p(0.5), "expm1f(0.5f)": math.expm1(0.5), "__saturatef(1.5f)": 1,
        "__saturatef(-1.5f)": 0, "__int_as_float(0x3f800000)": 1, "min(1, 2.5f)": 1, "max(3u, 2u)": 3, "abs(-2.5f)": 2.5,
        "fmaxf(nanf(\"\"), 1.0f)": 1, "max(1.0f, nanf(\"\"))": 1, "sqrtf(2.0f)": math.sqrt(2), "floorf(-1.5f)": -2, "fabsf(-1.0f)": 1,
        "normcdff(0.3f)": 0.5 * math.erfc(-0.3 / math.sqrt(2)), "exp10f(2.0f)": 100, "powf(2.0f, 0.5f)": math.sqrt(2),
        "copysignf(1.0f, -2.0f)": -1, "fmodf(5.5f, 2.0f)": 1.5, "sinhf(1.0f)": math.sinh(1), "atan2f(1.0f, 2.0f)": math.atan2(1, 2),
    }  # fmt: skip
    np.testing.assert_allclose(evaluate(*cases), list(cases.values()), rtol=3e-7, atol=1e-7)
    overloads = {
        "exp(1.0f)": math.e, "log(2.0f)": math.log(2), "pow(2.0f, 3.0f)": 8, "pow(2.0, 3)": 8, "sqrt(2.0f)": math.sqrt(2), "abs(-3ll)": 3,
        "fabs(-1.0f)": 1, "floor(1.5f)": 1, "ceil(1.5f)": 2, "round(2.5f)": 3, "rint(2.5f)": 2, "tanh(0.5f)": math.tanh(0.5),
        "erf(0.5f)": math.erf(0.5), "log2(8.0f)": 3, "fmax(1.0f, 2.0f)": 2, "fmin(1, 2)": 1, "isnan(1.0f)": 0, "isinf(2.0f / 0.0f)": 1,
        "isfinite(1.0)": 1, "signbit(-1.0f)": 1, "copysign(1.0f, -1.0f)": -1, "cbrtf(8.0f)": 2, "erfcf(0.5f)": math.erfc(0.5),
        "hypotf(3.0f, 4.0f)": 5, "ldexpf(1.0f, 3)": 8, "truncf(-1.5f)": -1, "roundf(0.5f)": 1, "nearbyintf(1.5f)": 2,
        "log10f(100.0f)": 2, "logf(2.0f)": math.log(2), "lroundf(1.5f)": 2, "sin(0.5f)": math.sin(0.5), "cos(0.5f)": math.cos(0.5),
        "asinhf(1.0f)": math.asinh(1), "rsqrt(4.0f)": 0.5, "log1p(0.5f)": math.log1p(0.5), "expm1(0.5f)": math.expm1(0.5),
        "sinpif(0.5f)": 1, "fdimf(3.0f, 1.0f)": 2, "min(2ll, 3ll)": 2, "max(1ull, 3ull)": 3, "exp2(3.0f)": 8, "acosf(0.5f)": math.acos(0.5),
        "lgammaf(3.0f)": math.log(2), "tgammaf(4.0f)": 6, "__tanhf(0.5f)": math.tanh(0.5), "rcbrtf(8.0f)": 0.5, "erfinvf(0.5f)": 0.47693628,
        "normcdfinvf(0.5f)": 0, "cospif(1.0f)": -1, "fma(2.0f, 3.0f, 1.0f)": 7, "trunc(1.5f)": 1, "nearbyint(2.5f)": 2,
    }  # fmt: skip
    np.testing.assert_allclose(evaluate(*overloads), list(overloads.values()), rtol=3e-7, atol=1e-7)
    assert evaluate("rsqrt(4.0)", "exp(1.0)", "fma(2.0, 3.0, 1.0)", "max(1.0, 2)", kind="double").tolist() == [
        0.5,
        math.e,
        7,
        2,
    ]


def test_integer_intrinsics() -> None:
    cases = {
        "__popc(0xf0f0u)": 8, "__clz(1)": 31, "__clz(0)": 32, "__ffs(8)": 4, "__ffs(0)": 0, "__brev(1u) == 0x80000000u": 1,
        "__umulhi(0x80000000u, 6u)": 3, "__mulhi(-2, 3)": -1, "__byte_perm(0x33221100, 0x77665544, 0x7531)": 0x77553311,
        "__funnelshift_l(0x80000000u, 1u, 1u)": 3, "__funnelshift_r(0u, 1u, 1u) == 0x80000000u": 1, "__float_as_int(1.0f)": 0x3F800000,
        "(int)__float_as_uint(-1.0f)": 0xBF800000 - 2**32, "__float2int_rn(2.5f)": 2, "__float2int_rz(-2.9f)": -2,
        "__float2int_rn(3e9f)": 2**31 - 1, "__dp4a(0x01020304, 0x01010101, 5)": 15, "min(3, -4)": -4, "max(3, -4)": 3, "abs(-5)": 5,
        "(int)sizeof(float4)": 16, "(int)alignof(double2)": 16, "(int)alignof(float3)": 4, "(int)sizeof(__half2)": 4,
        "make_int4(1, 2, 3, 4).w": 4, "(int)dim3(5).y": 1, "(int)blockDim.x": 32, "(int)gridDim.z": 1, "warpSize": 32,
    }  # fmt: skip
    assert evaluate(*cases, kind="int").tolist() == list(cases.values())

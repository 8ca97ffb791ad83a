"""The functions of the PTX layer that came before Hopper: copies, moves of matrices, products of a warp."""

from __future__ import annotations

import numpy as np
from ptx_cases import Case, case
from ptx_wgmma_cases import encode

from kgen.dsl.target import sm

_LOADS = """  const int i = t;
  out[i] = ptx::load_no_allocate(reinterpret_cast<const unsigned char*>(x) + i);
  out[128 + i] = ptx::load_no_allocate(reinterpret_cast<const unsigned short*>(x) + i);
  out[256 + i] = ptx::load_no_allocate(reinterpret_cast<const unsigned int*>(x) + i);
  const uint2 two = ptx::load_no_allocate(reinterpret_cast<const uint2*>(x) + i);
  const uint4 four = ptx::load_no_allocate(reinterpret_cast<const uint4*>(x) + i);
  out[384 + i] = two.x ^ two.y;
  out[512 + i] = four.x + 2 * four.y + 3 * four.z + 4 * four.w;
"""

_COPIES = """  const unsigned char* const from = reinterpret_cast<const unsigned char*>(x);
  // Whole copies of each size, then copies of which only some bytes are valid, and of none.
  ptx::cp_async<4>(base + t * 4, from + t * 4);
  ptx::cp_async<8>(base + 512 + t * 8, from + 512 + t * 8);
  ptx::cp_async_commit();
  ptx::cp_async<16>(base + 1536 + t * 16, from + t * 16);
  ptx::cp_async_commit();
  ptx::cp_async<16>(base + 3584 + t * 16, from + t * 16, t % 17);
  ptx::cp_async<8>(base + 5632 + t * 8, from + t * 8, t % 9);
  ptx::cp_async<4>(base + 6656 + t * 4, t % 2 ? from + t * 4 : nullptr, t % 2 * 4);
  ptx::cp_async_commit();
  ptx::cp_async_wait<2>();
  out[t] = reinterpret_cast<const int*>(shared)[t];
  out[128 + t * 2] = reinterpret_cast<const int*>(shared + 512)[t * 2];
  out[128 + t * 2 + 1] = reinterpret_cast<const int*>(shared + 512)[t * 2 + 1];
  ptx::cp_async_wait<0>();
  __syncthreads();
  for (int i = 384 + t; i < 7168 / 4; i += 128) out[i] = reinterpret_cast<const int*>(shared)[i];
"""

_MATRICES = """  unsigned r[{count}];
  const int lane = t % 32;
  for (int i = t; i < 256; i += 32) reinterpret_cast<int*>(shared)[i] = x[i];
  __syncthreads();
  const unsigned row = base + (lane % 8 * 8 + lane / 8 % {count} * 2) * 16;  // rows of 128 bytes; matrices 32 bytes apart
  ptx::ldmatrix{trans_in}(r, row);
  ptx::stmatrix{trans_out}(row + 16, r);
  __syncthreads();
  for (int i = t; i < 256; i += 32) out[i] = reinterpret_cast<const int*>(shared)[i];
"""

_LOAD_MATRICES = """  unsigned r[{count}];
  const int lane = t % 32;
  for (int i = t; i < 256; i += 32) reinterpret_cast<int*>(shared)[i] = x[i];
  __syncthreads();
  ptx::ldmatrix{trans}(r, base + (lane % 8 * 8 + lane / 8 % {count} * 2) * 16);
#pragma unroll
  for (int i = 0; i < {count}; ++i) out[i * 32 + t] = r[i];
"""

_MMA = """  unsigned a[{a}], b[{b}];
  {element} d[{d}];
#pragma unroll
  for (int i = 0; i < {a}; ++i) a[i] = left[i * 32 + t];
#pragma unroll
  for (int i = 0; i < {b}; ++i) b[i] = right[i * 32 + t];
#pragma unroll
  for (int i = 0; i < {d}; ++i) d[i] = start[i * 32 + t];
  ptx::{name}(d, a, b);
  ptx::{name}(d, a, b);
#pragma unroll
  for (int i = 0; i < {d}; ++i) out[i * 32 + t] = d[i];
"""


def copies() -> list[Case]:
    """cp.async and read-only loads."""
    x = np.random.default_rng(1).integers(0, 1 << 31, 512).astype(np.int32)
    raw = x.view(np.uint8)
    loads = np.concatenate(
        [
            raw[:128].astype(np.int32),
            raw[:256].view(np.uint16).astype(np.int32),
            x[:128],
            x[:256].reshape(128, 2)[:, 0] ^ x[:256].reshape(128, 2)[:, 1],
            (x.reshape(128, 4).astype(np.int64) @ np.array([1, 2, 3, 4]))
            .astype(np.uint64)
            .astype(np.uint32)
            .view(np.int32),
        ]
    )
    tile = np.zeros(7168, np.uint8)
    tile[:512], tile[512:1536], tile[1536:3584] = raw[:512], raw[512:1536], raw[:2048]
    for t in range(128):
        for start, width, valid in ((3584, 16, t % 17), (5632, 8, t % 9), (6656, 4, t % 2 * 4)):
            tile[start + t * width : start + t * width + valid] = raw[t * width : t * width + valid]
    return [
        case("load_no_allocate", _LOADS, {"x": x}, {"out": loads}, arch=sm(75)),
        case(
            "load_evict_last",
            _LOADS.replace("load_no_allocate", "load_evict_last")
            + "  if (ptx::policy_evict_last() != ptx::policy_evict_last()) out[t] = -1;\n",
            {"x": x},
            {"out": loads},
            arch=sm(80),
        ),
        case("cp_async", _COPIES, {"x": x}, {"out": tile.view(np.int32)}, shared=7168, arch=sm(80)),
    ]


def matrices() -> list[Case]:
    """ldmatrix and stmatrix, of 1, 2 and 4 matrices, transposed and not."""
    x = np.arange(512, dtype=np.uint16)
    tile = x.reshape(8, 64)  # 8 rows of 128 bytes
    found = []
    for count in (1, 2, 4):
        parts = [tile[:, 16 * m : 16 * m + 8] for m in range(count)]
        for transposed in (False, True):
            held = [part.T if transposed else part for part in parts]
            words = np.stack([np.ascontiguousarray(part).view(np.uint32).reshape(32) for part in held])
            name = f"x{count}" + ("-trans" if transposed else "")
            trans = "_trans" if transposed else ""
            found.append(
                case(
                    f"ldmatrix-{name}",
                    _LOAD_MATRICES.format(count=count, trans=trans),
                    {"x": x.view(np.int32)},
                    {"out": words.view(np.int32)},
                    threads=32,
                    shared=1024,
                    arch=sm(75),
                )
            )
            for trans_in in ("", "_trans"):
                after = tile.copy()
                for m in range(count):
                    after[:, 16 * m + 8 : 16 * m + 16] = parts[m].T if transposed != bool(trans_in) else parts[m]
                found.append(
                    case(
                        f"stmatrix-{name}{'-of-trans' if trans_in else ''}",
                        _MATRICES.format(count=count, trans_in=trans_in, trans_out=trans),
                        {"x": x.view(np.int32)},
                        {"out": after.view(np.int32)},
                        threads=32,
                        shared=1024,
                        arch=sm(90),
                    )
                )
    return found


#: Least architecture, depth, dtype of operands and accumulator.
_PRODUCTS = {
    "mma_m16n8k8_f16_f32": (75, 8, "f16", "f32"),
    "mma_m16n8k8_f16_f16": (75, 8, "f16", "f16"),
    "mma_m16n8k16_f16_f32": (80, 16, "f16", "f32"),
    "mma_m16n8k16_f16_f16": (80, 16, "f16", "f16"),
    "mma_m16n8k16_bf16_f32": (80, 16, "bf16", "f32"),
    "mma_m16n8k8_tf32_f32": (80, 8, "tf32", "f32"),
    "mma_m16n8k32_s8_s32": (80, 32, "s8", "s32"),
    "mma_m16n8k32_e4m3_f32": (89, 32, "e4m3", "f32"),
    "mma_m16n8k32_e5m2_f32": (89, 32, "e5m2", "f32"),
}


def _fragment(values: np.ndarray) -> np.ndarray:
    """A (rows, k) operand as the registers of a warp hold it: [half of k, half of rows][32] words, rows g, k = P t onwards."""
    words = np.ascontiguousarray(values).view(np.uint32)
    rows, k = words.shape
    parts = words.reshape(rows // 8, 8, k // 4, 4).transpose(2, 0, 1, 3)
    return np.ascontiguousarray(parts.reshape(-1, 32)).view(np.int32)


def products() -> list[Case]:
    """mma of every dtype and depth, each twice, so that accumulation shows."""
    found = []
    for name, (arch, depth, kind, total) in _PRODUCTS.items():
        random = np.random.default_rng(depth)
        left, right = random.integers(-3, 4, (16, depth)), random.integers(-3, 4, (8, depth))
        begin = random.integers(-9, 10, (16, 8))
        bits = [(v.astype(np.int8) if kind == "s8" else encode(v, kind)) for v in (left, right)]
        a, b = (_fragment(v) for v in bits)
        kinds = {"f32": np.float32, "f16": np.float16, "s32": np.int32}

        def held(values: np.ndarray, kinds: dict[str, type] = kinds, total: str = total) -> np.ndarray:
            typed = np.ascontiguousarray(values.astype(kinds[total]))  # [16][8]: rows g, g + 8; columns 2t, 2t + 1
            if total == "f16":
                return np.ascontiguousarray(typed.view(np.uint32).reshape(2, 32)).view(np.int32)
            return np.ascontiguousarray(typed.reshape(2, 8, 4, 2).transpose(0, 3, 1, 2).reshape(4, 32))

        start, out = held(begin), held(begin + 2 * (left @ right.T))
        body = _MMA.format(
            name=name,
            a=len(a),
            b=len(b),
            d=len(start),
            element={"f32": "float", "f16": "unsigned", "s32": "int"}[total],
        )
        given = {"left": a, "right": b, "start": start}
        found.append(case(name, body, given, {"out": out}, threads=32, arch=sm(arch)))
    x = np.array([1.0, 1 + 2**-11, 1 + 2**-10 + 2**-11, -1 - 2**-12, np.inf, -np.inf, np.nan, 3.1415927], np.float32)
    bits = np.tile(x, 16).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0xFFF + (bits >> 13 & 1) & 0xFFFFE000).astype(np.uint32)
    rounded[np.isnan(np.tile(x, 16))] = 0x7FFFFFFF
    body = "  out[t] = __float_as_int(x[t]) == 0x7fc00000 ? 0x7fffffff : static_cast<int>(ptx::to_tf32(x[t]));\n"
    given = {"x": np.tile(x, 16)}
    found.append(case("to_tf32", body, given, {"out": rounded.view(np.int32)}, arch=sm(90)))
    return found


def arithmetic() -> list[Case]:
    """The larger and the smaller where NaN counts, powers of e by the special function unit, and whole products."""
    x = np.array([1.0, -2.0, np.nan, 3.0, np.inf, -np.inf, 0.0, np.nan], np.float32)
    y = np.array([2.0, -3.0, 1.0, np.nan, 5.0, 1.0, -7.0, np.nan], np.float32)
    body = "  larger[t] = ptx::max_nan(x[t % 8], y[t % 8]);\n  smaller[t] = ptx::min_nan(x[t % 8], y[t % 8]);\n"
    expected = {"larger": np.maximum(x, y), "smaller": np.minimum(x, y)}
    given = {"x": x, "y": y}
    found = [case(f"extremes_sm_{n}", body, given, expected, threads=8, arch=sm(n)) for n in (75, 80)]
    powers = np.linspace(-80, 3, 128).astype(np.float32)
    powers[:3] = -200, -np.inf, 0
    exact = np.exp(powers.astype(np.float64)).astype(np.float32)
    body = "  out[t] = ptx::exp_approximate(x[t]);\n"
    found.append(case("exp_approximate", body, {"x": powers}, {"out": exact}, arch=sm(75), slack=1e-6))
    body = "  out[t] = ptx::exp2_approximate(x[t]);\n"
    exact = np.exp2(powers.astype(np.float64)).astype(np.float32)
    found.append(case("exp2_approximate", body, {"x": powers}, {"out": exact}, arch=sm(75), slack=1e-6))
    powers = np.linspace(-20, 20, 128).astype(np.float32)
    powers[:5] = -200, -np.inf, 0, 200, np.inf
    exact = (1 / (1 + np.exp(-powers.astype(np.float64)))).astype(np.float32)
    body = "  out[t] = ptx::sigmoid_approximate(x[t]);\n"
    found.append(case("sigmoid_approximate", body, {"x": powers}, {"out": exact}, arch=sm(75), slack=1e-6))
    divisors = np.linspace(-20, 20, 128).astype(np.float32)
    divisors[:5] = 1, 3e38, -np.inf, 2.0**60, np.inf
    exact = np.where(np.abs(divisors) > 2.0**126, 0, 1 / divisors.astype(np.float64)).astype(np.float32)
    body = "  out[t] = ptx::reciprocal_approximate(x[t]);\n"
    found.append(case("reciprocal_approximate", body, {"x": divisors}, {"out": exact}, arch=sm(75), slack=1e-6))
    body = "  out[t] = ptx::exp_approximate(x[t]);\n  out[4 + t] = ptx::sigmoid_approximate(x[t]);\n"
    body += "  out[8 + t] = ptx::reciprocal_approximate(y[t]);\n"
    small = {"x": np.array([-87.5, -88, -90, -100], np.float32), "y": np.array([9e37, 1e38, -2e38, 3e38], np.float32)}
    found.append(case("flushed", body, small, {"out": np.zeros(12, np.float32)}, threads=4, arch=sm(75)))
    a = np.random.default_rng(0).integers(-(2**31), 2**31, 128).astype(np.int32)
    a[:4] = -(2**31), 2**31 - 1, 0, -1
    products = (a.astype(np.int64) * a[::-1].astype(np.int64)).view(np.int32).reshape(-1, 2)
    body = "  const long long product = ptx::multiply_wide(x[t], x[127 - t]);\n"
    body += "  low[t] = static_cast<int>(product);\n  high[t] = static_cast<int>(product >> 32);\n"
    halves = {"low": products[:, 0].copy(), "high": products[:, 1].copy()}
    found.append(case("multiply_wide", body, {"x": a}, halves, arch=sm(75)))
    body = "  least[t] = ptx::reduce_min(x[t]);\n  most[t] = ptx::reduce_max(x[t]);\n"
    warps = a.reshape(4, 32)
    ends = {"least": warps.min(1).repeat(32), "most": warps.max(1).repeat(32)}
    found += [case(f"reduce_sm_{n}", body, {"x": a}, ends, arch=sm(n)) for n in (75, 80)]
    return found


CASES = [*copies(), *matrices(), *products(), *arithmetic()]

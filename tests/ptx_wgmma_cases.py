"""wgmma: every layout of its operands in shared memory, shapes, dtypes, operands in registers.

The images of the operands are made here, by the layouts of the PTX ISA ("Shared memory matrix layout" of wgmma), in units
of 16 bytes; the kernel only copies them to shared memory and says by descriptors where they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from ptx_cases import Case, case

#: Depth of an instruction and bits of an element.
_KINDS = {"f16": (16, 16), "bf16": (16, 16), "tf32": (8, 32), "e4m3": (32, 8), "e5m2": (32, 8)}
_SWIZZLE_CODE = {0: 0, 128: 1, 64: 2, 32: 3}


def encode(values: np.ndarray, kind: str) -> np.ndarray:
    """The bits of small integers in a dtype, as unsigned words of its width."""
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    if kind == "tf32":
        return values.astype(np.float32).view(np.uint32)
    bits = values.astype(np.float32).view(np.uint32)
    if kind == "bf16":
        return (bits >> 16).astype(np.uint16)
    exponent, mantissa, bias = (4, 3, 7) if kind == "e4m3" else (5, 2, 15)
    code = ((bits >> 23 & 255).astype(np.int64) - 127 + bias << mantissa) | (
        bits >> (23 - mantissa) & (1 << mantissa) - 1
    )
    assert exponent + mantissa == 7
    return (np.where(values == 0, 0, code) | (bits >> 31).astype(np.int64) << 7).astype(np.uint8)


@dataclass(frozen=True)
class Image:
    """An operand in shared memory: its bytes, and the descriptor of its start less the address."""

    data: np.ndarray
    descriptor: int
    start: int


def image(bits: np.ndarray, transposed: bool, span: int, step: int = 0) -> Image:
    """Of (rows or columns, k) elements, in rows of `span` bytes; `step` is which instruction's part of wider rows it is."""
    extent, depth = bits.shape
    lines = np.ascontiguousarray(bits.T if transposed else bits).view(np.uint8)
    units = lines.reshape(len(lines), -1, 16)  # [row or k][unit along the other axis]
    outer, inner = np.meshgrid(np.arange(units.shape[0]), np.arange(units.shape[1]), indexing="ij")
    group, row = outer // 8, outer % 8
    if span == 0:
        # Groups of eight rows, 128 bytes each, one axis before the other.
        leading, stride = (128, 128 * depth // 8) if transposed else (128 * -(-extent // 8), 128)
        address = row * 16 + (inner * stride + group * leading if transposed else group * stride + inner * leading)
    else:
        across = span // 16
        leading = span * depth if transposed else 16
        stride = 8 * span
        address = row * span + group * stride
        address = address + (inner % across * 16 + inner // across * leading if transposed else inner * 16 + step * 32)
        address ^= address >> 3 & span - 16
    size = -(-(int(address.max()) + 16) // 1024) * 1024
    data = np.full((size // 16, 16), 0xFF, np.uint8)
    assert len(np.unique(address)) == address.size
    data[address // 16] = units
    descriptor = (leading >> 4) << 16 | (stride >> 4) << 32 | _SWIZZLE_CODE[span] << 62
    return Image(data.reshape(-1), descriptor, 0 if transposed or span == 0 else step * 32)


def accumulators(values: np.ndarray, half: bool) -> np.ndarray:
    """A 64 x N matrix as the registers of 128 threads hold it: [register][thread] of 32-bit words."""
    n = values.shape[1]
    pairs = values.reshape(4, 2, 8, n // 8, 4, 2)  # warp, half, g, j, t, element
    threads = pairs.transpose(3, 1, 5, 0, 2, 4)  # j, half, element, warp, g, t
    if not half:
        return np.ascontiguousarray(threads.reshape(n // 2, 128).astype(np.float32))
    words = threads.astype(np.float16).view(np.uint16).astype(np.uint32)
    return np.ascontiguousarray((words[:, :, 0] | words[:, :, 1] << 16).reshape(n // 4, 128)).view(np.int32)


def registers(bits: np.ndarray) -> np.ndarray:
    """A 64 x K operand as [register][thread] of 32-bit words."""
    pack = 4 // bits.itemsize
    words = np.ascontiguousarray(bits).view(np.uint32).reshape(4, 2, 8, 2, 4)  # warp, half of rows, g, half of k, t
    assert bits.shape[1] == 8 * pack
    return np.ascontiguousarray(words.transpose(3, 1, 0, 2, 4).reshape(4, 128)).view(np.int32)


_SS = """  uint4* const tiles = reinterpret_cast<uint4*>(shared);
  for (int i = t; i < {a_units}; i += 128) tiles[i] = reinterpret_cast<const uint4*>(a)[i];
  for (int i = t; i < {b_units}; i += 128) tiles[{a_units} + i] = reinterpret_cast<const uint4*>(b)[i];
  ptx::fence_proxy_async();
  __syncthreads();
  const unsigned long long a_operand = {a_descriptor}ull | ((base + {a_start}) & 0x3ffff) >> 4;
  const unsigned long long b_operand = {b_descriptor}ull | ((base + {b_start}) & 0x3ffff) >> 4;
  {element} d[{count}];
#pragma unroll
  for (int i = 0; i < {count}; ++i) d[i] = start[i * 128 + t];
  ptx::wgmma_fence();
  ptx::{name}{template}(d, a_operand, b_operand, {accumulate});
  ptx::wgmma_commit();
  ptx::{name}{template}(d, a_operand, b_operand, true);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::warpgroup_fence_operand(d);
#pragma unroll
  for (int i = 0; i < {count}; ++i) out[i * 128 + t] = d[i];
"""

_RS = (
    _SS.replace("  for (int i = t; i < {a_units}; i += 128) tiles[i] = reinterpret_cast<const uint4*>(a)[i];\n", "")
    .replace("  const unsigned long long a_operand = {a_descriptor}ull | ((base + {a_start}) & 0x3ffff) >> 4;\n", "")
    .replace(
        "  ptx::wgmma_fence();\n",
        """  unsigned a_operand[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) a_operand[i] = a[i * 128 + t];
  ptx::wgmma_fence();
""",
    )
)


def product(
    kind: str,
    n: int,
    *,
    total: str = "f32",
    a: tuple[bool, int, int] | None = (False, 128, 0),
    b: tuple[bool, int, int] = (False, 128, 0),
    accumulate: bool = True,
    noise: bool = False,
) -> Case:
    """`a` and `b` are (transposed, swizzle, step); a None: A in registers. `noise`: in the bits that tf32 does not have."""
    depth, _ = _KINDS[kind]
    random = np.random.default_rng(n)
    left = random.integers(-3, 4, (64, depth))
    right = random.integers(-3, 4, (n, depth))
    begin = random.integers(-8, 9, (64, n))
    half = total == "f16"
    a_bits, b_bits = encode(left, kind), encode(right, kind)
    if noise:
        a_bits = a_bits | random.integers(0, 1 << 13, a_bits.shape).astype(np.uint32)
        b_bits = b_bits | random.integers(0, 1 << 13, b_bits.shape).astype(np.uint32)
    b_image = image(b_bits, *b)
    a_image = image(a_bits, *a) if a else Image(np.zeros(0, np.uint8), 0, 0)
    sixteen = kind in ("f16", "bf16")
    flags = [str(transposed).lower() for transposed, _, _ in ([a, b] if a else [b])]
    name = f"wgmma_m64n{n}k{depth}_{kind}_{total}" + ("" if a else "_rs")
    body = (_SS if a else _RS).format(
        name=name,
        template=f"<{', '.join(flags)}>" if sixteen else "",
        element="unsigned" if half else "float",
        count=n // 4 if half else n // 2,
        a_units=len(a_image.data) // 16,
        b_units=len(b_image.data) // 16,
        a_descriptor=a_image.descriptor,
        b_descriptor=b_image.descriptor,
        a_start=a_image.start,
        b_start=len(a_image.data) + b_image.start,
        accumulate=str(accumulate).lower(),
    )
    sums = 2 * (left @ right.T) + (begin if accumulate else 0)

    def layout(which: tuple[bool, int, int] | None) -> str:
        return f"{'mn' if which[0] else 'k'}{which[1]}" + (f"+{which[2]}" if which[2] else "") if which else "registers"

    return case(
        f"{name}-{layout(a)}-{layout(b)}" + ("" if accumulate else "-first") + ("-noise" if noise else ""),
        body,
        {
            "a": a_image.data.view(np.int32) if a else registers(a_bits),
            "b": b_image.data.view(np.int32),
            "start": accumulators(begin, half),
        },
        {"out": accumulators(sums, half)},
        shared=len(a_image.data) + len(b_image.data),
    )


def cases() -> list[Case]:
    """Layouts of A and of B, then shapes, dtypes and registers."""
    k, mn = (False, 128, 0), (True, 128, 0)
    found = [
        *(product("f16", n) for n in (8, 64, 104, 256)),
        *(product("f16", n, a=mn, b=mn) for n in (8, 64, 104, 256)),
        *(product("f16", 64, a=a, b=b) for a in (k, mn) for b in (k, mn) if a != b),
        *(product("f16", 104, a=(False, span, 0), b=(False, span, 0)) for span in (0, 32, 64)),
        *(product("f16", 104, a=(True, span, 0), b=(True, span, 0)) for span in (0, 32, 64)),
        *(
            product("f16", 40, a=(False, span, step), b=(False, span, step))
            for span, step in ((128, 1), (128, 3), (64, 1))
        ),
        product("f16", 16, accumulate=False),
        *(product("f16", n, total="f16", a=k, b=b) for n, b in ((8, k), (64, mn), (104, k), (256, mn))),
        *(product("bf16", n, a=a, b=b) for n, a, b in ((8, mn, k), (64, k, k), (104, k, mn), (256, mn, mn))),
        *(product(kind, n) for kind in ("tf32", "e4m3", "e5m2") for n in (8, 64, 104, 256)),
        *(
            product(kind, 24, a=(False, span, 0), b=(False, span, 0))
            for kind in ("tf32", "e4m3")
            for span in (0, 32, 64)
        ),
        product("tf32", 64, noise=True),
        *(product("f16", n, a=None, b=b) for n, b in ((8, k), (64, mn), (104, mn), (256, k))),
        *(product("f16", 64, total="f16", a=None, b=b) for b in (k, mn)),
        *(product(kind, 64, a=None) for kind in ("bf16", "tf32", "e4m3", "e5m2")),
        product("bf16", 104, a=None, b=mn),
        product("tf32", 104, a=None, noise=True),
    ]
    assert len({c.name for c in found}) == len(found)
    return found


CASES = cases()

"""Bulk copies and TMA: every rank, every swizzle, boxes over every edge, multicast."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from ptx_cases import Case, case, shown

from kgen.dsl.types import tf32

#: Sizes of the tensor and of the box, the contiguous axis first, in the elements below.
_SIZES = (40, 13, 7, 5, 3)
_BOX = (32, 8, 3, 2, 2)
_AT = {"inside": (0, 0, 0, 0, 0), "below": (-8, -3, -1, -1, -1), "above": (24, 9, 5, 4, 2), "beyond": (40, 20, 0, 0, 0)}


def ramp(shape: tuple[int, ...], kind: type) -> np.ndarray:
    """Different numbers, as far as the type has them."""
    count = int(np.prod(shape))
    return (np.arange(count) % 2039 + 1).astype(kind).reshape(shape)


def swizzle(rows: np.ndarray, span: int) -> np.ndarray:
    """Bytes as TMA lays them out: 16-byte units of a span exchanged by the bits of their address above 7."""
    flat = np.ascontiguousarray(rows).view(np.uint8).reshape(-1, 16)
    if span == 0:
        return flat.reshape(-1)
    address = np.arange(len(flat)) * 16
    to = (address ^ (address >> 3 & span - 16)) // 16
    out = np.empty_like(flat)
    out[to] = flat
    return out.reshape(-1)


def box_of(array: np.ndarray, at: tuple[int, ...], box: tuple[int, ...]) -> np.ndarray:
    """The box at a place, both the contiguous axis first, with zeros beyond the array."""
    out = np.zeros(box[::-1], array.dtype)
    for index in itertools.product(*(range(n) for n in box[:0:-1])):
        row = [start + i for start, i in zip(at[:0:-1], index)]
        if all(0 <= r < n for r, n in zip(row, array.shape)):
            first, last = max(0, -at[0]), min(box[0], array.shape[-1] - at[0])
            if first < last:
                out[(*index, slice(first, last))] = array[(*row, slice(at[0] + first, at[0] + last))]
    return out


def put_box(array: np.ndarray, at: tuple[int, ...], values: np.ndarray) -> np.ndarray:
    """The array with a box written to a place, as far as it lies within."""
    out = array.copy()
    for index in np.ndindex(values.shape):
        place = tuple(start + i for start, i in zip(at[::-1], index))
        if all(0 <= p < n for p, n in zip(place, array.shape)):
            out[place] = values[index]
    return out


_LOAD = """  const unsigned barrier = base + {bytes};
  if (t == 0) {{
    ptx::tma_prefetch(map_x);
    ptx::mbarrier_init(barrier, 1);
    ptx::mbarrier_init_fence();
  }}
  __syncthreads();
  if (t == 0) {{
    const int at[] = {{{at}}};
    ptx::mbarrier_arrive_expect(barrier, {bytes});
    ptx::tma_load(base, map_x, barrier, at);
  }}
  ptx::mbarrier_wait(barrier, 0);
  for (int i = t; i < {bytes} / 4; i += 128) out[i] = reinterpret_cast<const int*>(shared)[i];
"""

_STORE = """  for (int i = t; i < {bytes} / 4; i += 128) reinterpret_cast<int*>(shared)[i] = x[i];
  ptx::fence_proxy_async();
  __syncthreads();
  if (t == 0) {{
    const int at[] = {{{at}}};
    ptx::tma_store(map_out, base, at);
    ptx::tma_store_commit();
    ptx::tma_store_wait<0>();
  }}
"""


def _room(rank: int, span: int, kind: type) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and box of a tensor: rows of the box as wide as the swizzle."""
    width = (span or 32 * np.dtype(kind).itemsize) // np.dtype(kind).itemsize
    unit = 16 // np.dtype(kind).itemsize
    return ((width * 5 // 4 + unit - 1) // unit * unit, *_SIZES[1:rank]), (width, *_BOX[1:rank])


def loads_and_stores() -> list[Case]:
    """TMA in both directions: ranks and swizzles against places; then dtypes."""
    found = []
    choices = [
        *((rank, span, place, np.float16) for rank in range(1, 6) for span, place in zip((0, 32, 64, 128), _AT)),
        *((2, span, place, np.float16) for span in (0, 32, 64, 128) for place in _AT),
        *((3, 128, "above", kind) for kind in (np.float32, np.int8, np.int32, np.float64)),
    ]
    for rank, span, place, kind in dict.fromkeys(choices):
        sizes, box = _room(rank, span, kind)
        at = (
            tuple(min(c, s) for c, s in zip(_AT[place], (sizes[0] - 8, *sizes[1:])))
            if place != "beyond"
            else (sizes[0], *(0,) * (rank - 1))
        )
        # A box begins at whole 16 bytes.
        unit = 16 // np.dtype(kind).itemsize
        at = (at[0] // unit * unit, *at[1:rank])
        x = ramp(sizes[::-1], kind)
        name = f"{rank}d-{span}-{place}-{np.dtype(kind).name}"
        values = box_of(x, at, box)
        bytes = values.nbytes
        coordinates = ", ".join(map(str, at))
        found.append(
            case(
                f"tma-load-{name}",
                _LOAD.format(bytes=bytes, at=coordinates),
                {"x": x},
                {"out": swizzle(values, span).view(np.int32)},
                maps=[shown("x", x, box, span)],
                shared=bytes + 16,
            )
        )
        if min(at) < 0:
            continue  # a store may reach beyond the end of the tensor, but may not begin before its start
        box_values = ramp(box[::-1], kind)
        before = np.full(sizes[::-1], 77, kind)
        found.append(
            case(
                f"tma-store-{name}",
                _STORE.format(bytes=bytes, at=coordinates),
                {"x": swizzle(box_values, span).view(np.int32), "out": before},
                {"out": put_box(before, at, box_values)},
                maps=[shown("out", before, box, span, "out")],
                shared=bytes,
            )
        )
    return found


_RING = """  // Tiles of 512 ints go round through two stages: one thread copies, the others add 1 and store by TMA.
  const unsigned full = base + 2 * 2048 + 2 * 2048, empty = full + 16;
  if (t == 0) {
    for (int stage = 0; stage < 2; ++stage) {
      ptx::mbarrier_init(full + stage * 8, 1);
      ptx::mbarrier_init(empty + stage * 8, 128);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (t >= 128) {
    if (t == 128) {
      for (int tile = 0; tile < 7; ++tile) {
        const int stage = tile % 2;
        ptx::mbarrier_wait(empty + stage * 8, tile / 2 % 2 ^ 1);
        ptx::mbarrier_arrive_expect(full + stage * 8, 2048);
        if (tile % 4 == 3) {
          ptx::bulk_load_evict_last(base + stage * 2048, x + tile * 512, 2048, full + stage * 8);
        } else if (tile % 2) {
          ptx::bulk_load(base + stage * 2048, x + tile * 512, 2048, full + stage * 8);
        } else {
          const int at[] = {0, tile * 16};
          ptx::tma_load(base + stage * 2048, map_y, full + stage * 8, at);
        }
      }
    }
  } else {
    for (int tile = 0; tile < 7; ++tile) {
      const int stage = tile % 2;
      ptx::mbarrier_wait(full + stage * 8, tile / 2 % 2);
      int4 v = reinterpret_cast<const int4*>(shared)[stage * 128 + t];
      ptx::mbarrier_arrive(empty + stage * 8);
      if (t == 0) ptx::tma_store_wait<1>();
      ptx::named_barrier_sync<1, 128>();
      v.x += 1, v.y += 1, v.z += 1, v.w += 1;
      reinterpret_cast<int4*>(shared)[256 + stage * 128 + t] = v;
      ptx::fence_proxy_async();
      ptx::named_barrier_sync<1, 128>();
      if (t == 0) {
        const int at[] = {0, tile * 16};
        ptx::tma_store(map_out, base + (2 + stage) * 2048, at);
        ptx::tma_store_commit();
      }
    }
    if (t == 0) ptx::tma_store_wait<0>();
  }
"""

_MULTICAST = """  const unsigned barrier = base + {count} * 1024;
  const unsigned rank = ptx::cluster_rank();
  if (t == 0) {{
    ptx::mbarrier_init(barrier, 1);
    ptx::mbarrier_init_fence();
  }}
  ptx::cluster_sync();
  if (t == 0) {{
    const int at[] = {{0, static_cast<int>(blockIdx.x / {count} * {count} + rank) * 8}};
    ptx::mbarrier_arrive_expect(barrier, {tiles} * 1024);
    if (rank < {count}) ptx::tma_load_multicast(base + rank * 1024, map_x, barrier, {mask}, at);
  }}
  ptx::mbarrier_wait(barrier, 0);
  for (int i = t; i < {tiles} * 256; i += 128) out[blockIdx.x * {tiles} * 256 + i] = reinterpret_cast<const int*>(shared)[i];
  ptx::cluster_sync();
"""

_SOME = """  // Block 0 of the cluster sends a box to blocks 1 and 2, in two halves.
  const unsigned barrier = base + 1024;
  const unsigned rank = ptx::cluster_rank();
  if (t == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::mbarrier_init_fence();
    if (rank == 1 || rank == 2) ptx::mbarrier_arrive_expect(barrier, 1024);
  }
  ptx::cluster_sync();
  if (t == 0 && rank == 0) {
    const int first[] = {0, 1, 1}, second[] = {0, 5, 1};
    ptx::tma_load_multicast(base, map_x, barrier, 6, first);
    ptx::tma_load_multicast(base + 512, map_x, barrier, 6, second);
  }
  if (rank == 1 || rank == 2) {
    ptx::mbarrier_wait(barrier, 0);
    for (int i = t; i < 256; i += 128) out[(rank - 1) * 256 + i] = reinterpret_cast<const int*>(shared)[i];
  }
  ptx::cluster_sync();
"""

_RANKS = """  // Block 1 of the cluster sends both a box of each rank.
  const unsigned barrier = base + {bytes};
  if (t == 0) {{
    ptx::mbarrier_init(barrier, 1);
    ptx::mbarrier_init_fence();
    ptx::mbarrier_arrive_expect(barrier, {bytes});
  }}
  ptx::cluster_sync();
  if (t == 0 && ptx::cluster_rank() == 1) {{
    const int at[] = {{{at}}};
    ptx::tma_load_multicast(base, map_x, barrier, 3, at);
  }}
  ptx::mbarrier_wait(barrier, 0);
  for (int i = t; i < {bytes} / 4; i += 128) out[blockIdx.x * {bytes} / 4 + i] = reinterpret_cast<const int*>(shared)[i];
  ptx::cluster_sync();
"""

_REUSED = """  // One slab of shared memory for one store after the other.
  int4* const slab = reinterpret_cast<int4*>(shared);
  for (int tile = 0; tile < 8; ++tile) {
    for (int i = t; i < 1024; i += 128) slab[i] = reinterpret_cast<const int4*>(x)[tile * 1024 + i];
    ptx::fence_proxy_async();
    __syncthreads();
    if (t == 0) {
      const int at[] = {0, tile * 128};
      ptx::tma_store(map_out, base, at);
      ptx::tma_store_commit();
      ptx::tma_store_wait<0>();
    }
    __syncthreads();
  }
"""

_GLOBAL = """  // What the block has written to global memory comes back by a bulk copy.
  scratch[t] = x[t] * 2;
  if (t == 0) {
    ptx::mbarrier_init(base + 512, 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (t == 0) {
    ptx::fence_proxy_async_global();
    ptx::mbarrier_arrive_expect(base + 512, 512);
    ptx::bulk_load(base, scratch, 512, base + 512);
  }
  ptx::mbarrier_wait(base + 512, 0);
  out[t] = reinterpret_cast<const int*>(shared)[127 - t];
"""

_ADDED = """  // Copies that add to what the block has written to global memory.
  float* const tile = reinterpret_cast<float*>(shared);
  out[t] = x[t];
  tile[t] = 2 * x[t];
  ptx::fence_proxy_async();
  ptx::fence_proxy_async_global();
  __syncthreads();
  if (t == 0) {
    for (int i = 0; i < 2; ++i) {
      ptx::bulk_add_f32(out, base, 512);
      ptx::tma_store_commit();
    }
    ptx::tma_store_complete();
  }
"""


def pipelines() -> list[Case]:
    """Copies through a ring of stages, and to several blocks at once."""
    x = ramp((7 * 16, 32), np.int32)
    found = [
        case(
            "ring",
            _RING,
            {"x": x.reshape(-1), "y": x},
            {"out": x + 1},
            maps=[shown("y", x, (32, 16)), shown("out", x, (32, 16), access="out")],
            shared=4 * 2048 + 32,
            threads=256,
        )
    ]
    for count in (2, 4):
        x = ramp((2 * count * 8, 32), np.int32)
        tiles = x.reshape(2, count, 8, 32)
        out = np.stack([swizzle(tiles[b // count], 128).view(np.int32).reshape(-1) for b in range(2 * count)])
        found.append(
            case(
                f"multicast-{count}",
                _MULTICAST.format(count=count, tiles=count, mask=(1 << count) - 1),
                {"x": x},
                {"out": out},
                maps=[shown("x", x, (32, 8), 128)],
                shared=count * 1024 + 16,
                grid=2 * count,
                cluster=count,
            )
        )
    x = ramp((3, 9, 32), np.int32)
    sent = np.tile(x[1, 1:9].reshape(-1), 2)
    found.append(
        case(
            "multicast-to-some",
            _SOME,
            {"x": x},
            {"out": sent},
            maps=[shown("x", x, (32, 4, 1))],
            shared=1040,
            grid=4,
            cluster=4,
        )
    )
    for rank in range(2, 6):
        sizes, box, at = (40, *_SIZES[1:rank]), _BOX[:rank], (8, 4, 3, 2, 1)[:rank]
        x = ramp(sizes[::-1], np.int32)
        values = box_of(x, at, box)
        found.append(
            case(
                f"multicast-{rank}d",
                _RANKS.format(bytes=values.nbytes, at=", ".join(map(str, at))),
                {"x": x},
                {"out": np.tile(values.reshape(-1), 2)},
                maps=[shown("x", x, box)],
                shared=values.nbytes + 16,
                grid=2,
                cluster=2,
            )
        )
    x = ramp((8 * 128, 32), np.int32)
    found.append(
        case(
            "reused",
            _REUSED,
            {"x": x.reshape(-1)},
            {"out": x},
            maps=[shown("out", x, (32, 128), access="out")],
            shared=16384,
        )
    )
    x = ramp((128,), np.int32)
    found.append(case("global-proxy", _GLOBAL, {"x": x}, {"scratch": 2 * x, "out": 2 * x[::-1]}, shared=528))
    added = ramp((128,), np.float32)
    found.append(case("bulk-add", _ADDED, {"x": added}, {"out": 5 * added}, shared=512))
    return found


def rounding() -> Case:
    """A tensor map of tf32: what it loads is rounded to the nearest, a tie to either side (there is none here)."""
    steps = np.array([0, 0.499, 0.501, 1, 1.499, 1.501, -0.499, 512])
    rounded = np.array([0, 0, 1, 1, 1, 2, -0.5, 512])  # below a power of two steps are half as long
    x, out = ((2.0 ** np.arange(-4, 4)[:, None] * (1 + row * 2.0**-10)).astype(np.float32) for row in (steps, rounded))
    map, extent = shown("x", x, (8, 8), 32)
    swizzled = swizzle(out, 32).view(np.int32)
    return case(
        "tf32", _LOAD.format(bytes=256, at="0, 0"), {"x": x}, {"out": swizzled}, maps=[(replace(map, dtype=tf32), extent)],
        shared=272,
    )  # fmt: skip


CASES = [*loads_and_stores(), *pipelines(), rounding()]

"""Barriers, clusters and flags: who waits for whom, and what is seen afterwards."""

from __future__ import annotations

import numpy as np
from ptx_cases import Case, case

_WORDS = np.arange(256, dtype=np.int32) * 3 + 1

_MBARRIER = """  const unsigned full = base + 1024, empty = full + 8;
  int* const tile = reinterpret_cast<int*>(shared);
  if (t == 0) {
    ptx::mbarrier_init(full, 128);
    ptx::mbarrier_init(empty, 128);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  for (int round = 0; round < 5; ++round) {
    if (t < 128) {
      ptx::mbarrier_wait(empty, round % 2 ^ 1);
      tile[t] = x[t] + round;
      ptx::mbarrier_arrive(full);
    } else {
      ptx::mbarrier_wait(full, round % 2);
      out[round * 128 + t - 128] = tile[255 - t];
      ptx::mbarrier_arrive(empty);
    }
  }
"""

_COPIES = """  // Copies of 64 threads count as arrivals beside that of a thread without any.
  const unsigned barrier = base + 1024;
  if (t == 0) {
    ptx::mbarrier_init(barrier, 65);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  for (int round = 0; round < 3; ++round) {
    if (t < 64) {
      ptx::cp_async<4>(base + t * 4, x + t + round * 16, t < 60 ? 4 : 0);
      ptx::cp_async<4>(base + 256 + t * 4, x + 127 - t);
      ptx::mbarrier_arrive_copies(barrier);
    } else if (t == 64) {
      ptx::mbarrier_arrive(barrier);
    }
    ptx::mbarrier_wait(barrier, round % 2);
    const int* const tile = reinterpret_cast<int*>(shared);
    out[round * 128 + t] = tile[t];
    __syncthreads();
  }
"""

_NAMED = """  int* const tile = reinterpret_cast<int*>(shared);
  // Warps 0 and 1 hand tiles to warps 2 and 3 and go on; barrier 3 is for a warp pair alone.
  for (int round = 0; round < 3; ++round) {
    if (t < 64) {
      if (round > 0) ptx::named_barrier_sync<2, 128>();
      tile[t] = x[t] * (round + 1);
      ptx::named_barrier_arrive<1, 128>();
    } else {
      ptx::named_barrier_sync<1, 128>();
      const int v = tile[127 - t];
      if (round < 2) ptx::named_barrier_arrive<2, 128>();
      tile[64 + t] = v;
      ptx::named_barrier_sync<3, 64>();
      out[round * 64 + t - 64] = tile[64 + (t ^ 32)];
      ptx::named_barrier_sync<3, 64>();
    }
  }
"""

_ARRIVES = """  // Who arrives does not wait: what the others wait for before they come is done after it.
  const unsigned barrier = base + 512;
  if (t == 0) {
    ptx::mbarrier_init(barrier, 64);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  int* const tile = reinterpret_cast<int*>(shared);
  if (t < 64) {
    tile[t] = x[t];
    ptx::named_barrier_arrive<1, 128>();
    ptx::mbarrier_arrive(barrier);
  } else {
    ptx::mbarrier_wait(barrier, 0);
    ptx::named_barrier_sync<1, 128>();
    out[t - 64] = tile[127 - t];
  }
"""

_REMOTE = """  // Each block waits until every block of the cluster has told it so, twice.
  const unsigned barrier = base + 16;
  const unsigned rank = ptx::cluster_rank();
  if (t == 0) {
    ptx::mbarrier_init(barrier, {count});
    ptx::mbarrier_init_fence();
  }
  ptx::cluster_sync();
  for (int round = 0; round < 2; ++round) {
    if (t < {count}) {
      ptx::store_cluster(ptx::cluster_map(base, t) + 32 + (round * {count} + rank) * 4, x[rank] + round * 100 + t);
      ptx::mbarrier_arrive_remote(barrier, t);
    }
    ptx::mbarrier_wait(barrier, round);
    if (t < {count}) out[(blockIdx.x * 2 + round) * {count} + t] = reinterpret_cast<int*>(shared)[8 + round * {count} + t];
    __syncthreads();  // no thread may still wait for this round when the next one ends
  }
  ptx::cluster_sync();
"""

_SENT = """  // Each block waits for what every block of the cluster has sent it, in pieces of each width, twice.
  const unsigned barrier = base + 2048;
  const unsigned rank = ptx::cluster_rank();
  if (t == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::mbarrier_init_fence();
  }
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();  // all blocks have started, and their mbarriers are there
  for (int round = 0; round < 2; ++round) {
    if (t < {count}) {
      const unsigned there = ptx::cluster_map(base, t) + (round * {count} + rank) * 32, bell = ptx::cluster_map(barrier, t);
      const unsigned v = x[rank] + round * 100 + t;
      ptx::store_cluster_async(there, make_uint4(v, v + 1, v + 2, v + 3), bell);
      ptx::store_cluster_async(there + 16, make_uint2(v + 4, v + 5), bell);
      ptx::store_cluster_async(there + 24, v + 6, bell);
    }
    if (t == 0) ptx::mbarrier_arrive_expect(barrier, {count} * 28);
    ptx::mbarrier_wait(barrier, round);
    const unsigned* const sent = reinterpret_cast<const unsigned*>(shared) + round * {count} * 8;
    if (t < {count}) {
      unsigned sum = 0;
      for (int i = 0; i < 7; ++i) sum += sent[t * 8 + i];
      out[(blockIdx.x * 2 + round) * {count} + t] = sum;
    }
    __syncthreads();  // no thread may still wait for this round when the next one ends
    ptx::cluster_sync();
  }
"""

_DISTRIBUTED = """  // Values of each width go to the next block, and are fetched from the one after it.
  const unsigned rank = ptx::cluster_rank();
  const unsigned next = ptx::cluster_map(base, (rank + 1) % {count});
  const int i = blockIdx.x * 32 + t;
  ptx::cluster_sync();  // the next block has started
  if (t < 32) {
    ptx::store_cluster(next + t * 4, x[i]);
    ptx::store_cluster(next + 128 + t * 4, static_cast<float>(x[i]));
    ptx::store_cluster(next + 256 + t * 8, make_float2(x[i], x[i] + 1));
    ptx::store_cluster(next + 512 + t * 16, make_float4(x[i], 2, 3, x[i] + 4));
    ptx::store_cluster(next + 1024 + t * 16, make_uint4(x[i], 5, 6, 7));
  }
  ptx::cluster_arrive();
  const int spare = t * 2;
  ptx::cluster_wait();
  if (t < 32) {
    const float2 pair = ptx::load_cluster<float2>(next + 256 + t * 8);
    const float4 four = ptx::load_cluster<float4>(next + 512 + t * 16);
    const uint4 words = ptx::load_cluster<uint4>(next + 1024 + t * 16);
    const float one = ptx::load_cluster<float>(next + 128 + t * 4);
    const float floats = one + pair.x + pair.y + four.x + four.y + four.z + four.w;
    out[i] = ptx::load_cluster<int>(next + t * 4) + static_cast<int>(floats) + words.x + words.y + words.z + words.w +
             ptx::load_cluster<unsigned>(next + t * 4) + spare;
  }
  ptx::cluster_sync();
"""

_FLAGS = """  // Block after block adds to what the one before has left; `counters` ends as it began.
  __shared__ int mine;
  if (blockIdx.x > 0) {
    if (t == 0) ptx::wait_for(counters + blockIdx.x, 1);
    __syncthreads();
  }
  const int before = blockIdx.x > 0 ? __ldcg(out + (blockIdx.x - 1) * 128 + t) : 0;
  __stcg(out + blockIdx.x * 128 + t, before + x[t] + static_cast<int>(blockIdx.x));
  __threadfence();
  __syncthreads();
  if (t == 0) {
    mine = ptx::atomic_add_release(counters, 1);
    tickets[mine] = 1;
    if (blockIdx.x > 0) counters[blockIdx.x] = 0;
    if (blockIdx.x + 1 < gridDim.x) ptx::store_release(counters + blockIdx.x + 1, 1);
    while (mine + 1 == static_cast<int>(gridDim.x) && ptx::load_acquire(counters) != static_cast<int>(gridDim.x)) {}
    if (mine + 1 == static_cast<int>(gridDim.x)) counters[0] = 0;
  }
"""

_RED = """  // Threads add vectors of every width at places that several share; each element is added by itself.
  const float one = static_cast<float>(x[t] % 5);
  ptx::red_add_f32<2>(floats + t % 8 * 2, {one, one + 1});
  ptx::red_add_f32<4>(floats + 16 + t % 4 * 4, {one, 2, one, 4});
  const __half2 h = __floats2half2_rn(one, one + 1);
  const unsigned w = reinterpret_cast<const unsigned&>(h);
  ptx::red_add_f16x2<1>(halves + t % 8 * 2, {w});
  const unsigned swapped = w >> 16 | w << 16;
  ptx::red_add_f16x2<2>(halves + 16 + t % 4 * 4, {w, swapped});
  ptx::red_add_f16x2<4>(halves + 32 + t % 2 * 8, {w, swapped, 0u, w});
  // 1.0 and 2.0 as bfloats.
  ptx::red_add_bf16x2<1>(bfloats + t % 8, {0x40003f80u});
  ptx::red_add_bf16x2<2>(bfloats + 8 + t % 4 * 2, {0x40003f80u, 0x3f804000u});
  ptx::red_add_bf16x2<4>(bfloats + 16 + t % 2 * 4, {0x40003f80u, 0u, 0x3f804000u, 0x3f800000u});
"""

_RELAXED = "  out[t] = static_cast<int>(ptx::load_relaxed(reinterpret_cast<const unsigned*>(x) + t));\n"

_RENEWED = """  // The word stays what it was.
  unsigned word = x[t];
  ptx::renew(word);
  out[t] = static_cast<int>(word);
"""

_DEPENDENTS = """  // Launched alone, a kernel has nobody to wait for.
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  out[t] = x[t];
"""

_REGISTERS = """  // The first warpgroup gives registers to the others, which then hold many values at once.
  if (t < 128) {
    ptx::setmaxnreg_dec<24>();
  } else {
    ptx::setmaxnreg_inc<240>();
    float v[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) v[i] = x[i * 128 + t % 128];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 64; ++i) sum += v[i] * v[63 - i];
    out[t - 128] = sum;
  }
"""


def cases() -> list[Case]:
    """One for each function, at least."""
    x = _WORDS[:128]
    rounds = np.stack([x[::-1] + r for r in range(5)]).astype(np.int32)
    copied = np.stack([np.r_[x[16 * r :][:60], [0] * 4, x[:63:-1]] for r in range(3)]).astype(np.int32)
    named = np.stack([np.concatenate([(x[:64] * (r + 1))[::-1][32:], (x[:64] * (r + 1))[::-1][:32]]) for r in range(3)])
    found = [
        case("mbarrier-rounds", _MBARRIER, {"x": x}, {"out": rounds}, shared=1040, threads=256),
        case("mbarrier-copies", _COPIES, {"x": x}, {"out": copied}, shared=1032),
        case("arrives", _ARRIVES, {"x": x}, {"out": x[:64][::-1].copy()}, shared=520),
        case("named-barriers", _NAMED, {"x": x}, {"out": named.astype(np.int32)}, shared=1024),
    ]
    for count in (2, 4, 8):
        told = np.array(
            [[[x[r] + round * 100 + b % count for r in range(count)] for round in range(2)] for b in range(2 * count)],
            np.int32,
        )
        found.append(
            case(
                f"remote-arrive-{count}",
                _REMOTE.replace("{count}", str(count)),
                {"x": x},
                {"out": told},
                grid=2 * count,
                cluster=count,
                shared=256,
            )
        )
        found.append(
            case(
                f"sent-{count}",
                _SENT.replace("{count}", str(count)),
                {"x": x},
                {"out": 7 * told + 21},
                grid=2 * count,
                cluster=count,
                shared=2056,
            )
        )
        values = np.arange(2 * count * 32, dtype=np.int32).reshape(-1, 32)
        # What block b loads from the next block is what b itself has stored there.
        sums = 2 * values + (values + 2 * values + 1 + 2 * values + 9) + values + 18 + 2 * np.arange(32)
        found.append(
            case(
                f"distributed-{count}",
                _DISTRIBUTED.replace("{count}", str(count)),
                {"x": values.reshape(-1)},
                {"out": sums.astype(np.int32)},
                grid=2 * count,
                cluster=count,
                shared=1536,
            )
        )
    chain = np.cumsum(np.stack([x + b for b in range(6)]), axis=0).astype(np.int32)
    counters = np.zeros(8, np.int32)
    found.append(
        case(
            "flags",
            _FLAGS,
            {"x": x, "counters": counters},
            {"out": chain, "counters": counters, "tickets": np.ones(6, np.int32)},
            grid=6,
            cooperative=True,
        )
    )
    found.append(case("relaxed", _RELAXED, {"x": x}, {"out": x}))
    found.append(case("renew", _RENEWED, {"x": x}, {"out": x}))
    found.append(case("griddepcontrol", _DEPENDENTS, {"x": x}, {"out": x}))
    found.append(_red())
    v = np.random.default_rng(0).integers(-4, 5, (64, 128)).astype(np.float32)
    two = np.tile((v * v[::-1]).sum(0), 2).astype(np.float32)
    found.append(case("setmaxnreg", _REGISTERS, {"x": v}, {"out": two}, threads=384))
    return found


def _red() -> Case:
    """Additions of vectors to global memory, by 128 threads."""
    x = _WORDS[:128]
    one = (x % 5).astype(np.float32)
    pairs = np.stack([one, one + 1], axis=1)

    def added(values: np.ndarray, places: int) -> np.ndarray:
        return np.stack([values[place::places].sum(0) for place in range(places)]).reshape(-1)

    floats = [added(pairs, 8), added(np.stack([one, 0 * one + 2, one, 0 * one + 4], axis=1), 4)]
    swapped, nothing = pairs[:, ::-1], 0 * pairs
    quads = np.concatenate([pairs, swapped, nothing, pairs], axis=1)
    halves = [added(pairs, 8), added(np.concatenate([pairs, swapped], axis=1), 4), added(quads, 2)]
    unit = np.tile(np.array([1, 2], np.float32), (128, 1))
    both = np.tile(np.array([1, 2, 2, 1], np.float32), (128, 1))
    last = np.tile(np.array([1, 2, 0, 0, 2, 1, 0, 1], np.float32), (128, 1))
    bfloats = np.concatenate([added(unit, 8), added(both, 4), added(last, 2)]).astype(np.float32)
    words = (bfloats.view(np.uint32) >> 16).astype(np.uint16).view(np.int32)
    return case(
        "red-add",
        _RED,
        {
            "x": x,
            "floats": np.zeros(32, np.float32),
            "halves": np.zeros(48, np.float16),
            "bfloats": np.zeros(24, np.int32),
        },
        {"floats": np.concatenate(floats), "halves": np.concatenate(halves).astype(np.float16), "bfloats": words},
    )


CASES = cases()

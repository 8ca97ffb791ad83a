"""What blocks do to each other through global memory: right kernels run, and with one line changed they are refused."""

# ruff: noqa: E501 (tables and CUDA)
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from ptx_cases import Case, case, shown
from ptx_runs import run

from kgen.dsl.errors import ArgumentError, EmulatorError
from kgen.emulator import Options

G, T = 5, 64
_X = np.arange(G * T, dtype=np.int32) % 7
_BY_BLOCK = _X.reshape(G, T)
_ZERO = np.zeros(T, np.int32)
_RACE = "race on global memory"


@dataclass(frozen=True)
class Pair:
    """A right kernel of G blocks of T threads, and changes to its text: old, new, and what is said then."""

    body: str
    given: Mapping[str, np.ndarray]
    expected: Mapping[str, np.ndarray]
    faults: Mapping[str, tuple[str, str, str]]
    launch: Mapping[str, object] = field(default_factory=dict)

    def case(self) -> Case:
        return case("pair", self.body, {"x": _X, **self.given}, self.expected, grid=G, threads=T, **self.launch)  # type: ignore[arg-type]

    def broken(self, name: str) -> tuple[Case, str]:
        old, new, says = self.faults[name]
        right = self.case()
        assert right.source.body.count(old) == 1
        return replace(right, source=replace(right.source, body=right.source.body.replace(old, new))), says


_LAST_BLOCK = """  partial[blockIdx.x * 64 + t] = x[blockIdx.x * 64 + t];
  __threadfence();  // of the parts
  __syncthreads();
  bool last = false;
  if (t == 0) last = atomicAdd(counter, 1) == gridDim.x - 1;
  if (!__syncthreads_or(last)) return;
  if (t == 0) *counter = 0;
  __threadfence();  // of the counter
  int sum = 0;
  for (int b = 0; b < gridDim.x; ++b) sum += __ldcg(partial + b * 64 + (t + 1) % 64);
  out[t] = sum;
"""
_WARP_FLAG = """  // The first lane of each warp tells for all of its warp.
  partial[blockIdx.x * 64 + t] = x[blockIdx.x * 64 + t];
  __syncwarp();
  if (t % 32 == 0) {
    __threadfence();
    atomicAdd(counter, 1);
  }
  if (blockIdx.x == 0) {
    while (ptx::load_acquire(counter) != 2 * gridDim.x) __nanosleep(20);
    for (int b = 0; b < gridDim.x; ++b) out[t] = b == 0 ? partial[t] : out[t] + partial[b * 64 + t];
  }
"""
_FLAGS = """  // Every block but the first leaves its sums; the first waits for them.
  if (blockIdx.x > 0) {
    partial[blockIdx.x * 64 + t] = x[blockIdx.x * 64 + t];
    __syncthreads();  // all have left theirs
    if (t == 0) ptx::store_release(counter + blockIdx.x, 1);
    return;
  }
  int sum = x[t];
  for (int b = 1; b < gridDim.x; ++b) {
    ptx::wait_for(counter + b, 1);
    sum += partial[b * 64 + (t + 9) % 64] * 0 + partial[b * 64 + t];
    __syncthreads();  // all have waited
    if (t == 0) counter[b] = 0;
  }
  out[t] = sum;
"""
_MEETING = """  // Block 0 sets the sums to what they begin with, all add to them, block 1 finishes them.
  if (blockIdx.x == 0) out[t] = 1;
  const auto meet = [&](int times) {
    __threadfence();
    __syncthreads();
    if (t == 0) {
      ptx::atomic_add_release(counter, 1);
      while (ptx::load_acquire(counter) < times * static_cast<int>(gridDim.x)) __nanosleep(20);
    }
    __syncthreads();
  };
  meet(1);  // before the additions
  atomicAdd(out + t, x[blockIdx.x * 64 + t]);
  meet(2);  // after the additions
  if (blockIdx.x == 1) out[t] = __ldcg(out + t) * 2;
  if (t == 0 && ptx::atomic_add_release(counter, 1) == 3 * gridDim.x - 1) *counter = 0;
"""
_COPIED = """  // All blocks copy x, and then load what another one copied.
  partial[blockIdx.x * 64 + t] = x[blockIdx.x * 64 + t];
  // By whoever copies, or
  __syncthreads();
  if (t == 0) {
    ptx::mbarrier_init(base + 256, 1);
    ptx::mbarrier_init_fence();
    ptx::atomic_add_release(counter, 1);
    while (ptx::load_acquire(counter) < gridDim.x) __nanosleep(20);
    ptx::fence_proxy_async_global();  // by whoever loads
    ptx::mbarrier_arrive_expect(base + 256, 256);
    ptx::bulk_load(base, partial + (blockIdx.x + 1) % gridDim.x * 64, 256, base + 256);
  }
  __syncthreads();
  ptx::mbarrier_wait(base + 256, 0);
  atomicAdd(out + t, reinterpret_cast<const int*>(shared)[t]);
"""
_STORED = """  int* const tile = reinterpret_cast<int*>(shared);
  tile[t] = x[blockIdx.x * 64 + t];
  ptx::fence_proxy_async();
  __syncthreads();
  const int at[] = {0, static_cast<int>(blockIdx.x)};
  if (t == 0) {
    ptx::tma_store(map_y, base, at);
    ptx::tma_store_commit();
    ptx::tma_store_wait<0>();
  }
  __syncthreads();
  out[blockIdx.x * 64 + t] = tile[t];
"""
_CLUSTER = """  const unsigned next = ptx::cluster_map(base, 1 - ptx::cluster_rank());
  ptx::cluster_sync();  // both have started
  ptx::store_cluster(next + t * 4, x[blockIdx.x * 64 + t]);
  ptx::cluster_sync();
  out[blockIdx.x * 64 + t] = reinterpret_cast<const int*>(shared)[t];
"""
_OVERLAP = """  if (t == 0) ptx::griddepcontrol_wait();
  __syncthreads();
  out[blockIdx.x * 64 + t] = x[blockIdx.x * 64 + t];
  ptx::griddepcontrol_launch_dependents();
"""

_PARTS = {"partial": np.zeros(G * T, np.int32), "counter": np.zeros(8, np.int32)}
_SUMS = _BY_BLOCK.sum(0, dtype=np.int32)
_Y = np.zeros((G, T), np.int32)
PAIRS = {
    "add": Pair("  atomicAdd(out + t, x[blockIdx.x * 64 + t]);\n", {"out": _ZERO}, {"out": _SUMS},
                {"plain": ("atomicAdd(out + t, x[blockIdx.x * 64 + t])", "out[t] += x[blockIdx.x * 64 + t]", _RACE)}),
    "and": Pair("  if (t % 32 == 0) atomicAnd(out, ~(1 << blockIdx.x));\n", {"out": _ZERO - 1}, {"out": np.where(np.arange(T) == 0, -1 << G, -1).astype(np.int32)},
                {"plain": ("atomicAnd(out, ~(1 << blockIdx.x))", "*out &= ~(1 << blockIdx.x)", _RACE)}),
    "within": Pair("  out[blockIdx.x * 64 + t] = x[blockIdx.x * 64 + t];\n  __syncthreads();\n  partial[blockIdx.x * 64 + t] = out[blockIdx.x * 64 + 63 - t];\n",
                   {"out": 0 * _X}, {"out": _X, "partial": _BY_BLOCK[:, ::-1].reshape(-1)},
                   {"no-barrier": ("__syncthreads();", "", f"{_RACE}.*with no __syncthreads")}),
    "last-block": Pair(_LAST_BLOCK, _PARTS, {"out": np.roll(_SUMS, -1), "counter": _PARTS["counter"], "partial": _X}, {
        "no-release-fence": ("__threadfence();  // of the parts", "", _RACE),
        "no-barrier": ("__syncthreads();", "", _RACE),
        "no-acquire-fence": ("__threadfence();  // of the counter", "", _RACE),
    }),
    "warp-flag": Pair(_WARP_FLAG, _PARTS, {"out": _SUMS, "counter": np.array([2 * G] + [0] * 7, np.int32), "partial": _X}, {
        "no-syncwarp": ("__syncwarp();", "", _RACE),
        "no-fence": ("__threadfence();", "", _RACE),
    }, {"cooperative": True}),
    "flags": Pair(_FLAGS, _PARTS, {"out": _SUMS, "counter": _PARTS["counter"], "partial": np.where(np.arange(G * T) < T, 0, _X).astype(np.int32)}, {
        "raised-too-early": ("__syncthreads();  // all have left theirs", "", _RACE),
        "cleared-too-early": ("__syncthreads();  // all have waited", "", _RACE),
        "plain-flag": ("ptx::store_release(counter + blockIdx.x, 1)", "counter[blockIdx.x] = 1", _RACE),
        "relaxed-flag": ("ptx::store_release(counter + blockIdx.x, 1)", "atomicExch(counter + blockIdx.x, 1)", _RACE),
        "relaxed-wait": ("ptx::wait_for(counter + b, 1)", "while (atomicAdd(counter + b, 0) != 1) __nanosleep(20)", _RACE),
    }, {"cooperative": True}),
    "meeting": Pair(_MEETING, {"counter": _PARTS["counter"]}, {"out": 2 * _SUMS + 2, "counter": _PARTS["counter"]}, {
        "not-before": ("meet(1);  // before the additions", "__syncthreads();", f"{_RACE}|nothing has written"),
        "not-after": ("meet(2);  // after the additions", "__syncthreads();", _RACE),
    }, {"cooperative": True}),
    "copied": Pair(_COPIED, {**_PARTS, "out": _ZERO}, {"out": _SUMS, "counter": np.array([G] + [0] * 7, np.int32), "partial": _X}, {
        "no-fence": ("ptx::fence_proxy_async_global();  // by whoever loads", "", "no fence_proxy_async lies in between"),
        "of-shared-memory": ("ptx::fence_proxy_async_global();  // by whoever loads", "ptx::mbarrier_init_fence();", "no fence_proxy_async lies in between"),
    }, {"cooperative": True, "shared": 512}),
    "stored": Pair(_STORED, {}, {"out": _X, "y": _BY_BLOCK}, {
        "all-to-one-place": ("{0, static_cast<int>(blockIdx.x)}", "{0, 0}", "wrote by a tma_store"),
    }, {"shared": 256, "maps": [shown("y", _Y, (T, 1), access="out")]}),
    "overlap": Pair(_OVERLAP, {}, {"out": _X}, {
        "no-wait": ("ptx::griddepcontrol_wait()", "", "reads 4 bytes .* of x before griddepcontrol_wait"),
        "one-thread-waits": ("__syncthreads();", "", "before griddepcontrol_wait"),
        "written-before": ("if (t == 0) ptx", "if (blockIdx.x == 3) out[192 + t] = 0;\n  if (t == 0) ptx", "writes 4 bytes .* of out before griddepcontrol_wait"),
    }),
}  # fmt: skip
# A cluster of two takes an even number of blocks.
_PAIRED = {"x": _X[: 4 * T]}


def _prepared(made: Case) -> Case:
    """Overlapping where the kernel waits for the one before."""
    launch = made.source.launch
    overlapping = "launch_dependents" in made.source.body
    return replace(made, source=replace(made.source, launch=replace(launch, pdl=overlapping)))


@pytest.mark.parametrize("name", PAIRS)
def test_right_kernels_run(name: str) -> None:
    for seed, threads in ((0, 1), (1, 3), (2, 1), (3, 3)):
        run(_prepared(PAIRS[name].case()), Options(seed=seed, threads=threads, timeout=20))


def test_the_proxy_fence_may_be_on_either_side() -> None:
    right = PAIRS["copied"].case()
    fence = "ptx::fence_proxy_async_global();"
    body = right.source.body.replace(fence, "").replace("  // By whoever copies, or", f"  {fence}")
    run(replace(right, source=replace(right.source, body=body)))


@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name, pair in PAIRS.items() for fault in pair.faults])
def test_faults_are_found_whatever_the_order(name: str, fault: str) -> None:
    broken, says = PAIRS[name].broken(fault)
    for seed, threads in ((0, 1), (1, 3), (2, 1)):
        with pytest.raises(EmulatorError, match=rf"(?s)line \d+.*({says})"):
            run(_prepared(broken), Options(seed=seed, threads=threads, timeout=20))


def test_a_block_of_a_cluster_is_left_alone_until_it_has_started() -> None:
    right = case("cluster", _CLUSTER, _PAIRED, {"out": np.roll(_X[: 4 * T].reshape(2, 2, T), 1, 1).reshape(-1)}, grid=4, threads=T, cluster=2, shared=256)  # fmt: skip
    run(right)
    body = right.source.body.replace("ptx::cluster_sync();  // both have started", "__syncthreads();")
    for seed in range(3):
        with pytest.raises(EmulatorError, match=r"store_cluster: block . of the cluster may not have started yet"):
            run(replace(right, source=replace(right.source, body=body)), Options(seed=seed))


def test_chosen_blocks_run_alone() -> None:
    right = case("some", "  out[blockIdx.x * 64 + t] = x[blockIdx.x * 64 + t];\n", {"x": _X, "out": 0 * _X}, {"out": np.where(np.arange(G * T) // T % 4 < 2, 0, _X)}, grid=G, threads=T)  # fmt: skip
    run(right, blocks=range(2, 4))
    with pytest.raises(ArgumentError, match="blocks are a range within the grid's 5"):
        run(right, blocks=range(2, 6))
    with pytest.raises(ArgumentError, match="all blocks have to run"):
        run(PAIRS["flags"].case(), blocks=range(1))

"""Every fault of asynchronous copies, barriers, clusters and wgmma that the emulator knows is found: a broken kernel each."""

# ruff: noqa: E501 (tables and CUDA)
from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import ptx_sync_cases
import ptx_wgmma_cases
import pytest
from emulated_kernels import aligned
from ptx_cases import Case, pointer, shown, source
from ptx_runs import run

from kgen import emulator
from kgen.dsl.errors import ArgumentError, EmulatorError
from kgen.emulator import Buffer, Map, Options

_INIT = """  const unsigned bar = base + 4096, bar2 = bar + 8;
  int* const tile = reinterpret_cast<int*>(shared);
  const int at[] = {0, 0};
  if (t == 0) {
    ptx::mbarrier_init(bar, 1);
    ptx::mbarrier_init(bar2, 128);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
"""
_LOAD = "if (t == 0) {\n ptx::mbarrier_arrive_expect(bar, 2048);\n ptx::tma_load(base, map_x, bar, at);\n}\n"
_FILL = "for (int i = t; i < 512; i += 128) tile[i] = i;\n"
_STORE = "if (t == 0) {\n ptx::tma_store(map_y, base, at);\n ptx::tma_store_commit();\n}\n"


@dataclass(frozen=True)
class Fault:
    """`body` runs with 128 threads and 4112 bytes of shared memory; x and y are 16 x 32 ints. `mark` tells the line at fault."""

    body: str
    says: tuple[str, ...]
    mark: str = "// HERE"
    cluster: int = 1
    init: bool = True
    modes: tuple[str, ...] = ("late", "eager", "random")


FAULTS = {
    # Copies that nobody waits for
    "read-before-the-wait": Fault(
        _LOAD + "__syncthreads();\nout[t] = tile[t]; // HERE",
        ("reads shared memory", "a copy that arrives on the mbarrier at offset 4096 is under way", "no mbarrier_wait"),
        modes=("late",),
    ),
    "read-without-a-wait": Fault(
        _LOAD
        + "__syncthreads();\nif (t < 32) ptx::mbarrier_wait(bar, 0);\nelse if (t == 64) out[t] = tile[t]; // HERE\n__syncthreads();",
        ("shared memory", "mbarrier at offset 4096"),
        modes=("late", "eager"),
    ),
    "write-before-the-wait": Fault(
        _LOAD + "__syncthreads();\ntile[t] = 1; // HERE\nptx::mbarrier_wait(bar, 0);",
        ("writes", "mbarrier"),
        modes=("late", "eager"),
    ),
    "wait-for-the-wrong-parity": Fault(
        _LOAD + "__syncthreads();\nptx::mbarrier_wait(bar, 1);\nout[t] = tile[t]; // HERE",
        ("shared memory", "mbarrier"),
        modes=("late",),
    ),
    "two-copies-to-one-place": Fault(
        "if (t == 0) {\n ptx::mbarrier_arrive_expect(bar, 4096);\n ptx::tma_load(base, map_x, bar, at);\n ptx::tma_load(base, map_x, bar, at); // HERE\n}\nptx::mbarrier_wait(bar, 0);",
        ("writes", "mbarrier at offset 4096"),
        modes=("late",),
    ),
    "copy-over-what-others-read": Fault(
        _FILL
        + "ptx::fence_proxy_async();\n__syncthreads();\nout[t] = tile[t ^ 1];\n"
        + _LOAD.replace("at);\n}", "at); // HERE\n}")
        + "ptx::mbarrier_wait(bar, 0);",
        ("race on shared memory", "writes offset", "read with no"),
    ),
    "copy-over-ordinary-stores": Fault(
        _FILL + "__syncthreads();\n" + _LOAD.replace("at);\n}", "at); // HERE\n}") + "ptx::mbarrier_wait(bar, 0);",
        ("wrote by ordinary stores", "no fence_proxy_async"),
    ),
    "block-ends-while-a-copy-is-under-way": Fault(
        _LOAD.replace("at);\n}", "at); // HERE\n}"), ("ends while this copy", "is under way"), modes=("late",)
    ),
    "bulk-load-without-a-wait": Fault(
        "if (t == 0) {\n ptx::mbarrier_arrive_expect(bar, 64);\n ptx::bulk_load(base, x, 64, bar);\n}\n__syncthreads();\nout[t] = tile[t % 16]; // HERE",
        ("mbarrier at offset 4096",),
        modes=("late", "eager"),
    ),
    # What copies are given
    "load-misaligned": Fault(
        "if (t == 0) ptx::tma_load(base + 64, map_x, bar, at); // HERE", ("tma_load", "misaligned", "multiple of 128")
    ),
    "load-out-of-bounds": Fault(
        "if (t == 0) ptx::tma_load(base + 2176, map_x, bar, at); // HERE", ("tma_load of 2048 bytes out of bounds",)
    ),
    "load-that-begins-within-16-bytes": Fault(
        "const int odd[] = {2, 0};\nif (t == 0) ptx::tma_load(base, map_x, bar, odd); // HERE",
        ("coordinate 0 is 2, of 4 bytes", "multiple of 16 bytes"),
    ),
    "load-with-too-many-coordinates": Fault(
        "const int far[] = {0, 0, 0};\nif (t == 0) ptx::tma_load(base, map_x, bar, far); // HERE",
        ("3 coordinates for a tensor map of 2 axes",),
    ),
    "map-that-is-none": Fault(
        "ptx::TensorMap none = {};\nif (t == 0) ptx::tma_load(base, none, bar, at); // HERE", ("the TensorMap is none",)
    ),
    "load-over-a-barrier": Fault(
        "if (t == 0) ptx::tma_load(base + 2048 + 16 - 16, map_x, bar, at);\nif (t == 0) tile[1024] = 0; // HERE",
        ("where an mbarrier lies",),
    ),
    "bulk-load-of-odd-size": Fault(
        "if (t == 0) ptx::bulk_load(base, x, 20, bar); // HERE", ("20 bytes", "no multiple of 16")
    ),
    "bulk-load-misaligned": Fault("if (t == 0) ptx::bulk_load(base, x + 1, 16, bar); // HERE", ("misaligned",)),
    "bulk-load-out-of-bounds": Fault(
        "if (t == 0) ptx::bulk_load(base, x + 508, 32, bar); // HERE", ("out of bounds", "byte offset 2032")
    ),
    "store-to-an-input": Fault(
        _FILL + "ptx::fence_proxy_async();\n__syncthreads();\nif (t == 0) ptx::tma_store(map_x, base, at); // HERE",
        ("which is an input",),
    ),
    "load-of-an-unwritten-output": Fault(
        "if (t == 0) ptx::tma_load(base, map_y, bar, at); // HERE", ("of map_y, which nothing has written",)
    ),
    # Stores
    "store-without-a-proxy-fence": Fault(
        _FILL + "__syncthreads();\n" + _STORE.replace("at);", "at); // HERE", 1),
        ("wrote by ordinary stores", "no fence_proxy_async"),
    ),
    "store-with-the-fence-before-the-writes": Fault(
        "ptx::fence_proxy_async();\n" + _FILL + "__syncthreads();\n" + _STORE.replace("at);", "at); // HERE", 1),
        ("no fence_proxy_async",),
    ),
    "store-without-a-barrier": Fault(
        _FILL + "ptx::fence_proxy_async();\n" + _STORE.replace("at);", "at); // HERE", 1), ("shared memory",)
    ),
    "store-of-unwritten-memory": Fault(
        "ptx::fence_proxy_async();\n" + _STORE.replace("at);", "at); // HERE", 1), ("nothing has written",)
    ),
    "source-overwritten-before-the-wait": Fault(
        _FILL + "ptx::fence_proxy_async();\n__syncthreads();\n" + _STORE + "__syncthreads();\ntile[t] = 0; // HERE",
        ("race on shared memory", "a TMA store of thread (0, 0, 0)", "tma_store_wait"),
    ),
    "wait-for-too-few-stores": Fault(
        _FILL
        + "ptx::fence_proxy_async();\n__syncthreads();\n"
        + _STORE
        + "if (t == 0) ptx::tma_store_wait<1>();\n__syncthreads();\ntile[t] = 0; // HERE",
        ("a TMA store of thread (0, 0, 0)",),
    ),
    "source-overwritten-by-another-thread-without-a-barrier": Fault(
        _FILL
        + "ptx::fence_proxy_async();\n__syncthreads();\n"
        + _STORE
        + "if (t == 0) ptx::tma_store_wait<0>();\nif (t == 40) tile[t] = 0; // HERE",
        ("a TMA store of thread (0, 0, 0)",),
    ),
    "store-before-the-start": Fault(
        _FILL
        + "ptx::fence_proxy_async();\n__syncthreads();\nconst int before[] = {0, -8};\n"
        + _STORE.replace("at);", "before); // HERE", 1),
        ("coordinate 1 is -8", "before the start"),
    ),
    "thread-ends-before-its-store": Fault(
        _FILL + "ptx::fence_proxy_async();\n__syncthreads();\nif (t == 0) ptx::tma_store(map_y, base, at); // HERE",
        ("ends while its tma_store",),
    ),
    # mbarriers
    "no-such-barrier": Fault("ptx::mbarrier_arrive(bar); // HERE", ("no mbarrier_init",), init=False),
    "barrier-used-before-a-syncthreads": Fault(
        "if (t == 0) ptx::mbarrier_init(bar, 128);\nptx::mbarrier_arrive(bar); // HERE", ("mbarrier",), init=False
    ),
    "barrier-misaligned": Fault("if (t == 0) ptx::mbarrier_init(base + 4, 1); // HERE", ("misaligned",), init=False),
    "barrier-made-twice": Fault("if (t == 0) ptx::mbarrier_init(bar, 2); // HERE", ("is an mbarrier already",)),
    "barrier-not-shown-to-copies": Fault(
        "if (t == 0) {\n ptx::mbarrier_init(bar, 1);\n ptx::tma_load(base, map_x, bar, at); // HERE\n}",
        ("mbarrier_init_fence is missing",),
        init=False,
    ),
    "count-out-of-range": Fault("if (t == 0) ptx::mbarrier_init(bar, 0); // HERE", ("a count is 1 to",), init=False),
    "barrier-overwritten": Fault("tile[1024 + t % 4] = 0; // HERE", ("where an mbarrier lies",)),
    "one-arrival-too-many": Fault(
        "if (t == 0) {\n ptx::mbarrier_arrive_expect(bar, 16);\n ptx::mbarrier_arrive(bar); // HERE\n}",
        ("one arrival too many", "16 bytes are still expected"),
    ),
    "too-many-bytes-expected": Fault(
        "if (t == 0) ptx::mbarrier_arrive_expect(bar, 1 << 20); // HERE", ("the most is",)
    ),
    "more-bytes-than-expected": Fault(
        "if (t == 0) {\n ptx::mbarrier_arrive_expect(bar, 1024);\n ptx::tma_load(base, map_x, bar, at); // HERE\n}\nptx::mbarrier_wait(bar, 0);",
        ("1024 bytes more", "expects"),
    ),
    "fewer-bytes-than-expected": Fault(
        _LOAD.replace("2048", "4096") + "ptx::mbarrier_wait(bar, 0); // HERE",
        (
            "deadlock",
            "the mbarrier at offset 4096 is in phase 0 (parity 0): 0 of 1 arrivals and 2048 bytes are missing, 128 threads wait",
        ),
    ),
    "bytes-nobody-brings": Fault(
        "if (t == 0) ptx::mbarrier_arrive_expect(bar, 1024);",
        ("the block ends while the mbarrier at offset 4096", "still expects 1024 bytes"),
        mark="ptx::mbarrier_init(bar, 1)",
    ),
    "arrival-missing": Fault(
        "if (t > 0) ptx::mbarrier_arrive(bar2);\nptx::mbarrier_wait(bar2, 0); // HERE",
        ("deadlock", "1 of 128 arrivals and 0 bytes are missing", "mbarrier_wait at offset 4104, parity 0"),
    ),
    "two-phases-at-once": Fault(
        "if (t == 0) ptx::mbarrier_wait(bar, 0); // HERE\nelse if (t == 1) {\n for (int i = 0; i < 300; ++i) __nanosleep(100);\n ptx::mbarrier_arrive(bar);\n ptx::mbarrier_arrive(bar);\n}",
        ("phase 1 ended too",),
    ),
    "race-past-an-mbarrier": Fault(
        "tile[t] = t;\nif (t % 2) ptx::mbarrier_arrive(bar2);\nelse ptx::mbarrier_arrive(bar2);\nif (t < 32) {\n ptx::mbarrier_wait(bar2, 0);\n} else if (t == 64) {\n tile[1] = 5;\n}",
        ("race on shared memory",),
        mark="tile[",
    ),
    "read-behind-the-release": Fault(
        "if (t < 64) tile[t] = t;\nptx::named_barrier_sync<1, 128>();\nif (t == 100) {\n ptx::mbarrier_arrive(bar);\n out[t] = tile[3]; // HERE\n}\nif (t == 3) {\n ptx::mbarrier_wait(bar, 0);\n tile[3] = 0; // HERE\n}",
        ("race on shared memory",),
    ),
    # Named barriers
    "named-barrier-too-few": Fault(
        "if (t < 32) ptx::named_barrier_sync<1, 64>(); // HERE",
        ("deadlock", "to named barrier 1", "32 of 64 threads have come"),
    ),
    "named-barrier-sizes-differ": Fault(
        "if (t < 32) ptx::named_barrier_sync<1, 64>(); // HERE\nelse ptx::named_barrier_sync<1, 96>(); // HERE",
        ("divergent barrier",),
    ),
    "named-barrier-of-part-of-a-warp": Fault(
        "if (t % 32 < 16) ptx::named_barrier_sync<1, 32>(); // HERE", ("lanes 0000ffff have come",)
    ),
    "named-barrier-twice": Fault(
        "if (t < 32) {\n ptx::named_barrier_arrive<1, 64>();\n ptx::named_barrier_arrive<1, 64>(); // HERE\n}",
        ("has come to barrier 1 already",),
    ),
    "race-past-a-named-barrier": Fault(
        "tile[t] = t;\nptx::named_barrier_sync<1, 64>();\n".replace("ptx", "if (t < 64) ptx")
        + "if (t < 64) out[t] = tile[(t + 32) % 128]; // HERE",
        ("race on shared memory",),
    ),
    # Clusters
    "multicast-outside-the-cluster": Fault(
        "if (t == 0) ptx::tma_load_multicast(base, map_x, bar, 5, at); // HERE",
        ("mask 0x5 names block 2 of a cluster of 2",),
        cluster=2,
    ),
    "rank-outside-the-cluster": Fault(
        "if (t == 0) out[0] = ptx::cluster_map(base, 2); // HERE", ("block 2 of a cluster of 2",), cluster=2
    ),
    "remote-access-to-a-block-that-has-ended": Fault(
        "tile[t] = t;\nptx::cluster_sync();\nif (ptx::cluster_rank() == 0) {\n for (int i = 0; i < 300; ++i) __nanosleep(1);\n out[t] = ptx::load_cluster<int>(ptx::cluster_map(base, 1)); // HERE\n}",
        ("has ended", "cluster_sync"),
        cluster=2,
    ),
    "remote-arrival-at-a-block-that-has-ended": Fault(
        "ptx::cluster_sync();\nif (ptx::cluster_rank() == 0) {\n for (int i = 0; i < 300; ++i) __nanosleep(1);\n ptx::mbarrier_arrive_remote(bar, 1); // HERE\n}",
        ("has ended",),
        cluster=2,
    ),
    "remote-read-without-a-cluster-barrier": Fault(
        "ptx::cluster_sync();\ntile[t] = t;\n__syncthreads();\nout[t] = ptx::load_cluster<int>(ptx::cluster_map(base, ptx::cluster_rank() ^ 1)); // HERE\nptx::cluster_sync();",
        ("shared memory",),
        cluster=2,
    ),
    "overwritten-while-others-may-read": Fault(
        "tile[t] = t;\nptx::cluster_sync();\nout[t] = ptx::load_cluster<int>(ptx::cluster_map(base, ptx::cluster_rank() ^ 1) + t * 4); // HERE\ntile[t] = 0; // HERE\nptx::cluster_sync();",
        ("race on shared memory", "of the cluster"),
        cluster=2,
    ),
    "two-blocks-write-one-place": Fault(
        "ptx::cluster_sync();\nptx::store_cluster(ptx::cluster_map(base, 0) + t * 4, t); // HERE\nptx::cluster_sync();",
        ("race on shared memory",),
        cluster=2,
    ),
    "remote-barrier-without-a-cluster-sync": Fault(
        "if (t == 0) ptx::mbarrier_arrive_remote(bar, ptx::cluster_rank() ^ 1); // HERE\nptx::cluster_sync();",
        ("mbarrier",),
        cluster=2,
    ),
    "remote-store-read-before-the-wait": Fault(
        "ptx::cluster_sync();\nconst unsigned other = ptx::cluster_rank() ^ 1;\nif (t == 0) {\n ptx::mbarrier_arrive_expect(bar, 4);\n ptx::store_cluster_async(ptx::cluster_map(base, other), 7, ptx::cluster_map(bar, other)); // HERE\n}\nptx::cluster_sync();\nif (t == 1) out[0] = tile[0]; // HERE\nptx::mbarrier_wait(bar, 0);",
        ("shared memory", "mbarrier at offset 4096"),
        modes=("late", "eager"),
        cluster=2,
    ),
    "remote-store-to-one-block-and-barrier-of-another": Fault(
        "ptx::cluster_sync();\nif (t == 0) ptx::store_cluster_async(ptx::cluster_map(base, 0), 7, ptx::cluster_map(bar, 1)); // HERE\nptx::cluster_sync();",
        ("the destination lies in block 0 of the cluster, the mbarrier in block 1",),
        cluster=2,
    ),
    "relaxed-arrival-shows-no-store": Fault(
        "tile[t] = t;\nptx::cluster_arrive_relaxed();\nptx::cluster_wait();\nout[t] = ptx::load_cluster<int>(ptx::cluster_map(base, ptx::cluster_rank() ^ 1) + t * 4); // HERE\nptx::cluster_sync();",
        ("race on shared memory", "of the cluster"),
        cluster=2,
    ),
    "relaxed-arrival-shows-no-barrier-without-its-fence": Fault(
        "if (t == 0) ptx::mbarrier_init(bar, 1);\nptx::cluster_arrive_relaxed();\nptx::cluster_wait();\nif (t == 0) ptx::mbarrier_arrive_remote(bar, ptx::cluster_rank() ^ 1); // HERE\nptx::cluster_sync();",
        ("has made offset 4096 an mbarrier", "cluster_sync"),
        cluster=2,
        init=False,
    ),
    "cluster-wait-without-arrive": Fault("ptx::cluster_wait(); // HERE", ("has not arrived",), cluster=2),
    "cluster-arrive-twice": Fault(
        "ptx::cluster_arrive();\nptx::cluster_arrive(); // HERE", ("has arrived before",), cluster=2
    ),
    "cluster-barrier-not-reached": Fault(
        "if (ptx::cluster_rank() == 0 || t < 64) ptx::cluster_sync(); // HERE\nelse ptx::mbarrier_wait(bar, 0); // HERE",
        ("deadlock", "cluster_wait"),
        cluster=2,
    ),
    "mbarrier-wait-of-another-block": Fault(
        "ptx::cluster_sync();\nptx::mbarrier_wait(ptx::cluster_map(bar, ptx::cluster_rank() ^ 1), 0); // HERE",
        ("only this block's",),
        cluster=2,
    ),
    # Flags
    "flag-that-never-comes": Fault("if (t == 0) ptx::wait_for(flags, 7); // HERE", ("deadlock", "a flag")),
    "flag-out-of-bounds": Fault("if (t == 0) ptx::store_release(out + 512, 7); // HERE", ("out of bounds",)),
}


def fault_case(fault: Fault) -> Case:
    """Its kernel, with outputs that nothing is expected of."""
    x, y = np.arange(512, dtype=np.int32).reshape(16, 32), np.zeros((16, 32), np.int32)
    maps = [shown("x", x, (32, 16)), shown("y", y, (32, 16), access="out")]
    params = [*(map for map, _ in maps), pointer("x", x), pointer("flags", x, "out"), pointer("out", x, "out")]
    head = _INIT if fault.init else _INIT.split("  if (t == 0)")[0]
    made = source(head + fault.body, params, shared=4112, cluster=fault.cluster)
    extents = {map.name: extent for map, extent in maps}
    given = {"x": x, "flags": np.zeros(8, np.int32)}
    return Case(
        "fault", made, (fault.cluster, 1, 1), given, {"y": y, "flags": x, "out": np.zeros(512, np.int32)}, extents
    )


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found(name: str) -> None:
    fault = FAULTS[name]
    made = fault_case(fault)
    for mode in fault.modes:
        with pytest.raises(EmulatorError) as caught:
            run(made, Options(async_mode=mode, timeout=20))
        message = str(caught.value)
        for text in fault.says:
            assert text in message, message
        lines = made.source.body.splitlines()
        named = [int(line) for line in re.findall(r"line (\d+)", message)]
        marked = [number for number, line in enumerate(lines, 1) if fault.mark in line]
        assert not fault.mark or set(named) & set(marked), message


_WGMMA = {
    # Left out or misplaced lines of a right kernel: what is replaced, by what, what is said, the line at fault.
    "no-proxy-fence": ("  ptx::fence_proxy_async();\n", "", "no fence_proxy_async", "ptx::wgmma_m64"),
    "fence-before-the-writes": (
        "  for (int i = t; i <",
        "  ptx::fence_proxy_async();\n  for (int i = t; i <",
        None,
        "",
    ),
    "no-barrier": ("  __syncthreads();\n", "", "shared memory", ""),
    "no-wgmma-fence": ("  ptx::wgmma_fence();\n", "", "no wgmma_fence", "ptx::wgmma_m64"),
    "no-wait": ("  ptx::wgmma_wait<0>();\n", "", "while a wgmma of its warpgroup is under way", ""),
    "wait-for-too-few": ("wgmma_wait<0>", "wgmma_wait<1>", "while a wgmma of its warpgroup is under way", ""),
    "overwritten-too-early": (
        "  ptx::wgmma_wait<0>();\n",
        "  tiles[t] = make_uint4(0, 0, 0, 0);\n  ptx::wgmma_wait<0>();\n",
        "a wgmma of warps 0 to 3",
        "make_uint4",
    ),
    "overwritten-behind-another-warp": (
        "  ptx::wgmma_wait<0>();\n",
        "  if (t >= 32) ptx::wgmma_wait<0>();\n  if (t < 32) tiles[t] = make_uint4(0, 0, 0, 0);\n",
        "a wgmma of warps 0 to 3",
        "make_uint4",
    ),
    "descriptors-differ": (
        "(base + 0) & 0x3ffff",
        "(base + t / 64 * 16) & 0x3ffff",
        "the threads of a warpgroup disagree",
        "ptx::wgmma_m64",
    ),
    "descriptors-differ-in-a-warp": (
        "(base + 0) & 0x3ffff",
        "(base + t % 2 * 16) & 0x3ffff",
        "the threads of a warpgroup disagree",
        "ptx::wgmma_m64",
    ),
    "one-warp-stays-away": (
        "  ptx::wgmma_fence();\n",
        "  ptx::wgmma_fence();\n  if (t < 96)\n",
        "deadlock",
        "ptx::wgmma_m64",
    ),
    "out-of-bounds": (
        "(base + 0) & 0x3ffff",
        "(base + 32768) & 0x3ffff",
        "out of bounds of shared memory",
        "ptx::wgmma_m64",
    ),
    "base-offset": (
        "const unsigned long long a_operand = ",
        "const unsigned long long a_operand = 1ull << 49 | ",
        "base offset",
        "ptx::wgmma_m64",
    ),
    "unwritten-operand": (
        "tiles[i] = reinterpret_cast<const uint4*>(a)[i]",
        "if (i != 77) tiles[i] = reinterpret_cast<const uint4*>(a)[i]",
        "nothing has written",
        "ptx::wgmma_m64",
    ),
}


@pytest.mark.parametrize("name", _WGMMA)
def test_wgmma_fault_is_found(name: str) -> None:
    old, new, says, mark = _WGMMA[name]
    right = ptx_wgmma_cases.product("f16", 64, a=(False, 64, 0), b=(False, 64, 0))
    assert old in right.source.body
    broken = replace(right, source=replace(right.source, body=right.source.body.replace(old, new)))
    for mode in ("late", "eager", "random"):
        if says is None:
            run(broken, Options(async_mode=mode, timeout=20))
            continue
        with pytest.raises(EmulatorError) as caught:
            run(broken, Options(async_mode=mode, timeout=20))
        assert says in str(caught.value)
        assert mark in str(caught.value)


def test_accumulators_are_late_without_checks() -> None:
    right = ptx_wgmma_cases.product("f16", 64)
    assert right.source.body.endswith("\n}\n")
    wait = "  ptx::wgmma_wait<0>();\n"
    body = right.source.body.replace(wait, "").removesuffix("}\n") + wait + "}\n"
    broken = replace(right, source=replace(right.source, body=body))
    run(broken, Options(async_mode="eager", checks=False))
    with pytest.raises(AssertionError):
        run(broken, Options(async_mode="late", checks=False))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"box": (32, 257)}, "1 to 256 elements"),
        ({"box": (3, 16)}, "multiples of 16 bytes"),
        ({"box": (32, 16), "swizzle": 64}, "within the 64 bytes of its swizzle"),
        ({"sizes": (32, 20)}, "its buffer has"),
        ({"strides": (30,)}, "multiples of 16 bytes"),
        ({"sizes": (32,)}, "sizes and 1 strides"),
        ({"address": 4}, "multiple of 16"),
        ({"buffer": 3}, "must be a Map"),
    ],
)
def test_limits_of_tensor_maps(changes: dict[str, object], says: str) -> None:
    x = aligned(np.arange(512, dtype=np.int32).reshape(16, 32))
    param, extent = shown("x", x, changes.get("box", (32, 16)), changes.get("swizzle", 0))  # type: ignore[arg-type]
    kernel = emulator.compile(source("  ptx::tma_prefetch(map_x);\n", [param]))
    buffer = Buffer(x.ctypes.data + int(changes.get("address", 0)), x.nbytes - 64, writable=False)  # type: ignore[call-overload]
    buffer = replace(buffer, bytes=x.nbytes - int(changes.get("address", 0)))  # type: ignore[call-overload]
    map = Map(buffer, changes.get("sizes", extent.sizes), changes.get("strides", extent.strides))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=says):
        kernel.launch([changes.get("buffer", map)], (1, 1, 1))  # type: ignore[list-item]


def test_blocks_that_wait_need_a_cooperative_launch() -> None:
    chain = next(c for c in ptx_sync_cases.CASES if c.name == "flags")
    alone = replace(chain, source=replace(chain.source, launch=replace(chain.source.launch, cooperative=False)))
    run(alone, Options(threads=1))  # in order, no block waits for a later one
    body = chain.source.body.replace("blockIdx.x > 0", "blockIdx.x == 0").replace(
        "counters + blockIdx.x, 1", "counters + 1, 1"
    )
    waits = replace(alone, source=replace(alone.source, body=body))
    with pytest.raises(EmulatorError, match=r"(?s)deadlock.*for a flag.*need a cooperative launch"):
        run(waits, Options(threads=1, timeout=20))
    with pytest.raises(EmulatorError, match="for a flag"):
        run(waits, Options(threads=2, timeout=20))


def test_clusters_are_limited() -> None:
    made = source("", [], cluster=17)
    with pytest.raises(ArgumentError, match="a cluster has 1 to 16 blocks"):
        emulator.compile(made).launch([], (17, 1, 1))

"""The instructions of the PTX layer, as the PTX ISA spells them: a weaker modifier need not show in any value on one GPU."""

from __future__ import annotations

import pytest
from ptx_mutants import Statement, changes, statements

from kgen.codegen.library import blocks
from kgen.codegen.render import wgmma_shapes

_TENSOR = "cp.async.bulk.tensor.{}d"
_LOADED = ".shared::cluster.global.tile.mbarrier::complete_tx::bytes"
_SENT = "st.async.shared::cluster.mbarrier::complete_tx::bytes"
_ADDED = "red.relaxed.gpu.global.add"

#: The instructions of each function with all their modifiers, in order. Where there are several forms, in the order of the file.
INSTRUCTIONS: dict[str, list[str]] = {
    # "Floating Point Instructions", "Integer Arithmetic Instructions": NaN where either is; subnormals become zero.
    "max_nan": ["max.NaN.f32"],
    "min_nan": ["min.NaN.f32"],
    "renew": [""],
    "exp_approximate": ["ex2.approx.ftz.f32"],
    "exp2_approximate": ["ex2.approx.ftz.f32"],
    "sigmoid_approximate": ["ex2.approx.ftz.f32", "rcp.approx.ftz.f32"],
    "reciprocal_approximate": ["rcp.approx.ftz.f32"],
    "multiply_wide": ["mul.wide.s32"],
    "reduce_min": [],
    "reduce_max": [],
    "to_tf32": ["cvt.rn.tf32.f32", "cvt.rna.tf32.f32"],
    # "red": other blocks see each addition (.gpu), in no order; halves keep subnormals.
    "red_add_f32": [f"{_ADDED}.v2.f32", f"{_ADDED}.v4.f32"],
    "red_add_f16x2": [f"{_ADDED}.noftz.{vector}f16x2" for vector in ("", "v2.", "v4.")],
    "red_add_bf16x2": [f"{_ADDED}.noftz.{vector}bf16x2" for vector in ("", "v2.", "v4.")],
    # "bar", "barrier.cluster": who arrives releases, who waits acquires.
    "named_barrier_sync": ["bar.sync"],
    "named_barrier_arrive": ["bar.arrive"],
    "cluster_rank": ["mov.u32"],
    "cluster_arrive": ["barrier.cluster.arrive.release"],
    "cluster_arrive_relaxed": ["barrier.cluster.arrive.relaxed"],
    "cluster_wait": ["barrier.cluster.wait.acquire"],
    "cluster_sync": [],
    "cluster_map": ["mapa.shared::cluster.u32"],
    "load_cluster": [f"ld.shared::cluster.{vector}u32" for vector in ("", "v2.", "v4.")],
    "store_cluster": [f"st.shared::cluster.{vector}u32" for vector in ("", "v2.", "v4.")],
    "store_cluster_async": [f"{_SENT}.{vector}b32" for vector in ("", "v2.", "v4.")],
    # "cp.async", "griddepcontrol".
    "cp_async": ["cp.async.ca.shared.global"] * 2,
    "cp_async_commit": ["cp.async.commit_group"],
    "cp_async_wait": ["cp.async.wait_group"],
    "griddepcontrol_wait": ["griddepcontrol.wait"],
    "griddepcontrol_launch_dependents": ["griddepcontrol.launch_dependents"],
    # "ldmatrix", "stmatrix", "mma".
    "ldmatrix": [f"ldmatrix.sync.aligned.m8n8.x{n}.shared.b16" for n in (1, 2, 4)],
    "ldmatrix_trans": [f"ldmatrix.sync.aligned.m8n8.x{n}.trans.shared.b16" for n in (1, 2, 4)],
    "stmatrix": [f"stmatrix.sync.aligned.m8n8.x{n}.shared.b16" for n in (1, 2, 4)],
    "stmatrix_trans": [f"stmatrix.sync.aligned.m8n8.x{n}.trans.shared.b16" for n in (1, 2, 4)],
    "mma_m16n8k8_f16_f32": ["mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"],
    "mma_m16n8k8_f16_f16": ["mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16"],
    "mma_m16n8k16_f16_f32": ["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"],
    "mma_m16n8k16_f16_f16": ["mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16"],
    "mma_m16n8k16_bf16_f32": ["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"],
    "mma_m16n8k8_tf32_f32": ["mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"],
    "mma_m16n8k32_s8_s32": ["mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"],
    "mma_m16n8k32_e4m3_f32": ["mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32"],
    "mma_m16n8k32_e5m2_f32": ["mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32"],
    # "mbarrier": to arrive releases and to wait acquires, within the block, where nothing else is said; the fence after
    # initialising reaches the cluster.
    "mbarrier_init": ["mbarrier.init.shared::cta.b64"],
    "mbarrier_init_fence": ["fence.mbarrier_init.release.cluster"],
    "mbarrier_arrive": ["mbarrier.arrive.shared::cta.b64"],
    "mbarrier_arrive_remote": ["{", ".reg", "mapa.shared::cluster.u32", "mbarrier.arrive.shared::cluster.b64", "}"],
    "mbarrier_arrive_expect": ["mbarrier.arrive.expect_tx.shared::cta.b64"],
    "mbarrier_arrive_copies": ["cp.async.mbarrier.arrive.noinc.shared::cta.b64"],
    "mbarrier_wait": ["{", ".reg", "mbarrier.try_wait.parity.shared::cta.b64", "selp.u32", "}"],
    # "ld", "st", "atom": flags that blocks pass to each other: release before, acquire after, of the whole GPU.
    "smem_address": [],
    "load_no_allocate": [f"ld.global.nc.L1::no_allocate.{kind}" for kind in ("u8", "u16", "u32", "v2.u32", "v4.u32")],
    "policy_evict_last": ["createpolicy.fractional.L2::evict_last.b64"],
    "load_evict_last": [f"ld.global.L2::cache_hint.{kind}" for kind in ("u8", "u16", "u32", "v2.u32", "v4.u32")],
    "load_relaxed": ["ld.relaxed.gpu.global.u32"],
    "load_acquire": ["ld.acquire.gpu.global.s32"],
    "store_release": ["st.release.gpu.global.s32"],
    "atomic_add_release": ["atom.add.release.gpu.global.s32"],
    "wait_for": [],
    # "cp.async.bulk", "cp.async.bulk.tensor", "fence.proxy.async".
    "TensorMap": [],
    "tma_prefetch": ["prefetch.tensormap"],
    "tma_load": [_TENSOR.format(rank) + _LOADED for rank in range(1, 6)],
    "tma_load_multicast": [_TENSOR.format(rank) + _LOADED + ".multicast::cluster" for rank in range(2, 6)],
    "tma_store": [_TENSOR.format(rank) + ".global.shared::cta.tile.bulk_group" for rank in range(1, 6)],
    "tma_store_commit": ["cp.async.bulk.commit_group"],
    "tma_store_wait": ["cp.async.bulk.wait_group.read"],
    "fence_proxy_async": ["fence.proxy.async.shared::cta"],
    "fence_proxy_async_global": ["fence.proxy.async.global"],
    "bulk_load": ["cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"],
    "bulk_load_evict_last": ["cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"],
    # "wgmma", "setmaxnreg".
    "wgmma_fence": ["wgmma.fence.sync.aligned"],
    "wgmma_commit": ["wgmma.commit_group.sync.aligned"],
    "wgmma_wait": ["wgmma.wait_group.sync.aligned"],
    "warpgroup_fence_operand": ["", ""],
    "setmaxnreg_dec": ["setmaxnreg.dec.sync.aligned.u32"],
    "setmaxnreg_inc": ["setmaxnreg.inc.sync.aligned.u32"],
}

#: Functions of their operands alone, which the compiler may move, merge and leave out.
_PURE = [
    *("max_nan", "min_nan", "multiply_wide", "to_tf32", "renew", "policy_evict_last"),
    *("exp_approximate", "exp2_approximate", "sigmoid_approximate", "reciprocal_approximate"),
]
#: Those that neither write memory that others read, nor are ordered with what is.
_NO_MEMORY = [
    *_PURE,
    *("cluster_rank", "cluster_map", "load_no_allocate", "load_evict_last", "setmaxnreg_dec", "setmaxnreg_inc"),
]


def stated(found: list[Statement]) -> list[tuple[str, bool, bool]]:
    """What is stated of statements: each instruction, whether it is volatile and whether it clobbers memory."""
    return [
        (line.split(" ")[0].rstrip(";"), s.volatile, '"memory"' in s.rest) for s in found for line in s.code.split("\n")
    ]


def expected(name: str) -> list[tuple[str, bool, bool]]:
    """The same, as this file has it."""
    memory = name not in _NO_MEMORY and not name.startswith("mma_")
    return [(instruction, name not in _PURE, memory) for instruction in INSTRUCTIONS[name]]


def test_all_functions_are_stated() -> None:
    assert INSTRUCTIONS.keys() == blocks("ptx").keys()


@pytest.mark.parametrize("name", blocks("ptx"))
def test_instructions(name: str) -> None:
    assert stated(statements(blocks("ptx")[name])) == expected(name)


@pytest.mark.parametrize("total", ["f32", "f16"])
@pytest.mark.parametrize("registers", ["", "_rs"])
@pytest.mark.parametrize(("kind", "depth"), [("f16", 16), ("bf16", 16), ("tf32", 8), ("e4m3", 32), ("e5m2", 32)])
def test_shapes_of_wgmma(kind: str, depth: int, registers: str, total: str) -> None:
    (found,) = statements(wgmma_shapes(f"ptx::wgmma_m64n24k{depth}_{kind}_{total}{registers}"))
    last = (12 if total == "f32" else 6) + (5 if registers else 2)
    instruction = f"wgmma.mma_async.sync.aligned.m64n24k{depth}.{total}.{kind}.{kind}"
    assert found.code.split("\n")[:3] == ["{", ".reg .pred p;", f"setp.ne.b32 p, %{last}, 0;"]
    assert found.code.split("\n")[3].startswith(f"{instruction} {{%0, ")
    assert ", p, 1, 1" in found.code
    assert found.volatile


@pytest.mark.parametrize("name", [name for name, found in INSTRUCTIONS.items() if found])
def test_what_no_value_shows_is_seen_here(name: str) -> None:
    block = blocks("ptx")[name]
    unseen = [
        str(change)
        for statement in statements(block)
        for change in changes(statement)
        if change.kind == "order" and stated(statements(change.applied(block))) == expected(name)
    ]
    assert not unseen


def test_relaxed_for_acquire_is_a_change() -> None:
    (flag,) = statements(blocks("ptx")["load_acquire"])
    found = {change.told: change.kind for change in changes(flag)}
    assert found["ld.acquire.gpu.global.s32 -> ld.relaxed.gpu.global.s32"] == "order"

"""What values of fields that stand for a technique get wrong, and where they are refused, by the rule that says why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from launches import dense, launch

from kgen.dsl.errors import ConfigError
from kgen.dsl.family import schedules
from kgen.dsl.types import f16, f32, f64, i32
from kgen.gpu.target import resolve
from kgen.ops import operator
from kgen.ops.reduction import Reduce

CUBE = {"M": 512, "N": 512, "K": 512}
PLANE = {"...": (), "M": 512, "N": 512}
LINE = {"...": (1 << 20,)}
WMMA = {"swizzle": "pad", "store": "shared", "fragments": 1, "WM": 32, "WN": 32}


@pytest.mark.parametrize("name", ["reduce_max", "reduce_min"])
@pytest.mark.parametrize("dtype", [f32, f64, i32], ids=str)
def test_atomics_find_the_largest_and_the_smallest_of_all_there_are(name: str, dtype: Any) -> None:
    graph = operator(name).graph({"x": dtype})
    kind = {f32: torch.float32, f64: torch.float64, i32: torch.int32}[dtype]
    info = torch.iinfo(kind) if dtype is i32 else torch.finfo(kind)
    some = torch.arange(3000) % 7 + 3
    lines = [some, -some, some * 0, torch.where(some == 5, torch.tensor(info.min), -some)]
    lines.append(torch.where(some == 5, torch.tensor(info.max), some))
    if dtype is not i32:
        small = torch.where(some == 4, torch.tensor(-1e-320 if dtype is f64 else -1e-42), some * -0.0)
        lines += [small, some * torch.inf, some * -torch.inf, torch.full((3000,), torch.nan)]
        lines += [
            torch.where(some == 9, torch.tensor(sign * torch.nan), line) for sign in (1, -1) for line in (some, -some)
        ]
    fields = {"finish": "atomic", "pack": 1, "items": 1, "threads": 64, "blocks_per_sm": 4}
    for line in lines:
        x, out = line.to(kind), torch.zeros((), dtype=kind)
        launch(graph, [x, out], Reduce, fields)
        want = x.max() if name == "reduce_max" else x.min()
        assert torch.equal(out, want) or (bool(out.isnan()) and bool(want.isnan())), (line, out, want)


@pytest.mark.parametrize(
    ("name", "dtype", "sizes", "columns", "schedule", "fields", "gpu", "rule"),
    [
        ("reduce_sum", f16, LINE, "", "Reduce", {"finish": "atomic"}, "H200", "alike_in_any_order"),
        ("reduce_argmax", i32, LINE, "", "Reduce", {"finish": "atomic"}, "H200", "alike_in_any_order"),
        ("reduce_sum", f16, LINE, "", "Reduce", {"finish": "two_pass", "threads": 512, "blocks_per_sm": 4},
         "H200", "on_the_gpu_at_once"),
        ("batch_norm_stats", f16, {"B": 8, "C": 4096, "S": 64}, "", "ChannelStats", {"finish": "two_pass", "threads": 32},
         "H200", "on_the_gpu_at_once"),
        ("transpose", f16, PLANE, "", "Transpose", {"copy": "tma"}, "A100-SXM4-80GB", "copy_of_the_target"),
        ("transpose", f16, {**PLANE, "N": 509}, "", "Transpose", {"copy": "tma", "shift": "store"}, "H200", "tma_addresses"),
        ("transpose", f16, PLANE, "", "Transpose", {"copy": "tma", "load": "no_allocate"}, "H200", "tma_boxes"),
        ("transpose", f16, PLANE, "", "Transpose", {"copy": "tma", "shift": "both"}, "H200", "tma_boxes"),
        ("transpose", f16, {**PLANE, "M": 509}, "", "Transpose", {"copy": "tma", "tile_columns": 256, "shift": "store"}, "H200",
         "tma_boxes"),
        ("transpose", f16, PLANE, "", "Transpose", {"copy": "tma", "load_bytes": 8, "load": "default"}, "H200", "tma_vectors"),
        ("hgemm", f16, CUBE, "", "MmaGemm", {"instruction": "wmma_m32n8k16", **WMMA}, "H200", "wmma_alignment"),
        ("hgemm_f16acc", f16, CUBE, "b", "MmaGemm", {"instruction": "wmma_m32n8k16", **WMMA}, "H200", "wmma_alignment"),
        ("hgemm", f16, CUBE, "a", "MmaGemm", {"instruction": "wmma_m8n32k16", **WMMA}, "H200", "wmma_alignment"),
        ("hgemm", f16, CUBE, "", "MmaGemm", {"instruction": "wmma_m8n32k16", **WMMA, "WN": 16}, "H200", "wmma_shapes"),
        ("tf32gemm", None, CUBE, "", "MmaGemm", {"instruction": "wmma_m8n32k16", **WMMA}, "H200", "wmma_shapes"),
    ],
)  # fmt: skip
def test_where_a_technique_is_none(
    name: str, dtype: Any, sizes: Any, columns: str, schedule: str, fields: dict[str, Any], gpu: str, rule: str
) -> None:
    known = operator(name)
    graph = known.graph({next(iter(known.tensors)): dtype} if dtype else {})
    problem, target = dense(graph, sizes, dict.fromkeys(columns, "col")), resolve(gpu)
    config = schedules()[schedule].default(problem, target).replace(**fields)
    assert rule in [rejection.rule for rejection in config.rejections(problem, target)]
    if not config.only_prunes(rule):
        with pytest.raises(ConfigError, match=rule):
            config.check(problem, target)

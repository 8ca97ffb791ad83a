"""The tile schedulers (templates/common/tile_scheduler.cuh): every part of every output tile is one worker's, once."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest
from emulated_kernels import aligned, make, read, write

from kgen import emulator
from kgen.codegen.library import functions_used

BM, BN, MOST = 64, 32, 512
FIELDS = 8  # m0, n0, k_first, k_last, end, batch 0, batch 1, 1

_KERNEL = """
using Grid = TileGrid<64, 32, {along_m}, {group}, SingleBlock, {rank}>;
using Scheduler = {scheduler};
extern "C" __global__ void __launch_bounds__(32) kernel(const int* offsets, int* found, int M, int N, int k_tiles,
                                                        int batches0, int batches1, int most) {{
  const Scheduler scheduler{{{made}}};
  int* next = found + blockIdx.x * most * 8;
  scheduler.for_each([&](const auto& tile) {{
    if (threadIdx.x == 0) {{
      const int told[] = {{tile.m0, tile.n0, tile.k_first, tile.k_last, tile.end, tile.batch[0], {second}, 1}};
      for (int i = 0; i < 8; ++i) next[i] = told[i];
    }}
    next += 8;
  }});
}}
"""


def tiles(scheduler: str, made: str, sizes, workers: int, rank: int = 0, offsets=(0,), **grid) -> list[list[int]]:
    """What each of the workers is told, worker by worker; `sizes` are M, N, tiles of K and two batches."""
    second = "tile.batch[1]" if rank == 2 else "0"
    text = _KERNEL.format(scheduler=scheduler, made=made, rank=rank, second=second, **grid)
    functions = functions_used("common", text)
    found = aligned(np.zeros((workers, MOST, FIELDS), np.int32))
    source = make(functions + text, 32)
    order = aligned(np.array(offsets, np.int32))
    emulator.compile(source).launch([read(order), write(found, True), *sizes, MOST], (workers, 1, 1))
    return [row.tolist() for worker in found for row in worker if row[-1]]


GRIDS = [{"along_m": a, "group": g} for a, g in itertools.product(("true", "false"), (1, 3, 8))]
SIZES = [((100, 90, 5), 7), ((64, 32, 1), 3), ((400, 200, 9), 13), ((513, 31, 4), 1)]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("kind", ["PersistentScheduler", "StreamKScheduler", "SplitKScheduler"])
def test_all_of_k_of_all_tiles_is_dealt_out_once(kind: str, grid: dict[str, object]) -> None:
    for (m, n, k), workers in SIZES:
        for rank, batches in ((0, (1, 1)), (1, (3, 1)), (2, (2, 3))):
            count = -(-m // BM) * -(-n // BN) * batches[0] * batches[1]
            splits = 3
            workers_here = count * splits if kind == "SplitKScheduler" else workers
            type_ = f"{kind}<Grid, {splits}, false>" if kind == "SplitKScheduler" else f"{kind}<Grid>"
            made = "{M, N, k_tiles" + "".join(f", batches{d}" for d in range(rank)) + "}"
            parts = defaultdict(list)
            for m0, n0, first, last, end, b0, b1, _ in tiles(
                type_, made, (m, n, k, *batches), workers_here, rank, **grid
            ):
                parts[m0, n0, b0 if rank else 0, b1].append((first, last, end))
            expected = itertools.product(range(0, m, BM), range(0, n, BN), range(batches[0]), range(batches[1]))
            assert sorted(parts) == sorted(expected)
            for place in parts.values():
                place.sort()
                ends = [0, *(last for _, last, _ in place)]
                assert [first for first, _, _ in place] == ends[:-1]
                assert ends[-1] == k
                assert kind == "SplitKScheduler" or all(first < last for first, last, _ in place)
                if kind == "StreamKScheduler":  # where the next tile's steps begin
                    assert len({end for _, _, end in place}) == 1
                    assert place[0][2] % k == 0


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("along_m", [True, False])
def test_tiles_of_groups_are_cut_from_each_group(along_m: bool, grid: dict[str, object]) -> None:
    offsets = [0, 70, 70, 300, 301, 340]
    groups, extent, other = len(offsets) - 1, 390, 90
    sizes = (extent, other, 4, groups, 1) if along_m else (other, extent, 4, groups, 1)
    type_ = f"GroupedScheduler<Grid, {'true' if along_m else 'false'}, int>"
    made = "{M, N, k_tiles, batches0}, offsets, " + ("M" if along_m else "N") + ", batches0"
    cut, step = (BM, BN) if along_m else (BN, BM)
    rows = defaultdict(list)
    for m0, n0, first, last, end, group, _, _ in tiles(type_, made, sizes, 5, 1, offsets, **grid):
        begin, across = (m0, n0) if along_m else (n0, m0)
        assert (first, last) == ((0, 4) if group < groups else (4, 5))  # zeros behind the last group
        rows[across] += [(row, group) for row in range(begin, min(begin + cut, end))]
    assert sorted(rows) == list(range(0, other, step))
    belongs = [g for g in range(groups) for _ in range(offsets[g + 1] - offsets[g])]
    belongs += [groups] * (extent - len(belongs))
    for found in rows.values():
        assert sorted(found) == list(enumerate(belongs))

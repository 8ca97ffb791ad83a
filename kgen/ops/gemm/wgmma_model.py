"""How long gemm_wgmma takes, by a model: which configs the search tries first, and what runs where nothing was tuned.

The constants were fitted to 5,500 trials of 160 products on an H200 (docs/notes/gemm_wgmma.md): of the configs that were timed,
the model's first is in the mean 4% slower than the best, and the best of its first four 1%. What overlapping saves was timed
by itself. What epilogues and rows inside sectors cost came otherwise: counts, not fits.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from kgen.dsl.ops import PRODUCTS
from kgen.dsl.problem import Problem
from kgen.dsl.target import Target
from kgen.ops.gemm.problem import Gemm, Matrix
from kgen.ops.gemm.schedule import rate_class

if TYPE_CHECKING:
    from kgen.ops.gemm.wgmma import WgmmaGemm

#: Seconds from a launch to the first instruction of a block, and from a copy's start to its first bytes.
_START, _LATENCY = 1.77e-6, 0.64e-6
#: Seconds that a kernel saves by starting while the one before it ends.
_OVERLAP = 0.6e-6
#: The share of a tensor core's rate that is left under the power limit; clocks an instruction takes beside its products.
_RATE, _ISSUE = 0.9, 6.2
#: Bytes a clock and multiprocessor from shared memory, from L2, and to L2 where results are stored.
_SHARED, _COPY, _STORE = 128, 61, 66
#: Multiplications and additions a clock and multiprocessor on CUDA cores.
_ADDED = 128
#: Instructions of the pointwise operations that take more than one, on values of 16 bits.
_COUNTED = {
    "sigmoid": 18,
    "exp": 9,
    "exp2": 9,
    "rsqrt": 8,
    "sqrt": 10,
    "log": 9,
    "div": 10,
    "tanh": 18,
    "erf": 30,
    "erfc": 18,
    "pow": 30,
}
#: What a copy costs more whose lines of 128 bytes are asked for in two parts, and once more for each further doubling.
_NARROW = 0.3
#: Seconds, and times of a tile's sums through L2, that sharing a sum costs: by stream, and by split.
_STREAM, _SPLIT = (3e-6, 1.25), (2.5e-6, 4.8)
#: How much longer steps take that are not made side by side: of `stream`, where parts are not even.
_UNEVEN = 1.2
#: The share of device memory's bandwidth that is reached, and the bytes that are under way then.
_MEMORY, _IN_FLIGHT = 0.876, 10e6
#: Bytes of an operand that L2 keeps from one wave of tiles to the next.
_KEPT = 13e6
#: The share of an operand's bytes that blocks cost again that read in step what others read and are not beside them, for each
#: such place but the first; and how many places count.
_APART, _MOST_APART = 0.3, 3


def seconds(config: WgmmaGemm, problem: Problem, target: Target) -> float:
    """The steps of all rounds of tiles, or the bytes that they read from device memory; and what begins and ends them."""
    g = config.view(problem)
    clock, size = target.clock_hz, g.a.operand.dtype.bytes
    out = sum(y.operand.dtype.bytes for y in g.outputs)
    k_tiles = math.ceil(g.K / config.BK)
    tiles = config.clusters_of(g)
    blocks = tiles * config.cluster_size
    at_once = max(1, target.sm_count * config.blocks_per_sm // config.cluster_size) * config.cluster_size
    workers = min(blocks * config.splits, at_once)
    resident = min(config.blocks_per_sm, math.ceil(workers / target.sm_count))
    steps = math.ceil(blocks / workers) * k_tiles if config.work == "tiles" else blocks * k_tiles / workers
    store = 0.6e-6 + config.BM * config.BN * (4 + out) * resident / (_STORE * clock)
    store += config.BM * config.BN * _instructions(problem) * resident / (_ADDED * clock)
    shown = 0.4 if config.pingpong or resident > 1 else 0.85  # the part of a store that the next products do not hide
    computing = _step(config, problem, target, resident) * steps + store * (1 + shown * max(0.0, steps / k_tiles - 1))
    partial = config.BM * config.BN * 4 / (64 * clock)
    even = blocks * config.splits <= at_once
    shared = 0.0  # what workers lose that share a sum: half of it in the multiplying, half when all else is done
    if config.work == "stream_k":
        shared = _STREAM[0] + _STREAM[1] * partial * (1 + 2 * max(1.0, workers / blocks))
        computing *= 1.0 if even else _UNEVEN
    elif config.work == "split_k":
        shared = _SPLIT[0] + _SPLIT[1] * partial * (1 + resident)
    computing += shared / 2
    for side, x in zip("ab", (g.a, g.b)):
        if config.needs_copy(g, side):
            computing += 3e-6 + 2 * x.operand.elements * size / 3e12
    # Workers are in step where they begin together: whole tiles, or equal parts of them.
    in_step = workers // config.cluster_size if config.work == "tiles" else tiles if even else 1
    in_flight = workers * config.stages * config.stage_bytes(problem)
    reached = target.bandwidth * _MEMORY * min(1.0, 0.33 + in_flight / _IN_FLIGHT)
    memory = (_traffic(config, g, min(in_step, tiles)) + g.batches * g.M * g.N * out) / reached
    found = _START + _LATENCY + max(computing, memory) + 0.125 * min(computing, memory) + shared / 2
    found -= _OVERLAP if config.pdl else 0.0
    # What decides between equals: clusters wait for each other; wide groups share more, one epilogue stage hides less.
    found *= (1.08 if config.cluster_size > 1 else 1.0) * (1.003 if config.epilogue_stages == 1 else 1.0)
    return found * {8: 1.0, 16: 1.002, 4: 1.002, 1: 1.005}[config.group] * (1.0 if config.raster == "m" else 1.001)


def _step(config: WgmmaGemm, problem: Problem, target: Target, resident: int) -> float:
    """A step along K of the blocks on a multiprocessor: products, shared memory, or copies; or the way round the ring."""
    g = config.view(problem)
    clock, size = target.clock_hz, g.a.operand.dtype.bytes
    rows, columns = config.cluster_shape
    peak = target.tensor_flops.get(rate_class(g.a.operand.dtype, g.accumulate), target.tensor_flops["f16_f32acc"])
    instructions = config.BM // 64 * (config.BK * size // 32)
    products = 2 * config.BM * config.BN * config.BK * target.sm_count / (peak * _RATE) + instructions * _ISSUE / clock
    touched = (config.BM // 64 * (64 + config.BN) + config.BM + config.BN) * config.BK * size
    longer = [1.0 if config.needs_copy(g, side) else _sectors(x) for side, x in zip("ab", (g.a, g.b))]
    if not config.k_major(g, "b"):
        longer[1] *= 1 + _NARROW * (128 // min(128, config.BN * size) - 1)
    copies = config.BM / columns * longer[0] + config.BN / rows * longer[1]
    copies *= config.BK * size / (_COPY * clock)
    if g.scales:  # a warpgroup multiplies again when its products are added to the sums; by count, not fitted
        added = config.BM * config.BN * 2 / (_ADDED * clock)
        products = max(products, (products + added) / ((1 if config.pingpong else config.consumers) * resident))
    # A stage is filled again when the products after its own are under way.
    ring = (_LATENCY + copies + 2 * products) / config.stages
    return max(max(products, touched / (_SHARED * clock), copies) * resident, ring)


def _sectors(x: Matrix) -> int:
    """How much longer a copy takes whose rows begin inside sectors of 32 bytes: 1000^3 takes 11.2 us, 1024^3 6.0, 1008^3 6.3."""
    strides = (stride * x.operand.dtype.bytes for stride in (x.row, x.column, *x.batch) if stride != 1)
    return 2 if any(stride % 32 for stride in strides) else 1


@functools.lru_cache(maxsize=256)
def _instructions(problem: Problem) -> int:
    """Instructions that the epilogue takes for an element, by count; those of the special function unit count eight."""
    nodes = [n for n in problem.graph.nodes if n.op not in ("input", "scalar", "const", "cast", *PRODUCTS)]
    return sum(_COUNTED.get(node.op, 1) for node in nodes)


def _traffic(config: WgmmaGemm, g: Gemm, in_step: int) -> float:
    """Bytes of A and B that come from device memory.

    Tiles in step read what they share once, where they are beside one another. What another wave needs again comes from L2 where
    the operand is small enough. Of groups, all rows and all matrices are read once; not fitted.
    """
    if g.offsets:
        rows, across = (g.N, g.M) if config.swap_ab else (g.M, g.N)
        return (rows + min(g.groups, rows) * across) * g.K * g.a.operand.dtype.bytes
    rows, columns = config.cluster_shape
    tile_m, tile_n = config.BM * rows, config.BN * columns
    tiles_m, tiles_n = math.ceil(g.M / tile_m), math.ceil(g.N / tile_n)
    across, along = (tiles_m, tiles_n) if config.raster == "m" else (tiles_n, tiles_m)
    group = min(config.group, across)
    wide = min(in_step, across, math.ceil(in_step / (group * along)) * group)
    long = min(along, math.ceil(in_step / group))
    wave_m, wave_n = (wide, long) if config.raster == "m" else (long, wide)
    waves = tiles_m * tiles_n / in_step

    # What is shared across the groups is asked for by tiles a group apart, the other operand's by those of a group, in a row.
    apart = (long if group > 1 else 1, math.ceil(wide / group))
    apart_m, apart_n = apart if config.raster == "m" else apart[::-1]

    def read(extent: int, wave: int, apart: int) -> float:
        once = extent * g.K * g.a.operand.dtype.bytes
        again = max(0.0, waves * wave * g.K * g.a.operand.dtype.bytes - once)
        twice = _APART * (min(apart, _MOST_APART) - 1)
        return once * (1 + twice) + again * min(1.0, max(0.0, once / _KEPT - 1))

    return g.batches * (read(g.M, wave_m * tile_m, apart_m) + read(g.N, wave_n * tile_n, apart_n))

"""How long gemm_wgmma takes, by a model: which configs the search tries first, and what runs where nothing was tuned.

The constants were fitted on an H200, then to both it and half of an H100's grid, and changed since by hand
(docs/notes/gemm_wgmma.md): of all the 100 products of that grid the model's first is in the mean 2.9% slower than the best
config timed, of the 160 of grid_kinds 1.8% (H200). What overlapping saves was timed by itself.
What epilogues cost came otherwise: counts, not fits; `l2_inside`, `store_turn`, `turn`, `link`, `idle`, `contention`,
`cluster`, `lacking_stage` and what begins with `gather` were set by hand. All of it takes one config or, of the same `swap_ab`,
many (`kgen.dsl.vector`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgen.dsl.machine import Constants, scaled_by
from kgen.dsl.ops import PRODUCTS
from kgen.dsl.problem import Problem
from kgen.dsl.target import RESERVED_SHARED, Target
from kgen.dsl.vector import (
    Vector,
    anywhere,
    ceil,
    ceil_div,
    chosen,
    maximum,
    minimum,
    negated,
    of_class,
    of_sizes,
    where,
)
from kgen.ops.gemm.problem import Gemm
from kgen.ops.gemm.schedule import lines_of_rows, rate_class
from kgen.tuning_db.machines import constants

if TYPE_CHECKING:
    from kgen.ops.gemm.wgmma import WgmmaGemm


#: Stages of a ring of which more are no faster.
_ENOUGH = 6


@dataclass(frozen=True)
class WgmmaConstants(Constants, model="gemm_wgmma"):
    """Times in seconds; `shared`, `copy`, `store`, `partial` in bytes a clock and SM."""

    start: float  # from a launch to the first instruction of a block
    latency: float  # from a copy's start to its first bytes
    overlap: float  # that a kernel saves by starting while the one before it ends
    rate: float  # the share of a tensor core's rate that is left under the power limit, with nothing copied
    power: float  # of that limit, what an element costs that is copied from L2, in multiplications
    issue: float  # clocks an instruction takes beside its products
    turn: float  # clocks between two stages of a warpgroup, whose instructions are few
    link: float  # clocks of each of these instructions, however narrow
    shared: float  # from shared memory
    copy: float  # from L2, to one SM
    l2: float  # from L2 to all SMs together, of lines that others on the GPC read in step: bytes a clock
    l2_apart: float  # and what each of these lines takes beside that, once a GPC
    l2_alone: float  # the same, where nothing is shared
    l2_inside: float  # the same, of rows that begin inside sectors of 32 bytes
    astride: float  # the part of a line's time that a second one costs, where rows do not begin with lines
    neighbours: float  # blocks, one after the other, that are on one GPC; of clusters each is on another one than the one before
    outside: float  # clocks that a line of 128 bytes costs all blocks that is beyond an operand's rows, and filled with zeros
    store: float  # to L2, where results are stored
    store_row: float  # clocks of a row of a box that TMA stores
    store_start: float  # of a tile's store
    store_turn: float  # of each part of a warpgroup's results that waits for the one before it
    shown: float  # the part of a store that the next products do not hide
    shown_beside: float  # the same, where other warpgroups or blocks multiply meanwhile
    added: float  # multiplications and additions a clock and SM on CUDA cores
    narrow: float  # what a copy costs more whose lines of 128 bytes come in two parts, and for each further doubling
    stream_start: float  # that sharing a sum by stream costs
    stream_sums: float  # the same, times of a tile's sums through L2
    stream_more: float  # and more of them for each worker of a tile beyond two: one adds up what all others leave
    split_start: float  # that sharing a sum by split costs
    split_sums: float
    gather_start: float  # that sharing a sum in a cluster costs
    gather_more: float  # and for each of its blocks beyond two
    gather_sums: float  # the same, times of a tile's sums through L2
    partial: float  # of sums, to L2 and from it
    uneven: float  # how much longer steps of stream take where parts are not even: they are not made side by side
    memory: float  # the share of device memory's bandwidth that is reached
    memory_alone: float  # the share of that with nothing under way beside
    apart: float  # of an operand's bytes that blocks cost again that read in step what others read elsewhere
    most_apart: float  # how many such places count
    transpose_start: float  # of a copy of an operand before all else
    lesser: float  # the part of products or memory that the longer of them does not hide
    contention: float  # how much longer steps take whose products and copies from L2 would take equally long alone
    cluster: float  # that a kernel takes longer for each block of its clusters, which wait for each other
    second: float  # what room for a second block costs: both start, or the one has half a ring
    idle: float  # what pingpong's second warpgroup costs that has no tile
    one_stage: float  # how much longer a kernel takes whose epilogue has one stage
    lacking_stage: float  # the part that it takes longer for each stage of `_ENOUGH` that its ring lacks
    in_flight: float = scaled_by("bandwidth")  # bytes that are under way at the most bandwidth
    kept: float = scaled_by("l2_bytes")  # bytes of an operand that L2 keeps from one wave of tiles to the next
    transpose_rate: float = scaled_by("bandwidth")  # bytes a second of such a copy
    few_bytes: float = scaled_by("l2_bytes")  # that few blocks may read and overlap


def seconds(config: WgmmaGemm, problem: Problem, target: Target) -> Vector:
    """The steps of all rounds of tiles, or the bytes that they read from device memory; and what begins and ends them."""
    g, k = config.view(problem), constants(WgmmaConstants, target)
    around, step, steps, beside, reached, in_step, workers = _in_any_order(config, problem, target)
    computing = _contended(step, _from_l2(config, problem, target, in_step, workers), k) * steps + beside
    moved = g.batches * g.M * g.N * _epilogue_bytes(g)
    memory = (_traffic(config, g, in_step, k) + moved) / reached
    found = around + maximum(computing, memory) + k.lesser * minimum(computing, memory)
    group = chosen(config.group, {8: 1.0, 1: 1.005}, 1.002) * where(config.raster == "m", 1.0, 1.001)
    return found * _by_few_stages(config, target) * group


def _contended(products: Vector, copies: Vector, k: WgmmaConstants) -> Vector:
    """The longer of them, and more the nearer the other one is: near their norm of the eighth order where `contention` is 0.1."""
    longer = maximum(products, copies)
    near = minimum(products, copies) / longer
    squared = near * near
    fourth = squared * squared
    return longer * (1 + k.contention * (fourth * fourth))


@of_sizes
def _in_any_order(config: WgmmaGemm, problem: Problem, target: Target) -> tuple[Vector, ...]:
    """What the order of tiles does not change: seconds before and after all else; of a step along K, how many steps there are,
    and those beside them; bytes a second that are reached; tiles that are in step, and workers."""
    g, k = config.view(problem), constants(WgmmaConstants, target)
    k_tiles = ceil_div(g.K, config.BK)
    tiles = config.clusters_of(g)
    blocks, at_once = tiles * config.cluster_size, _blocks_at_once(config, target)
    wanted = blocks * config.splits
    workers = minimum(wanted, at_once)
    resident = minimum(config.blocks_per_sm, ceil_div(workers, target.sm_count))
    whole, stream, split = config.shares()
    rounds = ceil_div(blocks, workers)
    # Workers are in step where they begin together: whole tiles, or equal parts of them.
    in_step = workers // config.cluster_size
    shared: Vector = 0.0
    uneven: Vector = 1.0
    if anywhere(stream | split):
        rounds = where(whole, rounds, blocks / workers)
        even = wanted <= at_once
        in_step = where(whole, in_step, where(even, tiles, 1))
        # What workers lose that share a sum: half of it in the multiplying, half when all else is done.
        partial = _partial(config, target)
        together = maximum(1.0, workers / blocks)  # workers of a tile
        sums = 1 + 2 * together + k.stream_more * maximum(0.0, together - 2)
        by_stream = k.stream_start + k.stream_sums * partial * sums
        by_split = k.split_start + k.split_sums * partial * (1 + resident)
        gathered = k.gather_start + k.gather_more * (config.splits - 2) + k.gather_sums * partial
        by_split = where(config.work == "cluster_k", gathered, by_split)
        shared = where(stream, by_stream, where(split, by_split, 0.0)) / 2
        uneven = where(stream & negated(even), k.uneven, 1.0)
    store = k.store_start + resident * _stored(config, problem, target)
    shown = where(config.pingpong | (resident > 1), k.shown_beside, k.shown)
    in_step = minimum(in_step, tiles)
    steps = rounds * k_tiles * uneven
    beside = store * (1 + shown * maximum(0.0, rounds - 1)) * uneven + shared
    for x, copied in zip((g.a, g.b), config.copied(g)):
        if copied:
            moved = 2 * x.operand.elements * x.operand.dtype.bytes
            beside = beside + k.transpose_start + moved / k.transpose_rate
    in_flight = workers * _under_way(config, problem)
    reached = target.bandwidth * k.memory * minimum(1.0, k.memory_alone + in_flight / k.in_flight)
    early = _starts_early(config, problem, target, workers)
    around = k.start + k.latency + shared - where(early, k.overlap, 0.0)
    # Blocks of a cluster lose what neighbours share without one: nothing where rows begin inside sectors.
    waiting = config.cluster_size * k.cluster * (1 - sum(config.inside_sectors(g)) / 2)
    around = around + where(config.cluster_size > 1, waiting, 0.0)
    around = around + where(config.blocks_per_sm > 1, k.second, 0.0)
    around = around + where(config.pingpong & (rounds <= 1), k.idle, 0.0)
    return around, _step(config, problem, target, resident), steps, beside, reached, in_step, workers


def _starts_early(config: WgmmaGemm, problem: Problem, target: Target, workers: Vector) -> Vector:
    """Whether it saves something that the next kernel starts early: all its blocks fit on the GPU beside these, on
    multiprocessors that are free or two on one. It does, too, where these leave few multiprocessors free."""
    two_fit = 2 * (config.smem_bytes(problem) + RESERVED_SHARED) <= target.shared_per_sm
    room = two_fit | (2 * workers <= target.sm_count) | (workers >= 0.7 * target.sm_count)
    return config.pdl & room


@of_class
def _blocks_at_once(config: WgmmaGemm, target: Target) -> Vector:
    return config.clusters_at_once(target) * config.cluster_size


@of_class
def _under_way(config: WgmmaGemm, problem: Problem) -> Vector:
    """Bytes that a block has under way."""
    return config.stages * config.stage_bytes(problem)


@of_class
def _stored(config: WgmmaGemm, problem: Problem, target: Target) -> Vector:
    """Seconds of a tile's results, beside what a store begins with."""
    g, k = config.view(problem), constants(WgmmaConstants, target)
    width = 64 if config.transposed(problem) else config.epilogue_columns(problem)  # of a box of TMA's
    clocks = (4 + _epilogue_bytes(g)) / k.store + _instructions(problem) / k.added
    clocks = clocks + where(config.store == "tma", k.store_row / width, 0.0)
    in_turn = where(config.store == "tma", k.store_turn * config.epilogue_tiles(problem), 0.0)
    return config.BM * config.BN * clocks / target.clock_hz + in_turn


def _epilogue_bytes(g: Gemm) -> int:
    """Bytes that are read and written for each element of the product."""
    return sum(x.operand.dtype.bytes for x in (*g.outputs, *(x for x in g.extras if x.row and x.column)))


@of_class
def _partial(config: WgmmaGemm, target: Target) -> Vector:
    """Seconds of a tile's sums through L2."""
    return config.BM * config.BN * 4 / (constants(WgmmaConstants, target).partial * target.clock_hz)


@of_class
def _by_few_stages(config: WgmmaGemm, target: Target) -> Vector:
    """How much longer all takes by few stages of the ring, half as much in pingpong, where one warpgroup multiplies while the
    other one waits; and by one epilogue stage."""
    k = constants(WgmmaConstants, target)
    lacking = maximum(0, _ENOUGH - config.stages) * where(config.pingpong, 0.5, 1.0)
    return (1 + k.lacking_stage * lacking) * where(config.epilogue_stages == 1, k.one_stage, 1.0)


def _step(config: WgmmaGemm, problem: Problem, target: Target, resident: Vector) -> Vector:
    """A step along K of the blocks on a multiprocessor: products, shared memory, or copies; or the way round the ring."""
    g, k = config.view(problem), constants(WgmmaConstants, target)
    products, others, copied = _parts(config, problem, target)
    if g.scales:  # a warpgroup multiplies again when its products are added to the sums; by count, not fitted
        added = config.BM * config.BN * 2 / (k.added * target.clock_hz)
        products = maximum(products, (products + added) / (where(config.pingpong, 1, config.consumers) * resident))
    # A stage is filled again when the products after its own are under way.
    ring = (copied + 2 * products) / config.stages
    instructions = config.rows // 64 * (config.BK * g.a.operand.dtype.bytes // 32)
    alone = (k.turn + k.link * instructions) / target.clock_hz  # of one warpgroup
    # Of what takes as long, few instructions in fewer stages are faster.
    return maximum(maximum(products, others) * resident, maximum(ring, alone)) + 0.02 * maximum(0.0, alone - products)


@of_class
def _parts(config: WgmmaGemm, problem: Problem, target: Target) -> tuple[Vector, ...]:
    """Of a step the products; the longer of reads of shared memory and copies; and until copies are there."""
    g, k = config.view(problem), constants(WgmmaConstants, target)
    clock, size = target.clock_hz, g.a.operand.dtype.bytes
    rows, columns = config.cluster_shape
    peak = target.tensor_flops.get(rate_class(g.a.operand.dtype, g.accumulate), target.tensor_flops["f16_f32acc"])
    instructions = config.BM // 64 * (config.BK * size // 32)
    copied = config.BM / columns + config.BN / rows  # elements of a step of K
    products = (config.BM * config.BN + k.power * copied) * config.BK * (2 * target.sm_count / (peak * k.rate))
    products = products + instructions * (k.issue / clock)
    touched = (config.BM // 64 * (64 + config.BN) + config.BM + config.BN) * config.BK * size
    # Each block receives whole tiles, whoever asked for them.
    copies: Vector = config.BN
    if not config.k_major(g, "b"):
        copies = copies * (1 + k.narrow * (128 // minimum(128, config.BN * size) - 1))
    copies = (config.BM + copies) * config.BK * (size / (k.copy * clock))
    return products, maximum(touched / (k.shared * clock), copies), k.latency + copies


def _from_l2(config: WgmmaGemm, problem: Problem, target: Target, in_step: Vector, workers: Vector) -> Vector:
    """What the copies of a step of all workers take, those of lines beyond the operands' rows with them."""
    g, k = config.view(problem), constants(WgmmaConstants, target)
    (tile_m, tile_n), (tiles_m, tiles_n) = config.cluster_tile, config.tiles_across(g)
    outside = tiles_n * (tiles_m * tile_m - g.M) + tiles_m * (tiles_n * tile_n - g.N)
    blocks = config.clusters_of(g) * config.cluster_size
    inside = config.inside_sectors(g)
    of_a, of_b = (
        0 if slow else 1 if copied else 1 + k.astride * (lines_of_rows(x) - 1)
        for slow, copied, x in zip(inside, config.copied(g), (g.a, g.b))
    )
    of_tile = tile_m * of_a, tile_n * of_b
    lines, alone = config.BM * of_a + config.BN * of_b, sum(of_tile) / config.cluster_size
    apart = _lines_of_a_gpc(config, g, in_step, workers, k, of_tile)
    not_shared = alone * (128 / k.l2_alone)
    clocks = minimum(lines * (128 / k.l2) + apart * (128 / k.l2_apart), not_shared)
    clocks = where(config.work == "cluster_k", not_shared, clocks)  # clusters go to the GPCs in turn
    # Rows that begin inside sectors are not shared on a GPC, and slow: 3545x1000x1000 21.8 us, K of 1024 14.2, in clusters 16.8.
    clocks = clocks + (tile_m * inside[0] + tile_n * inside[1]) * (128 / k.l2_inside) / config.cluster_size
    clocks = workers * (clocks + k.outside * outside / blocks)
    return clocks * (config.BK * g.a.operand.dtype.bytes / (128 * target.clock_hz))


def _lines_of_a_gpc(
    config: WgmmaGemm, g: Gemm, in_step: Vector, workers: Vector, k: WgmmaConstants, of_tile: tuple[Vector, Vector]
) -> Vector:
    """Lines of A and of B that the blocks of a GPC copy in a step, each counted once, over those blocks; a tile has `of_tile`.

    Tiles in step that are near one another share them. Groups of tiles are as wide as `group`, but for the last one.
    """
    (tiles_m, tiles_n), (of_m, of_n) = config.tiles_across(g), of_tile
    by_m, size = config.raster == "m", config.cluster_size
    across, along = where(by_m, tiles_m, tiles_n), where(by_m, tiles_n, tiles_m)
    there = minimum(workers, k.neighbours)
    # Of split-K the tiles of a part of K are one after another, of others a GPC has its share of those in step.
    of_them = where(config.work == "split_k", 1.0, there / workers)
    count = maximum(1.0, minimum(there / size, in_step * of_them))  # tiles in step
    apart = where(size > 1, workers / there, 1.0)

    def lines(width: Vector) -> Vector:
        # Of several groups, one after another, where one has fewer tiles.
        x = minimum(count, across, width * maximum(1.0, count * apart / (width * along)))
        y = minimum(count, along, 1 + (count - 1) * apart / width)
        return where(by_m, x * of_m + y * of_n, x * of_n + y * of_m)

    width = minimum(config.group, across)
    last = across % width
    whole = lines(width)
    found = whole + (lines(maximum(1, last)) - whole) * (last / across)
    return found / (count * size)


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


@functools.lru_cache(maxsize=256)
def _instructions(problem: Problem) -> int:
    """Instructions that the epilogue takes for an element, by count; those of the special function unit count eight."""
    nodes = [n for n in problem.graph.nodes if n.op not in ("input", "scalar", "const", "cast", *PRODUCTS)]
    return sum(_COUNTED.get(node.op, 1) for node in nodes)


def _traffic(config: WgmmaGemm, g: Gemm, in_step: Vector, k: WgmmaConstants) -> Vector:
    """Bytes of A and B that come from device memory.

    Tiles in step read what they share once, where they are beside one another. What another wave needs again comes from L2 where
    the operand is small enough. Of groups, all rows and all matrices are read once; not fitted.
    """
    a_row = g.K * g.a.operand.dtype.bytes
    if g.offsets:
        rows, across = (g.N, g.M) if config.swap_ab else (g.M, g.N)
        return (rows + min(g.groups, rows) * across) * a_row
    (tile_m, tile_n), (tiles_m, tiles_n) = config.cluster_tile, config.tiles_across(g)
    by_m = config.raster == "m"
    across, along = where(by_m, tiles_m, tiles_n), where(by_m, tiles_n, tiles_m)
    group = minimum(config.group, across)
    wide = minimum(in_step, across, ceil_div(in_step, group * along) * group)
    long = minimum(along, ceil(in_step / group))
    waves = tiles_m * tiles_n / in_step
    # What is shared across the groups is asked for by tiles a group apart, the other operand's by those of a group, in a row;
    # either by all of them where they are clusters, which go to the GPCs in turn.
    several = config.cluster_size > 1
    apart, beside = where(several | (group > 1), long, 1), where(several, wide, ceil(wide / group))

    def read(extent: int, wave: Vector, apart: Vector) -> Vector:
        once = extent * a_row
        again = maximum(0.0, waves * wave * a_row - once)
        twice = k.apart * (minimum(apart, k.most_apart) - 1)
        return once * (1 + twice) + again * minimum(1.0, maximum(0.0, once / k.kept - 1))

    of_m = read(g.M, where(by_m, wide, long) * tile_m, where(by_m, apart, beside))
    of_n = read(g.N, where(by_m, long, wide) * tile_n, where(by_m, beside, apart))
    return g.batches * (of_m + of_n)

"""How long a transpose by tiles takes, by a model: which configs the search tries first, and what runs where nothing was tuned.

The constants were fitted to 480 timed configs on an H200 (docs/notes/transpose.md): the model's first is at least 0.95 of the
best on each of its ten problems, and within 0.6% of it on most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kgen.dsl.problem import Problem
from kgen.dsl.target import Target
from kgen.ops.common.memory_bound import SECTOR

if TYPE_CHECKING:
    from kgen.ops.elementwise.tiling import Tiling
    from kgen.ops.elementwise.transpose import Transpose

#: Seconds from a launch to the first bytes; the share of the bandwidth that long lines reach.
_START, _SHARE = 2.2e-6, 0.94
#: Seconds that bytes are in flight.
_LATENCY = 600e-9
#: Sectors at both ends of a line that are moved more than once: read, and written in part (not where stores are shifted).
_READ_TWICE, _WRITTEN_TWICE = 0.12, 1.44
#: Turns of the path to L1 and shared memory an access of a warp takes: to shared memory, loads of 128 bytes, stores.
_SHARED, _LOAD, _STORE = 0.65, 1.8, 0.5
#: Instructions of a thread; of a vector that is loaded or stored, and of its elements; the same where vectors are shifted.
_THREAD = 60
_LOADED, _STORED = (11.6, 0.0), (8.9, 0.0)
_LOADED_SHIFTED, _STORED_SHIFTED = (6.0, 0.8), (14.5, 2.5)
#: How much longer than counted tiles of more elements take whose stores are shifted: 128x128 of f16, not looked into.
_TILE, _LARGE = 8192, 1.2

#: What was not measured comes after the same by vectors.
_TMA = 1.02


def estimate(config: Transpose, t: Tiling, problem: Problem, target: Target) -> float:
    """Seconds to move the bytes, or for the accesses to shared memory and the instructions, whichever is longer.

    Bytes in flight count as in elementwise; tiles that the problem does not fill cost their whole time on a multiprocessor.
    """
    rows, columns = config.tile_rows, config.tile_columns
    tiles = math.ceil(t.rows / rows) * math.ceil(t.columns / columns) * math.prod(t.view.sizes[d] for d in t.outer)
    resident = _resident(config, t, target)
    moved = _moved(config, t, tiles, resident, target) * problem.bytes / target.bandwidth
    # Few warps leave gaps.
    clocks = _clocks(config, t) * (0.88 + 6.7 * 32 / (resident * config.threads))
    busy = clocks * tiles / target.sm_count / (0.89 * target.clock_hz)
    if config.halo(t) and rows * columns > _TILE:
        busy *= _LARGE
    unseen = _TMA if config.copy == "tma" else 1.0
    return float(_START + max(moved, busy) + 0.06 * min(moved, busy)) * unseen


def _moved(config: Transpose, t: Tiling, tiles: int, resident: int, target: Target) -> float:
    """How much longer the bytes take than at the bandwidth."""
    read, written = config.tile_rows * t.in_bytes, config.tile_columns * t.out_bytes
    # Short lines open more pages of memory.
    share = _SHARE * min(1.0, 0.83 + 0.05 * math.log2(max(1.0, min(read, written) / 32)))
    flight = min(resident, max(1.0, tiles / target.sm_count)) * config.tile_rows * config.tile_columns * t.in_bytes
    share *= min(1.0, flight / (_LATENCY * target.bandwidth / target.sm_count)) ** 0.5
    # Ends of lines that a tile has whole lie beside each other.
    ends = 0.0
    if config.tile_rows < t.rows and any(c.align(t.view.sizes, t.row) < 16 for c in t.transposed):
        ends += _READ_TWICE * SECTOR / read
    if (
        not config.halo(t)
        and config.tile_columns < t.columns
        and any(c.align(t.view.sizes) < 16 for c in t.view.outputs)
    ):
        ends += _WRITTEN_TWICE * SECTOR / written
    return (1 + ends) * (1 + 0.2 / resident) / float(share)  # a block loads or stores: others fill its gaps


def _clocks(config: Transpose, t: Tiling) -> float:
    """Clocks of a multiprocessor for a tile: turns of the path to L1 and shared memory, and instructions."""
    size, vector_in, vector_out = t.in_bytes, config.vector_in(t), config.vector_out(t)
    bytes_in, bytes_out = sum(c.dtype.bytes for c in t.transposed), sum(c.dtype.bytes for c in t.view.outputs)
    tile, halo = config.tile_rows * config.tile_columns, config.halo(t)
    shifted = config.shift in ("load", "both")
    loaded = tile * (1 + halo / config.tile_columns) * (1 + vector_in / config.tile_rows if shifted else 1.0)
    words_in = loaded * (1.0 if shifted or size >= 4 else size / 4) * max(1.0, size / 4) * bytes_in / size
    words_out = tile * bytes_in / 4 if vector_out * size >= 4 else tile
    if halo and size < 4:
        words_out *= 1 + 4 / (vector_out * size)  # one word more for every vector
    stored, read = _conflicts(config, t)
    turns = _SHARED * (words_in * stored + words_out * read) / 32
    turns += _LOAD * (1.4 if shifted else 1.0) * loaded * bytes_in / min(128, 32 * config.load_bytes)
    turns += _STORE * tile * bytes_out / min(128, 32 * config.store_bytes)
    load, load_element = _LOADED_SHIFTED if shifted else _LOADED
    store, store_element = _STORED_SHIFTED if halo else _STORED
    instructions = loaded * (load / vector_in + load_element) + tile * (store / vector_out + store_element)
    return turns + (instructions + config.threads * _THREAD) / 128


def _conflicts(config: Transpose, t: Tiling) -> tuple[int, int]:
    """Turns that a warp's access to shared memory takes for its banks: elements of loaded vectors, and words that are read."""
    if config.pad == 0:
        return 1 if config.load_bytes == 16 or config.vector_in(t) == 1 else 2, 1
    size, vector_in, vector_out, halo = t.in_bytes, config.vector_in(t), config.vector_out(t), config.halo(t)
    pitch = config.pitch(t, size)
    shifted = config.shift in ("load", "both")
    group = 1 if shifted else max(1, 4 // size)
    groups = (config.tile_columns + halo) // group
    wide = max(128 // (vector_in * size), 0 if shifted or config.threads % groups else config.threads // groups)
    beside, windows = min(wide, config.tile_rows // vector_in), config.tile_columns // vector_out
    line_stride, row_stride = t.transposed[0].strides[-1], t.view.outputs[0].strides[t.row]

    def stored(lane: int) -> int:
        line = lane // beside * group
        past = line * line_stride % vector_in if shifted else 0
        return ((lane % beside * vector_in - past) * pitch + line * size) // 4

    def read(lane: int) -> int:
        row = lane // windows
        past = row * row_stride % halo if halo else 0
        return (row * pitch + (lane % windows * vector_out - past + halo) * size) // 4

    return _turns(map(stored, range(32))), _turns(map(read, range(32)))


def _turns(words: Iterable[int]) -> int:
    """The most different words of one bank."""
    banks: dict[int, int] = {}
    for word in set(words):
        banks[word % 32] = banks.get(word % 32, 0) + 1
    return max(banks.values())


def _resident(config: Transpose, t: Tiling, target: Target) -> int:
    """Blocks that a multiprocessor has at once."""
    loaded = config.tile_rows * (config.tile_columns + config.halo(t)) * sum(c.dtype.bytes for c in t.transposed)
    registers = 23 + (1.25 if config.shift == "none" else 1.36) * loaded / config.threads / 4
    found = (
        target.max_threads_per_sm // config.threads,
        int(target.registers_per_sm // (registers * config.threads)),
        target.shared_per_sm // (config.smem_bytes(t) + 1024),
        target.max_blocks_per_sm,
    )
    return int(max(1, min(found)))

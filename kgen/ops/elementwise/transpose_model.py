"""How long a transpose by tiles takes, by a model: which configs the search tries first, and what runs where nothing was tuned.

The constants were fitted to random shapes timed on an H200: with the other ways to transpose the first choice is 4% from the
best in the mean of 349 (docs/notes/transpose.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgen.dsl.machine import Constants
from kgen.dsl.problem import Problem
from kgen.dsl.target import Target
from kgen.dsl.vector import Vector, ceil_div, floor, log2, maximum, minimum, of_class, where
from kgen.ops.common.banks import bank_turns
from kgen.ops.common.memory_bound import SECTOR
from kgen.tuning_db.machines import constants

if TYPE_CHECKING:
    from kgen.ops.elementwise.tiling import Tiling
    from kgen.ops.elementwise.transpose import Transpose


@dataclass(frozen=True)
class TransposeConstants(Constants, model="transpose"):
    """Times in seconds."""

    start: float  # from a launch to the first bytes
    memory: float  # the share of the bandwidth that long lines reach
    latency: float  # for which bytes are in flight
    read_twice: float  # sectors at both ends of a line that are moved more than once: read
    written_twice: float  # the same, written in part (not where stores are shifted)
    shared: float  # turns of the path to L1 and shared memory that an access of a warp to shared memory takes
    load: float  # the same, a load of 128 bytes
    store: float
    thread: float  # instructions of a thread
    loaded: float  # of a vector that is loaded
    stored: float
    loaded_shifted: float  # the same where vectors are shifted, of the vector and of its elements
    loaded_element: float
    stored_shifted: float
    stored_element: float
    serial: float  # clocks of an instruction of a thread, which waits for the one before
    issue: float  # the share of the clocks in which instructions are issued
    few_warps: float  # what gaps few warps leave
    lesser: float  # the part of the shorter of memory and clocks that the longer does not hide
    large: float  # how much longer than counted tiles take whose stores are shifted, of more than TILE elements: not looked into
    tma: float  # what was not measured comes after the same by vectors


#: Elements: 128x128 of f16 is `large`.
_TILE = 8192
#: Elements by which strides that differ are alike to vectors and sectors.
_APART = 128


def estimate(config: Transpose, t: Tiling, problem: Problem, target: Target) -> Vector:
    """Seconds to move the bytes, or for the accesses to shared memory and the instructions, whichever is longer.

    Bytes in flight count as in elementwise; tiles that the problem does not fill cost their whole time on a multiprocessor.
    """
    k = constants(TransposeConstants, target)
    rows, columns = config.tile_rows, config.tile_columns
    tiles = ceil_div(t.rows, rows) * ceil_div(t.columns, columns) * math.prod(t.view.sizes[d] for d in t.outer)
    resident = _resident(config, t, target)
    moved = _moved(config, t, tiles, resident, target, k) * problem.bytes / target.bandwidth
    turns, instructions, longest = _clocks(config, t, k)
    # Few warps leave gaps.
    clocks = (turns + instructions / 128) * (0.88 + k.few_warps * 32 / (resident * config.threads))
    busy = clocks * maximum(1, tiles / target.sm_count) / (k.issue * target.clock_hz)
    waiting = k.serial * longest / target.clock_hz
    busy = busy * where((config.halo(t) > 0) & (rows * columns > _TILE), k.large, 1.0)
    unseen = where(config.copy == "tma", k.tma, 1.0)
    return (k.start + waiting + maximum(moved, busy) + k.lesser * minimum(moved, busy)) * unseen


def _moved(
    config: Transpose, t: Tiling, tiles: Vector, resident: Vector, target: Target, k: TransposeConstants
) -> Vector:
    """How much longer the bytes take than at the bandwidth."""
    read, written = config.tile_rows * t.in_bytes, config.tile_columns * t.out_bytes
    # Short lines open more pages of memory.
    share = k.memory * minimum(1.0, 0.83 + 0.05 * log2(maximum(1.0, minimum(read, written) / 32)))
    flight = minimum(resident, maximum(1.0, tiles / target.sm_count))
    flight = flight * config.tile_rows * config.tile_columns * t.in_bytes
    share = share * minimum(1.0, flight / (k.latency * target.bandwidth / target.sm_count)) ** 0.5
    # Ends of lines that a tile has whole lie beside each other.
    cut = any(c.align(t.view.sizes, t.row) < 16 for c in t.transposed)
    ends = where((config.tile_rows < t.rows) & cut, k.read_twice * SECTOR / read, 0.0)
    cut = any(c.align(t.view.sizes) < 16 for c in t.view.outputs)
    parted = (config.halo(t) == 0) & (config.tile_columns < t.columns) & cut
    ends = ends + where(parted, k.written_twice * SECTOR / written, 0.0)
    return (1 + ends) * (1 + 0.2 / resident) / share  # a block loads or stores: others fill its gaps


def _clocks(config: Transpose, t: Tiling, k: TransposeConstants) -> tuple[Vector, Vector, Vector]:
    """Of a tile: turns of the path to L1 and shared memory, a clock each; instructions, of all threads and of the busiest one."""
    words_in, words_out, turns, instructions, longest = _accesses(config, t, k)
    stored, read = _conflicts(config, t)
    return turns + k.shared * (words_in * stored + words_out * read) / 32, instructions, longest


@of_class
def _accesses(config: Transpose, t: Tiling, k: TransposeConstants) -> tuple[Vector, ...]:
    """Of a tile: words stored to shared memory and read from there, turns of loads and stores, and instructions: of all threads,
    and of the busiest one, as there may be fewer vectors than threads."""
    size, vector_in, vector_out = t.in_bytes, config.vector_in(t), config.vector_out(t)
    bytes_in, bytes_out = sum(c.dtype.bytes for c in t.transposed), sum(c.dtype.bytes for c in t.view.outputs)
    tile, halo = config.tile_rows * config.tile_columns, config.halo(t)
    shifted = config.loads_shifted
    loaded = tile * (1 + halo / config.tile_columns) * where(shifted, 1 + vector_in / config.tile_rows, 1.0)
    words_in = loaded * where(shifted | (size >= 4), 1.0, size / 4) * max(1.0, size / 4) * bytes_in / size
    words_out = where(vector_out * size >= 4, tile * bytes_in / 4, tile)
    # One word more for every vector.
    words_out = words_out * where((halo > 0) & (size < 4), 1 + 4 / (vector_out * size), 1.0)
    turns = k.load * where(shifted, 1.4, 1.0) * loaded * bytes_in / minimum(128, 32 * config.load_bytes)
    turns = turns + k.store * tile * bytes_out / minimum(128, 32 * config.store_bytes)
    load, load_element = where(shifted, k.loaded_shifted, k.loaded), where(shifted, k.loaded_element, 0.0)
    store, store_element = where(halo > 0, k.stored_shifted, k.stored), where(halo > 0, k.stored_element, 0.0)
    load, store = load + vector_in * load_element, store + vector_out * store_element  # of a vector
    loads, stores = loaded / vector_in, tile / vector_out
    instructions = loads * load + stores * store + config.threads * k.thread
    longest = ceil_div(loads, config.threads) * load + ceil_div(stores, config.threads) * store + k.thread
    return words_in, words_out, turns, instructions, longest


def _conflicts(config: Transpose, t: Tiling) -> tuple[Vector, Vector]:
    """Turns that a warp's access to shared memory takes for its banks: elements of loaded vectors, and words that are read."""
    permuted = where((config.load_bytes == 16) | (config.vector_in(t) == 1), 1, 2)
    stored, read = _aligned_conflicts(config, t)
    if config.loads_shifted:
        stored = bank_turns(_stored(config, t, t.transposed[0].strides[-1] % _APART))
    if config.stores_shifted:
        read = bank_turns(_read(config, t, t.view.outputs[0].strides[t.row] % _APART))
    return where(config.pad == 0, permuted, stored), where(config.pad == 0, 1, read)


@of_class
def _aligned_conflicts(config: Transpose, t: Tiling) -> tuple[Vector, Vector]:
    """The same of elements and words whose lines begin with a vector, so that they do not depend on strides."""
    return bank_turns(_stored(config, t, 0)), bank_turns(_read(config, t, 0))


def _stored(config: Transpose, t: Tiling, stride: int) -> Callable[[Vector], Vector]:
    """The word in shared memory to which a lane of a warp stores an element of its vector; lines are a stride apart."""
    size, vector, shifted = t.in_bytes, config.vector_in(t), config.loads_shifted
    pitch = config.pitch(t, size)
    group = where(shifted, 1, max(1, 4 // size))
    groups = (config.tile_columns + config.halo(t)) // group
    spread = where(shifted | (config.threads % groups != 0), 0, config.threads // groups)
    beside = minimum(maximum(128 // (vector * size), spread), config.tile_rows // vector)

    def word(lane: Vector) -> Vector:
        line = lane // beside * group
        past = line * stride % vector
        return ((lane % beside * vector - past) * pitch + line * size) // 4

    return word


def _read(config: Transpose, t: Tiling, stride: int) -> Callable[[Vector], Vector]:
    """The word in shared memory that a lane of a warp reads for its vector; rows are a stride apart."""
    size, vector, halo = t.in_bytes, config.vector_out(t), config.halo(t)
    pitch, windows = config.pitch(t, size), config.tile_columns // vector

    def word(lane: Vector) -> Vector:
        row = lane // windows
        past = row * stride % maximum(1, halo)
        return (row * pitch + (lane % windows * vector - past + halo) * size) // 4

    return word


@of_class
def _resident(config: Transpose, t: Tiling, target: Target) -> Vector:
    """Blocks that a multiprocessor has at once."""
    loaded = config.tile_rows * (config.tile_columns + config.halo(t)) * sum(c.dtype.bytes for c in t.transposed)
    registers = 23 + where(config.shift == "none", 1.25, 1.36) * loaded / config.threads / 4
    return floor(maximum(1, target.resident_blocks(config.threads, registers, config.smem_bytes(t))))

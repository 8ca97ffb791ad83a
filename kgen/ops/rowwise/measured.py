"""What was measured of rows on an H200 that the models do not tell (docs/notes/rowwise.md): how far a config is from it."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from kgen.dsl.problem import Problem
from kgen.dsl.target import Target, sm
from kgen.dsl.vector import Vector, ceil_div, log2, maximum, negated, where
from kgen.ops.common.memory_bound import load_policy
from kgen.ops.rowwise.kernel import accesses, kept_bytes
from kgen.ops.rowwise.plan import plan_of
from kgen.ops.rowwise.problem import shifted_pack, sums_alone, widest_pack

if TYPE_CHECKING:
    from kgen.ops.rowwise.cluster import RowwiseCluster
    from kgen.ops.rowwise.rowwise import Rowwise

#: Of what was never the better one: more than all that is a matter of degree.
_WRONG = 64
#: Columns up to which rows with vectors of 16 bytes gain by RowwiseSpan, and those with several operands of [N].
_LONGEST_ALIGNED_SPAN, _LONGEST_WITH_COLUMNS = 192, 96
#: Bytes of rows from which on L2 should keep what is read.
_LASTING = 2048


def misfit(config: Rowwise, problem: Problem, target: Target) -> Vector:
    """Of a row that passes by, of a short one of which so many bytes a thread are best, or of another."""
    if _passes_by(problem, target):
        return _of_a_row_that_passes(config, problem)
    wide, phases = _row_bytes(problem), len(plan_of(problem.graph, False).phases)
    if 512 <= wide <= (2**15 if phases == 1 else 2**14) and any(a.kind == "full" for a in accesses(problem)[1]):
        return _of_a_short_row(config, problem, phases)
    return _of_a_row(config, problem, target)


def row_load(problem: Problem, target: Target) -> str:
    """`load` of a default: as `load_policy` says, but for short rows, which gain 1% by evict_last at most, or lose up to 9% where
    lines have parts of several rows."""
    return "default" if _row_bytes(problem) < _LASTING else load_policy(problem, target)


def pack_of_one_access(problem: Problem, shift: bool) -> int:
    """The most elements of a vector that takes one access, from where rows start or where memory is aligned."""
    widest = max((a.bytes for a in itertools.chain(*accesses(problem)) if a.kind == "full"), default=4)
    return min(shifted_pack(problem) if shift else widest_pack(problem), 16 // widest)


def limits_registers(problem: Problem) -> bool:
    """Whether some rows gain by a limit of registers: of f32 with several operands of [N]."""
    return _has_several_columns(problem) and any(a.kind == "full" and a.bytes == 4 for a in accesses(problem)[0])


def _row_bytes(problem: Problem) -> int:
    """Bytes that are kept of a row."""
    return int(problem.leading[-1] * kept_bytes(problem))


def _passes_by(problem: Problem, target: Target) -> bool:
    """Whether a row is long and not needed again, so that it is best read once, and as many others as there is room for."""
    enough = 2**15 if plan_of(problem.graph, True).online else 2**16
    rows = math.prod(problem.leading[:-1])
    return _row_bytes(problem) > enough and sums_alone(problem) and rows >= 2 * target.sm_count


def _of_a_row_that_passes(config: Rowwise, problem: Problem) -> Vector:
    online = bool(plan_of(problem.graph, True).online)
    row, unroll = (512, 4) if online else (256, 8)
    fits = (config.keep == "none") & (config.row_threads == row) & (config.cluster == 1) & (config.unroll == unroll)
    fits = fits & (config.algorithm == ("online" if online else "two_pass"))
    return where(fits & (config.threads == row) & (config.columns == "late"), 0, 1)


def _of_a_short_row(config: Rowwise, problem: Problem, phases: int) -> Vector:
    """A thread has 32 bytes of each operand, in registers.

    Of weights across two accesses, of which more are to be under way, it has 64. Other weights come before the row, where
    registers are not what limits the threads of a multiprocessor; but three of 16 bits, which become f32 there, come with it,
    and more of the row at a time.
    """
    inputs = accesses(problem)[0]
    weights = [a.bytes for a in inputs if a.kind == "column"]
    shift = pack_of_one_access(problem, True) > pack_of_one_access(problem, False)
    pack = pack_of_one_access(problem, shift)
    early = bool(weights) and not shift
    mine = (64 if shift and weights else 32) * sum(a.kind == "full" for a in inputs)
    ideal = max(0, round(math.log2(_row_bytes(problem) / mine)))
    if early and len(weights) > 2 and max(weights) < 4 and 0 < ideal <= 7:
        early, ideal = False, ideal - 1
    # Half as many where that leaves none without a vector: 32 threads for 96 vectors, not 64. One phase is too short for that
    # to count, and so are two without weights in 128 threads.
    vectors = problem.leading[-1] / pack
    uneven = vectors % 2**ideal and vectors % 2 ** (ideal - 1) == 0 if ideal > 0 and not shift else False
    if uneven and phases > 1 and (weights or ideal > 7):
        ideal -= 1
    # Three vectors for each of 512 threads, not one or two for each of 1024.
    if ideal == 10 and not shift and 1024 < vectors <= 3 * 512:
        ideal = 9
    row = config.row_threads
    before = (row <= 128) & early
    wrong = (config.keep != "registers") | (config.cluster > 1) | (config.algorithm == "online") | (config.pack != pack)
    wrong = wrong | _wrong_block(config, before)
    beyond = log2(row) - ideal
    return where(wrong, _WRONG, 0) + where(beyond < 0, 16 - beyond, beyond)


def _of_a_row(config: Rowwise, problem: Problem, target: Target) -> Vector:
    """In registers where it fits, where a thread has half a vector of 16 bytes to eight of them.

    Online evaluates more exponentials, which pays where they are cheap; of a mean and a variance two passes were better.
    """
    registers, again = config.keep == "registers", config.keep == "none"
    row, lanes, several = config.row_threads, config.row_threads * config.cluster, config.cluster > 1
    cheap = all(o.dtype.bits <= 16 for o in problem.outputs)
    softmax = any(n.op == "sum" for n in plan_of(problem.graph, True).online.values())
    wrong = (config.algorithm == "online") & negated((lanes > 32) & (several | cheap) & softmax)
    wrong = wrong | (several & (row < 128)) | (again & ((row < 256) | (config.unroll != 4)))
    wrong = wrong | _wrong_block(config, False) | _wrong_vector(config, problem, lanes)
    mine = ceil_div(problem.leading[-1], lanes) * kept_bytes(problem)
    held = (mine <= where(row < 1024, 128, 256)) & (
        ((mine >= 8) & (config.step < 2 * problem.leading[-1])) | (lanes == 1)
    )
    wrong = wrong | (registers & negated(held))
    # Long rows of f32 with several operands of [N] have 66 or 73 registers a thread: one block of 512 threads, or two that are
    # limited to 64.
    many: Vector = False
    if limits_registers(problem):
        many = registers & (row == 512) & ((config.shift & (mine > 96)) | ((config.pack == 2) & (mine > 120)))
    wrong = wrong | ((config.blocks_per_sm != 0) != many)
    # Alone on its multiprocessor, a block that has so many columns leaves the memory idle.
    if sm(90).runs_on(target.arch):
        wrong = wrong | ((row == 1024) & negated(several) & (problem.leading[-1] > 32 * 1024))
    # Clusters of eight small blocks find places for all rows at once, where those of large ones take turns.
    few = math.prod(problem.leading[:-1]) <= target.sm_count
    turns = registers & several & negated((config.cluster == 8) & (row == 256)) & few
    return where(wrong, _WRONG, where(registers, 0, 2) + where(turns, 1, 0))


def _wrong_vector(config: Rowwise, problem: Problem, lanes: Vector) -> Vector:
    """Whether a vector is not the widest of one access; of shifted ones the widest that so many threads can have."""
    plain, shifted = (pack_of_one_access(problem, shift) for shift in (False, True))
    wider = (2 * config.pack <= shifted) & (2 * (2 * config.pack - 1) <= lanes)
    return where(config.shift, wider | (config.pack > shifted), config.pack != plain)


def _wrong_block(config: Rowwise, before: Vector) -> Vector:
    """Whether operands of [N] are not read when they should, `before` the row or with it, or a block has other rows than best."""
    row = config.row_threads
    threads = maximum(row, where((row <= 32) & before, 64, 128))
    return ((config.columns == "early") != before) | (config.threads != threads)


def left_to_blocks(problem: Problem) -> str:
    """Why a row is better not shared by a cluster that loops; nothing where it is."""
    full = [a.bytes for a in itertools.chain(*accesses(problem)) if a.kind == "full"]
    holds = any(a.kind == "column" for a in accesses(problem)[0])
    row, least = (kept_bytes(problem), 2**17) if holds else (max(full, default=4), 2**18)
    if problem.leading[-1] < 32768 or problem.leading[-1] * row < least:
        return f"rows of less than 32768 columns or {least // 1024} KB are best kept by a block or two"
    return "rows of which nothing but sums is asked for need not wait for one another" if sums_alone(problem) else ""


def _has_several_columns(problem: Problem) -> bool:
    """Whether several operands of [N] are read."""
    return sum(a.kind == "column" for a in accesses(problem)[0]) > 1


def longest_span(problem: Problem, aligned: bool, widest: int) -> int:
    """The longest rows like a problem's that gain by RowwiseSpan; 0 where those of its length do not.

    Random numbers come by four, of which single elements use one. `aligned`: rows have vectors of 16 bytes, of elements of
    `widest` bytes. Of 2^n and of 6, 12, ... such vectors threads have equal shares in registers.
    """
    if any(n.op == "random" for n in problem.graph.nodes):
        return 64
    if aligned:
        vectors = problem.leading[-1] * widest // 16
        odd = vectors // (vectors & -vectors) if vectors else 1
        if odd == 1 or (odd == 3 and vectors > 3):
            return 0
        return _LONGEST_WITH_COLUMNS if _has_several_columns(problem) else _LONGEST_ALIGNED_SPAN
    if sums_alone(problem):
        return 128
    if not any(a.kind == "column" for a in accesses(problem)[0]):
        return 512
    # Threads that keep such rows have unequal shares of them, and of operands of [N]. Of f32 a thread has no room in its
    # registers for two of those with more than 21 elements: 672 columns of a warp.
    return {2: 1024, 4: 672}.get(widest, 512)


def cluster_misfit(config: RowwiseCluster, problem: Problem) -> Vector:
    """One block of 512 threads a multiprocessor, 32 KB of a row a block, slots for three rows.

    Operands of [N] stay in registers, of at least eight blocks unless a thread then has less than 16 columns; in shared
    memory where they do not fit, or are narrow and many: in registers they become f32. Where nothing of that fits, larger
    clusters, then fewer threads, which have more registers; at last [N] is not kept. A thread has at most 16 columns of a part,
    and 64 bytes; more than four parts, unrolled, take too many of the registers that 512 threads have.
    """
    held = [a.bytes for a in accesses(problem)[0] if a.kind == "column"]
    length = problem.leading[-1]
    wanted = max(length * kept_bytes(problem) / 32768, min(8, length // 8192) if held else 2)
    parts, early = config.parts(problem), config.columns == "early"
    many = (config.unroll > 1) & (config.unroll * config.pack > min(16, 64 // max(1, kept_bytes(problem))))
    wrong = many | (config.cluster < min(wanted, 16)) | (config.threads < 256)
    wrong = wrong | (early & (config.threads == 512) & (parts > 4))
    if max(held, default=4) < 4:
        wrong = wrong | (config.early_registers(problem) > 32)
    found = where(wrong, _WRONG, 0) + 16 * ((config.columns == "late") & bool(held)) + where(config.threads < 512, 8, 0)
    found = found + 2 * log2(config.cluster) + where(config.columns == "shared", 1, 0)
    enough = maximum(5, 3 * parts)
    return 32 * found + where(config.slots < enough, 16 + enough - config.slots, config.slots - enough)

"""Operands whose rows follow one another without gaps: a block's rows are one span of memory, with a place in shared memory."""

from __future__ import annotations

import functools

from kgen.dsl.problem import Operand, Problem, dense_strides
from kgen.ops.rowwise.access import Access
from kgen.ops.rowwise.kernel import accesses


@functools.lru_cache(maxsize=1024)
def full_operands(problem: Problem) -> tuple[dict[str, Access], dict[str, Access]]:
    """The inputs that have a row for each of the result and are read, and such outputs, by name."""
    used = {n.attr for n in problem.graph.nodes if n.op == "input"}
    inputs, outputs = accesses(problem)
    read = {o.name: a for o, a in zip(problem.inputs, inputs) if a.kind == "full" and o.name in used}
    return read, {o.name: a for o, a in zip(problem.outputs, outputs) if a.kind == "full"}


def is_dense(o: Operand) -> bool:
    """Whether an operand's rows follow one another without gaps, from a multiple of 16 bytes on."""
    given, dense = ([s for s, n in zip(strides, o.shape) if n > 1] for strides in (o.strides, dense_strides(o.shape)))
    return o.align % 16 == 0 and given == dense


def is_one_span(problem: Problem) -> bool:
    """Whether a row is read, and rows follow one another without gaps in every operand that has one for each."""
    read, written = full_operands(problem)
    return bool(read) and all(is_dense(problem.operand(name)) for name in (*read, *written))


@functools.lru_cache(maxsize=1024)
def slots_of(problem: Problem, replace: bool) -> tuple[dict[str, int], tuple[int, ...]]:
    """The slot of each operand in shared memory, and the bytes of an element in each slot.

    To `replace`, an output has the slot of an input whose elements are as large, while there is one: each thread has read what
    it replaces.
    """
    read, written = full_operands(problem)
    slot, sizes = {name: i for i, name in enumerate(read)}, [a.bytes for a in read.values()]
    free = list(range(len(sizes))) if replace else []
    for name, a in written.items():
        fits = [i for i in free if sizes[i] == a.bytes]
        if fits:
            free.remove(fits[0])
        else:
            sizes.append(a.bytes)
        slot[name] = fits[0] if fits else len(sizes) - 1
    return slot, tuple(sizes)


@functools.lru_cache(maxsize=4096)
def bank_conflicts(row_threads: int, length: int, apart: int, size: int, pack: int = 1) -> int:
    """In how many parts a warp's access to a vector a thread of its rows in shared memory is made.

    The vectors of `pack` elements of `size` bytes, of the threads of a row of `length`, begin so many elements `apart`. Of those
    of 8 bytes half a warp is served at once, of 16 a quarter, in as many parts as words of one bank are wanted.
    """
    starts = [r * length + lane * apart for r in range(32 // row_threads) for lane in range(row_threads)]
    at_once = 32 * 4 // max(4, pack * size)
    parts = 0
    for first in range(0, 32, at_once):
        served = starts[first : first + at_once]
        banks = [word % 32 for word in {(start + e) * size // 4 for start in served for e in range(pack)}]
        parts += max(map(banks.count, banks))
    return parts

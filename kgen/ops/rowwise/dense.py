"""Operands whose rows follow one another without gaps: a block's rows are one span of memory, with a place in shared memory."""

from __future__ import annotations

import functools
import itertools

from kgen.codegen.names import identifier
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


def places(slots: tuple[dict[str, int], tuple[int, ...]], elements: int) -> tuple[tuple[str, int], ...]:
    """Where each operand's slot of so many elements begins in shared memory, in bytes, by the operand's name in a template."""
    slot, sizes = slots
    starts = list(itertools.accumulate((elements * size for size in sizes), initial=0))
    return tuple((identifier(name), starts[i]) for name, i in slot.items())

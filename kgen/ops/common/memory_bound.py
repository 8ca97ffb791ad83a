"""MemoryBound: what schedules have in common whose time is that of moving bytes, most of them by vectors of `pack` elements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from kgen.dsl.choice import Choice, rule, sized
from kgen.dsl.problem import WIDEST_ACCESS, NormalProblem, Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Arch, Target, sm
from kgen.dsl.types import bf16, e4m3, e5m2
from kgen.dsl.vector import Vector, log2, minimum, negated

Config = TypeVar("Config", bound="MemoryBound")

#: Bytes of a sector, which L2 reads and writes whole, of a line of four of them, and of a row of a bank of device memory.
SECTOR, LINE, PAGE = 32, 128, 1024
#: A config's `load` and `store` as what follows the number of elements in load_vector's and store_vector's template arguments.
LOADS = {
    "default": "",
    "no_allocate": ", LoadNoAllocate",
    "evict_last": ", LoadEvictLast",
    "streaming": ", LoadStreaming",
}
STORES = {"default": "", "streaming": ", StoreStreaming"}


def load_policy(problem: Problem, target: Target) -> str:
    """`load` of a default: where L2 cannot hold what is read and written, it is best full of what is read.

    Lines that were written then leave it first, in longer runs: 2 to 4% on an H200 (docs/notes/rowwise.md, elementwise.md).
    """
    written = sum(o.elements * o.dtype.bytes for o in problem.outputs)
    large = problem.bytes > 2 * target.l2_bytes and 8 * written > problem.bytes
    return "evict_last" if large and sm(80).runs_on(target.arch) else "default"


def bytes_in_flight(target: Target, latency: float) -> float:
    """What hides a latency at an SM's share of the bandwidth (Little's law): 25 KB on an H200, of 700 ns."""
    return float(latency * target.bandwidth / target.sm_count)


def narrowness(size: Vector, halving: float) -> Vector:
    """How much longer vectors of so many bytes take than those of 16, where each halving costs the part `halving`."""
    return 1 + halving * log2(WIDEST_ACCESS / minimum(WIDEST_ACCESS, size))


def least_arch(problem: Problem) -> Arch:
    """The least architecture on which all dtypes of a problem exist."""
    dtypes = {o.dtype for o in problem.operands}
    return sm(89) if dtypes & {e4m3, e5m2} else sm(80) if bf16 in dtypes else sm(75)


class MemoryBound(Schedule):
    """Runs wherever the operands' dtypes exist."""

    target = sm(75)

    @rule
    def dtype_of_the_target(self, problem: Problem, target: Target) -> bool:
        """the operands' dtype needs a newer architecture (bf16: sm_80; fp8: sm_89)"""
        return least_arch(problem).runs_on(target.arch)

    @rule
    @sized
    def policy_of_the_target(self, problem: Problem, target: Target) -> Vector:
        """a cache policy (evict_last) needs a newer architecture (sm_80)"""
        return negated(self._evicts) | sm(80).runs_on(target.arch)

    @classmethod
    def default(cls: type[Config], problem: NormalProblem, target: Target) -> Config:
        """The model's best of the shortlist."""
        from kgen.tuner.best import best  # here, as it loads numpy

        return best(cls, problem, target)[0]

    def arch(self, problem: Problem) -> Arch:
        """The architecture that the source is for: the least with all that the config uses."""
        least = least_arch(problem)
        return max(least, sm(80)) if self._evicts else least

    @property
    def _evicts(self) -> Vector:
        """Whether loads have a policy of L2."""
        return getattr(self, "load", "default") == "evict_last"


class VectorSchedule(MemoryBound):
    """A thread accesses memory by vectors of `pack` elements, the field that a subclass declares."""

    pack: Choice[int]

    @rule
    def aligned(self, problem: Problem, target: Target) -> bool:
        """a vector's access needs the alignment of its operand (pack * size, at most 16 bytes)"""
        return all(min(WIDEST_ACCESS, self.pack * size) <= align for size, align in self.vectors_of(problem))

    @rule
    def moderate_vectors(self, problem: Problem, target: Target) -> bool:
        """the widest operand's vector is at most two accesses of 16 bytes"""
        return self.pack == 1 or self.pack * self.widest(problem) <= 2 * WIDEST_ACCESS

    @classmethod
    def packs(cls, problem: Problem) -> list[int]:
        """Values of `pack` by which the widest operand's vector is one access."""
        return [pack for pack in cls.pack.values if pack == 1 or pack * cls.widest(problem) <= WIDEST_ACCESS]

    # What a subclass gives.

    @classmethod
    def vectors_of(cls, problem: Problem) -> Iterable[tuple[float, int]]:
        """Of each operand that is accessed by vectors: bytes in memory for each of their elements, and of its alignment."""
        raise NotImplementedError

    @classmethod
    def widest(cls, problem: Problem) -> int:
        """Bytes of the widest element of which a thread has `pack`."""
        raise NotImplementedError

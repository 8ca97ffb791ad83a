"""The arithmetic of timing: medians with 95% intervals, who is out of the race, how many sets of operands leave the L2 cold.

Knows neither GPU nor torch.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

#: More sets of operands than this are never made; see `rotation`.
MOST_SETS = 512
#: The least number of samples for whose median an interval of 95% exists.
_LEAST = 6


@dataclass(frozen=True)
class Policy:
    """When a median is known well enough: half its 95% interval within `relative` of it, or within `absolute` seconds.

    Between `least` and `most` samples; six is the least for which an interval of 95% exists. `seconds` limits what one
    candidate's samples may take, but for six. Samples begin when the candidates have run for `warm` seconds: an H200 holds its
    clock for 30 to 100 ms of a load beyond its power limit, and products lose more or less by it (docs/notes/ranges.md).
    Launches that are timed in graphs, short ones, have pauses between them and are not warmed up.
    """

    relative: float = 0.01
    absolute: float = 0.5e-6
    least: int = 6
    most: int = 1000
    seconds: float = 2.0
    warm: float = 0.0

    def enough(self, samples: Sequence[float]) -> bool:
        """Whether so many samples can be judged."""
        count = len(samples)
        return count >= self.least or (count >= _LEAST and sum(samples) > self.seconds)

    def __str__(self) -> str:
        return f"median of {self.least}..{self.most}, 95% within {self.relative:g} or {self.absolute:g} s, L2 cold"


@dataclass(frozen=True)
class Timing:
    """A median time in seconds with its 95% interval, over `samples`.

    `flags` say what a reader must know: "graph" (timed in a CUDA graph), "warm_l2", "power_capped", "thermal" (kept for want
    of better), "out_of_race" (stopped early, being slower), "impossible" (below the floor given by the caller: no result).
    `discarded` counts samples lost to thermal throttling. `clocks` has medians: sm_mhz, memory_mhz, power_w, temperature_c.
    """

    seconds: float
    lower: float
    upper: float
    samples: int
    flags: tuple[str, ...] = ()
    discarded: int = 0
    clocks: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def impossible(self) -> bool:
        """Whether the time is below what the hardware can do: the work was not done, or not timed."""
        return "impossible" in self.flags


def rotation(set_bytes: int, l2_bytes: int, free_bytes: int | None = None) -> int:
    """How many sets of operands, of `set_bytes` each, come to three times the L2; at least two.

    At most MOST_SETS, and at most half of `free_bytes`: fewer than wanted make the timing a "warm_l2" one.
    """
    wanted = max(2, math.ceil(3 * l2_bytes / max(set_bytes, 1)) + 1)
    room = MOST_SETS if free_bytes is None else max(1, free_bytes // 2 // max(set_bytes, 1))
    return min(wanted, MOST_SETS, room)


def is_warm(sets: int, set_bytes: int, l2_bytes: int) -> bool:
    """Whether so few sets leave operands in the L2 from their last use."""
    return sets * set_bytes < 3 * l2_bytes and (sets - 1) * set_bytes < 2 * l2_bytes


@functools.cache
def _rank(samples: int) -> int:
    """The 1-based rank of the lower end of a 95% interval for the median; distribution-free, by the binomial law."""
    total, rank = 0, 0
    while 40 * (total + math.comb(samples, rank)) <= 2**samples:
        total += math.comb(samples, rank)
        rank += 1
    return max(rank, 1)


def interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Median, lower and upper end of its 95% interval by order statistics; the extremes for fewer than six samples."""
    ordered = sorted(samples)
    rank = _rank(len(ordered))
    return statistics.median(ordered), ordered[rank - 1], ordered[-rank]


class Race:
    """Which candidates still need samples. Those in `keep` are never dropped."""

    def __init__(self, names: Collection[str], policy: Policy, keep: Collection[str] = (), race: bool = True) -> None:
        self.samples: dict[str, list[float]] = {name: [] for name in names}
        self.policy = policy
        self.keep = frozenset(names if not race else keep)
        self.out: set[str] = set()

    def add(self, round_: Mapping[str, float]) -> None:
        """Takes one round's samples, and drops who has lost: interval wholly above that of the best."""
        for name, seconds in round_.items():
            self.samples[name].append(seconds)
        judged = {n: interval(s) for n, s in self.samples.items() if self.policy.enough(s)}
        if judged:
            bar = min(judged.values())[2]
            self.out |= {n for n, (_, lower, _) in judged.items() if lower > bar and n not in self.keep}

    def _settled(self, name: str) -> bool:
        taken = self.samples[name]
        if not self.policy.enough(taken):
            return False
        median, lower, upper = interval(taken)
        close = upper - lower <= 2 * max(self.policy.relative * median, self.policy.absolute)
        return close or len(taken) >= self.policy.most or sum(taken) > self.policy.seconds

    def active(self) -> list[str]:
        """Who is to be sampled next: all who are still in the race while any of them is not settled."""
        there = [name for name in self.samples if name not in self.out]
        return [] if all(map(self._settled, there)) else there

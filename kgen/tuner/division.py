"""Division: the buckets that a range of sizes was divided into, and what is known of their regret."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kgen.dsl.span import Span

C = TypeVar("C", bound=Hashable)
#: Sizes in the order of the range's dimensions; or their places in the spans.
Point = tuple[int, ...]


@dataclass(frozen=True)
class Bucket(Generic[C]):
    """Sizes that one config serves: all of `spans`, a span for each dimension.

    `timed` are its sizes at which the config was timed, `regrets` those at these sizes.
    """

    spans: tuple[Span, ...]
    config: C
    timed: tuple[Point, ...]
    regrets: tuple[float, ...]

    @property
    def regret(self) -> float:
        """The worst that was timed; 0 where nothing was."""
        return max(self.regrets, default=0.0)

    @property
    def mean(self) -> float:
        """The mean of those that were timed."""
        return sum(self.regrets) / len(self.regrets) if self.regrets else 0.0

    def __contains__(self, sizes: Point) -> bool:
        return all(size in span for size, span in zip(sizes, self.spans))


@dataclass(frozen=True)
class Check(Generic[C]):
    """What was timed at sizes drawn at random: the bucket's config, and the fastest."""

    sizes: Point
    config: C
    seconds: float
    best: C
    best_seconds: float

    @property
    def regret(self) -> float:
        return self.seconds / self.best_seconds - 1


@dataclass(frozen=True)
class Division(Generic[C]):
    """The buckets of a range, and how they were checked. `points` is the number of sizes timed to find them.

    `unserved` are checked sizes of no bucket, or for which its config is not valid.
    """

    buckets: tuple[Bucket[C], ...]
    points: int
    checks: tuple[Check[C], ...]
    unserved: tuple[Point, ...]
    interrupted: bool = False

    @property
    def portfolio(self) -> tuple[C, ...]:
        return tuple(dict.fromkeys(bucket.config for bucket in self.buckets))

    @property
    def bound(self) -> float:
        """The worst regret at any size that was timed, checked ones among them."""
        return max((*(b.regret for b in self.buckets), *(c.regret for c in self.checks)), default=0.0)

    def quantile(self, share: float) -> float | None:
        """The regret that `share` of the checked sizes do not exceed; None without checks."""
        regrets = sorted(check.regret for check in self.checks)
        return regrets[math.ceil(share * len(regrets)) - 1] if regrets else None

    @property
    def beyond(self) -> float | None:
        """The most that the share of sizes with a regret above the worst checked can be, with 95% confidence.

        Of n drawn sizes none is above the worst: so it is where (1 - share)^n is 5%.
        """
        return 1 - 0.05 ** (1 / len(self.checks)) if self.checks else None

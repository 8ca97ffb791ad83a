"""Span: the sizes of one dimension that a range or a list names."""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kgen.dsl.errors import ArgumentError

_SIZE = r"[0-9]{1,18}"
_RANGE = re.compile(rf"({_SIZE})\.\.({_SIZE})(?::({_SIZE}))?")


@dataclass(frozen=True)
class Span:
    """Sizes in ascending order, each once: of `1..8192`, `64..8192:64` (in steps), `1,8,64` or `5`, as it is printed."""

    sizes: range | tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Span:
        """The span of a text. ArgumentError for any other, for sizes below 1, and for a range that is not ascending."""
        match = _RANGE.fullmatch(text.strip())
        if match is not None:
            first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
            if not 1 <= first <= last or step < 1:
                raise ArgumentError(
                    f"malformed range {text!r}; expected the least and then the largest size, as in 1..8192 or 64..8192:64"
                )
            return cls.of(range(first, last + 1, step))
        items = [item.strip() for item in text.split(",")]
        if not all(re.fullmatch(_SIZE, item) and int(item) for item in items):
            raise ArgumentError(f"malformed sizes {text!r}; expected for example 1..8192, 64..8192:64, 1,8,64 or 5")
        return cls.of(sorted({int(item) for item in items}))

    @classmethod
    def of(cls, sizes: Sequence[int]) -> Span:
        """The span of ascending sizes."""
        if len(sizes) == 1:
            return cls(range(sizes[0], sizes[0] + 1))
        return cls(range(sizes[0], sizes[-1] + 1, sizes.step) if isinstance(sizes, range) else tuple(sizes))

    @property
    def low(self) -> int:
        return self.sizes[0]

    @property
    def high(self) -> int:
        return self.sizes[-1]

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[int]:
        return iter(self.sizes)

    def __contains__(self, size: object) -> bool:
        return size in self.sizes

    def part(self, first: int, last: int) -> Span:
        """The sizes at places `first` to `last`, both included."""
        return Span.of(self.sizes[first : last + 1])

    def times(self, factor: int) -> Span:
        """Every size times a factor."""
        if isinstance(self.sizes, range):
            return Span(range(self.low * factor, self.high * factor + 1, self.sizes.step * factor))
        return Span(tuple(size * factor for size in self.sizes))

    def place(self, size: float) -> int:
        """The place of the size that is nearest to another by their ratio."""
        after = bisect.bisect_left(self.sizes, size)
        around = [i for i in (after - 1, after) if 0 <= i < len(self)]
        return min(around, key=lambda i: abs(math.log(self.sizes[i] / size)))

    def ladder(self) -> list[int]:
        """The sizes that stand for it: all of a list; of a range its ends, and what is nearest to the powers of two between.

        So no size of a range is further from one of them than by the root of two, or by a step.
        """
        if not isinstance(self.sizes, range):
            return [*self.sizes]
        powers = (2**i for i in range(self.low.bit_length(), self.high.bit_length()))
        between = (self.sizes[self.place(n)] for n in powers if self.low < n < self.high)
        return [*dict.fromkeys((self.low, *between, self.high))]

    def __str__(self) -> str:
        if len(self) == 1:
            return str(self.low)
        if isinstance(self.sizes, range):
            step = "" if self.sizes.step == 1 else f":{self.sizes.step}"
            return f"{self.low}..{self.high}{step}"
        return ",".join(map(str, self.sizes))

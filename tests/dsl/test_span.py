"""Spans: what a range or a list of sizes names, and how it is printed."""

from __future__ import annotations

import pytest

from kgen.dsl.errors import ArgumentError
from kgen.dsl.span import Span


@pytest.mark.parametrize(
    ("text", "sizes", "printed"),
    [
        ("5", [5], "5"),
        ("3..6", [3, 4, 5, 6], "3..6"),
        (" 64..200:64 ", [64, 128, 192], "64..192:64"),
        ("8,1, 64", [1, 8, 64], "1,8,64"),
        ("8,8", [8], "8"),
        ("7..9:5", [7], "7"),
    ],
)
def test_a_span_is_what_its_text_says(text: str, sizes: list[int], printed: str) -> None:
    span = Span.parse(text)
    assert list(span) == sizes
    assert (span.low, span.high, len(span)) == (sizes[0], sizes[-1], len(sizes))
    assert str(span) == printed
    assert Span.parse(printed) == span
    assert [n for n in range(300) if n in span] == sizes


@pytest.mark.parametrize("text", ["", "0", "8..4", "0..4", "1..8:0", "1,,2", "x", "1..", "-1..4", "1;2"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"malformed (range|sizes)"):
        Span.parse(text)


def test_the_ladder_has_the_ends_and_comes_near_every_size() -> None:
    assert Span.parse("1..8192").ladder() == [2**i for i in range(14)]
    assert Span.parse("3..20").ladder() == [3, 4, 8, 16, 20]
    assert Span.parse("8").ladder() == [8]
    assert Span.parse("100,200,300").ladder() == [100, 200, 300]
    steps = Span.parse("48..4800:48")
    assert steps.ladder() == [48, *(n for n in steps.ladder()[1:-1] if n % 48 == 0), 4800]
    assert all(min(max(n / rung, rung / n) for rung in steps.ladder()) < 1.6 for n in steps)


def test_parts_multiples_and_the_nearest() -> None:
    span = Span.parse("64..8192:64")
    assert str(span.part(1, 3)) == "128..256:64"
    assert str(span.part(2, 2)) == "192"
    assert str(span.times(3)) == "192..24576:192"
    assert str(Span.parse("1,8,64").part(1, 2).times(2)) == "16,128"
    assert [span.sizes[span.place(n)] for n in (1, 90, 91, 128, 10**6)] == [64, 64, 128, 128, 8192]
    assert len(Span.parse(f"1..{10**18 - 1}")) == 10**18 - 1

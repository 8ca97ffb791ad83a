"""Result: ratios, means, worst cases, the JSON, and the table."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from kgen.bench.result import SCHEMA, Comparison, Participant, Result, Time, geometric_mean
from kgen.bench.table import comparison_table
from kgen.dsl.errors import ArgumentError


def time(seconds: float, half: float = 0.0, flags: tuple[str, ...] = ()) -> Time:
    return Time(seconds, seconds - half, seconds + half, 20, flags, 3, {"sm_mhz": 1980.0})


def comparison(problem: str, times: dict[str, float], flops: int = 0, **missing: str) -> Comparison:
    sides = [Participant(name, "ok", "", time(seconds, 0.1 * seconds), 0.25) for name, seconds in times.items()]
    sides += [Participant(name, status, f"because {status}") for name, status in missing.items()]
    return Comparison(problem, f"key {problem}", f"op --shape {problem}", 8000, flops, 1e-9, 3, {"alpha": 1.0},
                      {"before": None, "after": {"throttle": ["idle"]}}, tuple(sides))  # fmt: skip


def result(*comparisons: Comparison) -> Result:
    return Result("op", "0123", {"date": "2026-11-21T00:00:00+00:00"}, {"seed": 0}, comparisons)


def test_geometric_mean() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([1.5]) == pytest.approx(1.5)
    assert geometric_mean([1e-200, 1e-200, 1e-200]) == pytest.approx(1e-200)  # no underflow of the product


def test_a_ratio_is_the_opponents_time_over_kgens_with_the_widest_bounds() -> None:
    ratio = comparison("p", {"kgen": 2.0, "cublas": 3.0}).ratio("cublas")
    assert ratio is not None
    assert ratio.value == pytest.approx(1.5)
    assert ratio.lower == pytest.approx(2.7 / 2.2)
    assert ratio.upper == pytest.approx(3.3 / 1.8)


@pytest.mark.parametrize("status", ["wrong", "absent", "declined", "failed", "impossible"])
def test_only_who_is_ok_has_a_ratio(status: str) -> None:
    c = comparison("p", {"kgen": 2.0}, cublas=status)
    assert c.ratio("cublas") is None
    timed = replace(c, participants=(c.participants[0], Participant("cublas", status, time=time(1e-12))))  # type: ignore[arg-type]
    assert timed.ratio("cublas") is None
    assert timed.rate("cublas") is None
    assert result(timed).summaries() == []


def test_a_wrong_kgen_has_no_ratio() -> None:
    assert comparison("p", {"cublas": 2.0}, kgen="wrong").ratio("cublas") is None


def test_summaries_have_the_mean_the_worst_and_the_number_of_problems() -> None:
    taken = result(
        comparison("a", {"kgen": 1.0, "torch": 2.0, "copy": 1.0}),
        comparison("b", {"kgen": 2.0, "torch": 1.0}),
        comparison("c", {"kgen": 1.0}, torch="failed"),
    )
    torch, copy = taken.summaries()
    assert (torch.opponent, torch.problems, torch.worst, torch.worst_problem) == ("torch", 2, 0.5, "b")
    assert torch.mean.value == pytest.approx(1.0)
    assert torch.mean.lower == pytest.approx(0.9 / 1.1)
    assert torch.mean.upper == pytest.approx(1.1 / 0.9)
    assert (copy.opponent, copy.problems) == ("copy", 1)


def test_rates_are_flops_where_there_are_any_else_bytes() -> None:
    assert comparison("p", {"kgen": 2.0}).rate("kgen") == 4000
    assert comparison("p", {"kgen": 2.0}, flops=10).rate("kgen") == 5


def test_copy_bandwidth_is_the_largest_of_the_run() -> None:
    assert result(comparison("a", {"kgen": 1.0})).bandwidth("copy") is None
    both = result(comparison("a", {"copy": 2.0}), comparison("b", {"copy": 1.0}))
    assert both.bandwidth("copy") == 8000


def test_json_round_trip() -> None:
    taken = result(
        comparison("a", {"kgen": 1.0, "torch": 2.0}, flops=7, triton="absent"), comparison("b", {"kgen": 1.0})
    )
    text = taken.to_json()
    assert json.loads(text)["schema"] == SCHEMA
    assert Result.from_json(text) == taken
    assert Result.from_json(text).to_json() == text


NO_FIELDS = json.dumps({"schema": SCHEMA})
NO_LIST = json.dumps({"schema": SCHEMA, "comparisons": 3})


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"schema": "kgen.bench/0"}', NO_FIELDS, NO_LIST])
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="benchmark result"):
        Result.from_json(text)


def test_an_unknown_status_or_field_is_refused() -> None:
    data = json.loads(result(comparison("a", {"kgen": 1.0})).to_json())
    data["comparisons"][0]["participants"][0]["status"] = "splendid"
    with pytest.raises(ArgumentError, match="splendid"):
        Result.from_json(json.dumps(data))
    data = json.loads(result(comparison("a", {"kgen": 1.0})).to_json())
    data["comparisons"][0]["extra"] = 1
    with pytest.raises(ArgumentError, match="extra"):
        Result.from_json(json.dumps(data))


def test_json_holds_no_nan() -> None:
    broken = comparison("a", {"kgen": math.nan})
    with pytest.raises(ValueError, match="JSON"):
        result(broken).to_json()


def test_the_table_shows_every_participant_and_says_why_one_is_missing() -> None:
    taken = result(
        comparison("a", {"kgen": 1e-5, "torch": 2e-5}, triton="absent", cublas="wrong"),
        comparison("b", {"kgen": 1e-5, "torch": 1e-5}, triton="absent", cublas="declined"),
    )
    table = comparison_table(taken)
    assert table.header == ("problem", "kgen", "rate", "torch", "triton", "cublas")
    assert table.rows[0] == ("a", "10.0 us ±10.0%", "1 GB/s", "20.0 us ±10.0% 2.000x", "absent", "wrong")
    text = str(table)
    assert "triton absent: because absent" in text
    assert "cublas wrong at a: because wrong" in text
    assert "vs torch: geometric mean 1.414x" in text
    assert "worst 1.000x at b" in text


def test_the_table_marks_what_was_measured_at_the_power_limit() -> None:
    capped = Participant("kgen", "ok", "", time(1e-5, flags=("power_capped",)))
    c = replace(comparison("a", {}), participants=(capped,))
    assert "*" in comparison_table(result(c)).rows[0][1]
    assert "power limit" in str(comparison_table(result(c)))
    assert "power limit" not in str(comparison_table(result(comparison("a", {"kgen": 1.0}))))

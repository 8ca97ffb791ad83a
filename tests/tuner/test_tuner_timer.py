"""Intervals, races and rotation; timing against a clock that needs no GPU."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence

import pytest

from kgen.dsl.errors import ArgumentError
from kgen.gpu.telemetry import Sample
from kgen.tuner.race import MOST_SETS, Policy, Race, interval, is_warm, rotation
from kgen.tuner.timer import HOPELESS, interleaved


class FakeClock:
    """Each candidate has a true time; samples scatter by a share of it, and drift with the number of rounds."""

    def __init__(
        self, times: Mapping[str, float], noise: float = 0.01, throttle: Sequence[tuple[str, ...]] = ()
    ) -> None:
        self.times, self.noise, self.throttle = times, noise, list(throttle)
        self.source = random.Random(0)
        self.rounds: list[list[str]] = []
        self.cooled = 0

    def prepare(self, candidates: Mapping[str, object]) -> dict[str, float]:
        return {name: self._sample(name) for name in candidates}

    def _sample(self, name: str) -> float:
        return self.times[name] * self.source.gauss(1, self.noise)

    def batch(self, rounds: Sequence[Sequence[str]]) -> list[dict[str, float]]:
        self.rounds += [list(names) for names in rounds]
        return [{name: self._sample(name) for name in names} for names in rounds]

    def state(self) -> Sample:
        throttle = self.throttle.pop(0) if self.throttle else ()
        return Sample(1980, 3201, 500.0, 60, throttle)

    def cool(self) -> None:
        self.cooled += 1

    @property
    def flags(self) -> tuple[str, ...]:
        return ()


def run(clock: FakeClock, **options: object):
    return interleaved(dict.fromkeys(clock.times, lambda index: None), sets=4, clock=clock, **options)  # type: ignore[arg-type]


def test_interval_by_order_statistics() -> None:
    """The ranks in the tables of the sign test: for 10 samples the 2nd and 9th, for 20 the 6th and 15th, 100: 40th, 61st."""
    assert interval(list(range(1, 7))) == (3.5, 1, 6)
    assert interval(list(range(1, 11))) == (5.5, 2, 9)
    assert interval(list(range(20, 0, -1))) == (10.5, 6, 15)
    assert interval(list(range(1, 101))) == (50.5, 40, 61)
    assert interval([3.0, 1.0]) == (2.0, 1.0, 3.0)
    assert interval([5.0]) == (5.0, 5.0, 5.0)


@pytest.mark.parametrize("count", [6, 17, 60])
def test_intervals_hold_the_median_as_often_as_they_say(count: int) -> None:
    source = random.Random(count)
    held = 0
    for _ in range(2000):
        _, lower, upper = interval([source.expovariate(1.0) for _ in range(count)])
        held += lower <= 0.6931471805599453 <= upper
    assert held / 2000 >= 0.94


def test_rotation_exceeds_the_l2_three_times() -> None:
    mb = 1 << 20
    assert rotation(6 * mb, 60 * mb) == 31
    assert 6 * mb * rotation(6 * mb, 60 * mb) >= 3 * 60 * mb
    assert rotation(400 * mb, 60 * mb) == 2
    assert rotation(1024, 60 * mb) == MOST_SETS
    assert rotation(100 * mb, 60 * mb, free_bytes=250 * mb) == 1
    assert rotation(100 * mb, 60 * mb, free_bytes=0) == 1
    assert is_warm(MOST_SETS, 1024, 60 * mb)
    assert not is_warm(31, 6 * mb, 60 * mb)
    assert not is_warm(2, 400 * mb, 60 * mb)
    assert is_warm(1, 100 * mb, 60 * mb)


def test_losers_drop_out_and_the_kept_stay() -> None:
    clock = FakeClock({"fast": 1e-3, "near": 1.005e-3, "slow": 1.5e-3, "kept": 2e-3}, noise=0.005)
    timings = run(clock, keep=("kept",), policy=Policy(relative=0.001, absolute=0))
    assert "out_of_race" in timings["slow"].flags
    assert timings["slow"].samples < timings["fast"].samples == timings["kept"].samples
    assert "out_of_race" not in timings["kept"].flags
    for name, truth in clock.times.items():
        assert timings[name].lower <= timings[name].seconds <= timings[name].upper
        assert timings[name].seconds == pytest.approx(truth, rel=0.02)
    assert sum("slow" in names for names in clock.rounds) == timings["slow"].samples


def test_without_a_race_all_get_the_same_number_of_samples() -> None:
    clock = FakeClock({"fast": 1e-3, "slow": 2e-3, "hopeless": 1e-2})
    timings = run(clock, race=False)
    assert len({t.samples for t in timings.values()}) == 1
    assert all("out_of_race" not in t.flags for t in timings.values())


class CappedClock(FakeClock):
    """Under a load of 50 ms one candidate becomes slower by half."""

    ran = 0.0

    def batch(self, rounds: Sequence[Sequence[str]]) -> list[dict[str, float]]:
        taken = super().batch(rounds)
        for samples in taken:
            if self.ran > 0.05:
                samples["hungry"] *= 1.5
            self.ran += sum(samples.values())
        return taken


def test_samples_begin_under_the_load_that_is_asked_for() -> None:
    times = {"hungry": 1e-3, "other": 1.2e-3}
    assert run(CappedClock(times), policy=Policy(most=10))["hungry"].seconds == pytest.approx(1e-3, rel=0.03)
    clock = CappedClock(times)
    timings = run(clock, policy=Policy(most=10, warm=0.06))
    assert timings["hungry"].seconds == pytest.approx(1.5e-3, rel=0.03)
    assert timings["other"].seconds == pytest.approx(1.2e-3, rel=0.03)
    # What ran before counts neither as a sample nor against the most there may be.
    assert 6 <= timings["other"].samples <= 10
    assert len(clock.rounds) >= 6 + 0.06 / 2.7e-3


def test_what_is_timed_by_graphs_is_not_put_under_load() -> None:
    def rounds(seconds: float, policy: Policy) -> int:
        clock = FakeClock({"one": seconds, "other": seconds * 1.2})
        run(clock, policy=policy)
        return len(clock.rounds)

    assert rounds(60e-6, Policy(warm=0.05)) >= rounds(60e-6, Policy()) + 0.05 / (60e-6 * 2.3)
    assert rounds(40e-6, Policy(warm=0.05)) == rounds(40e-6, Policy())


def test_hopeless_candidates_are_not_run_again() -> None:
    clock = FakeClock({"fast": 1e-3, "hopeless": 1e-3 * HOPELESS * 2})
    timings = run(clock)
    assert all(names == ["fast"] for names in clock.rounds)
    assert timings["hopeless"].samples == 1
    assert "out_of_race" in timings["hopeless"].flags
    assert timings["hopeless"].seconds == pytest.approx(6e-3, rel=0.1)


def test_rounds_are_interleaved_in_random_order() -> None:
    clock = FakeClock({"a": 1e-3, "b": 1e-3}, noise=0.05)
    run(clock, policy=Policy(relative=1e-6, absolute=0, least=6, most=60))
    both = [names for names in clock.rounds if len(names) == 2]
    assert len(both) == len(clock.rounds) == 60
    first = sum(names[0] == "a" for names in both)
    assert 15 < first < 45


def test_sampling_stops_when_the_interval_is_narrow_or_the_limit_reached() -> None:
    quiet = run(FakeClock({"a": 1e-3}, noise=1e-4))["a"]
    assert quiet.samples <= 20
    assert quiet.upper - quiet.lower <= 2 * 0.01 * quiet.seconds
    noisy = run(FakeClock({"a": 1e-3}, noise=0.3), policy=Policy(most=200))["a"]
    assert 200 <= noisy.samples < 220
    long = run(FakeClock({"a": 0.9}, noise=0.3))["a"]
    assert long.samples == 6
    assert run(FakeClock({"a": 0.9}, noise=0.3), policy=Policy(least=30, seconds=1.0))["a"].samples == 6
    short = run(FakeClock({"a": 5e-6}, noise=0.02))["a"]
    assert short.upper - short.lower <= 1e-6


def test_drift_hits_all_alike() -> None:
    """A clock that slows down by a third in the course: a sequential measurement would rank a wrong winner first."""

    class Drifting(FakeClock):
        def _sample(self, name: str) -> float:
            return super()._sample(name) * (1 + len(self.rounds) / 300)

    clock = Drifting({"better": 0.97e-3, "worse": 1e-3}, noise=0.002)
    timings = run(clock, race=False, policy=Policy(relative=1e-6, absolute=0, least=6, most=100))
    assert timings["better"].seconds < timings["worse"].seconds


def test_thermal_throttling_is_discarded_and_counted() -> None:
    clock = FakeClock({"a": 1e-3}, throttle=[(), ("hw_thermal_slowdown",), ("sw_thermal_slowdown",), ()])
    timing = run(clock)["a"]
    assert clock.cooled == 3  # a batch between two states is lost where either is hot
    assert timing.discarded > 0
    assert sum(len(names) for names in clock.rounds) == timing.samples + timing.discarded
    assert "thermal" not in timing.flags


def test_a_gpu_that_never_cools_is_timed_all_the_same_and_says_so() -> None:
    clock = FakeClock({"a": 1e-3}, throttle=[("sw_thermal_slowdown",)] * 1000)
    timing = run(clock)["a"]
    assert "thermal" in timing.flags
    assert timing.discarded > 0


def test_power_capped_samples_are_kept_and_marked() -> None:
    timing = run(FakeClock({"a": 1e-3}, throttle=[("sw_power_cap",)]))["a"]
    assert timing.flags == ("power_capped",)
    assert timing.discarded == 0
    assert timing.clocks == {"sm_mhz": 1980, "memory_mhz": 3201, "power_w": 500.0, "temperature_c": 60}


def test_times_below_the_floor_are_impossible() -> None:
    timings = run(FakeClock({"real": 1e-3, "unreal": 1e-4}), floor_seconds=5e-4, race=False)
    assert timings["unreal"].impossible
    assert not timings["real"].impossible


def test_a_warm_l2_is_said() -> None:
    assert "warm_l2" in run(FakeClock({"a": 1e-3}), warm_l2=True)["a"].flags


def test_nothing_to_time_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="0 candidates"):
        interleaved({}, sets=1, clock=FakeClock({}))


def test_race_judges_by_intervals_not_by_medians() -> None:
    race = Race(["a", "b"], Policy())
    source = random.Random(1)
    for _ in range(6):
        race.add({"a": 1e-3 * source.gauss(1, 0.2), "b": 1.05e-3 * source.gauss(1, 0.2)})
    assert not race.out
    assert race.active() == ["a", "b"]
    assert statistics.median(race.samples["a"]) != statistics.median(race.samples["b"])

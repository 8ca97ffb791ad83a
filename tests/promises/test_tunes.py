"""Every operator is tuned without a GPU: ranked, compiled, run on the emulator, stored as modelled, and known the next time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from operators import LAUNCHES, small

from kgen.gpu.target import resolve
from kgen.tuner import candidates, modelled
from kgen.tuner.records import read_config
from kgen.tuner.tune import tune
from kgen.tuning_db import MODELLED, Store, open_store

H200 = resolve("H200")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_store(tmp_path_factory.mktemp("promises") / "tuning.sqlite") as opened:
        yield opened


@pytest.mark.parametrize("name", LAUNCHES)
def test_an_operator_is_tuned(name: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modelled, "COMPILED", 2)  # for real, of the ranking; in 4 rounds where these fail
    monkeypatch.setattr(modelled, "VERIFIED", 1)
    monkeypatch.setattr(candidates, "EXHAUSTIVE", 100)
    problem = small(LAUNCHES[name].definition.graphs[0])
    outcome = tune(problem, target=H200, store=store, device=None)
    assert outcome.trial.status == "ok"
    assert outcome.trial.verified
    assert outcome.trial.origin == MODELLED
    assert outcome.trial.seconds is None
    assert outcome.trial.modelled_seconds > 0
    assert outcome.trial.evidence["emulated"] is True
    assert not outcome.config.broken(outcome.problem, H200)
    assert set(outcome.counts) == {"ok"}
    again = tune(problem, target=H200, store=store, device=None)
    assert again.cached
    assert again.config == outcome.config == read_config(outcome.trial.config)

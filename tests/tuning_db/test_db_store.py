"""The store: what goes in comes out, bests, look-ups without SQL, removal, checks. On every storage."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError

from kgen.dsl.errors import DatabaseError
from kgen.tuning_db import Store, open_store


@contextmanager
def statements(store: Store) -> Iterator[list[str]]:
    seen: list[str] = []

    def note(connection, cursor, statement, parameters, context, executemany):
        seen.append(statement)

    event.listen(store.engine, "before_cursor_execute", note)
    yield seen
    event.remove(store.engine, "before_cursor_execute", note)


def test_a_trial_comes_back_as_it_went_in(store, gpu, toolchain, problem, trial):
    given = trial(
        source_digest="12" * 32,
        registers=168,
        spills=0,
        shared=99_328,
        policy="cold-l2 v1",
        clocks={"sm_mhz": [1980, 1965.5], "throttle": None},
        evidence={"checks": {"exact": True}, "log": "é\n'; DROP TABLE trials; --"},
        created_at=datetime(2025, 3, 1, 12, 30, tzinfo=timezone(timedelta(hours=2))),
    )
    number = store.add_trial(gpu, toolchain, problem(), given)
    (got,) = store.trials(problem(), gpu)
    assert got == replace(given, id=number)
    assert got.clocks == given.clocks
    assert got.evidence == given.evidence
    assert got.created_at.utcoffset() == timedelta(0)


def test_the_store_dates_a_trial_in_utc(store, gpu, toolchain, problem, trial):
    before = datetime.now(timezone.utc)
    store.add_trial(gpu, toolchain, problem(), trial())
    (got,) = store.trials(problem(), gpu)
    assert before <= got.created_at <= datetime.now(timezone.utc)


@pytest.mark.parametrize("status", ["compile_error", "rejected", "wrong", "crashed", "timeout"])
@pytest.mark.parametrize("origin", ["measured", "modelled"])
def test_failed_trials_are_trials(store, gpu, toolchain, problem, trial, status, origin):
    store.add_trial(gpu, toolchain, problem(), trial(status=status, origin=origin, evidence={"why": status}))
    (got,) = store.trials(problem(), gpu, origin=origin)
    assert (got.status, got.origin, got.seconds, got.evidence) == (status, origin, None, {"why": status})


def test_trials_are_filtered_by_all_of_the_key(store, gpu, toolchain, problem, trial):
    other_gpu, other_toolchain = replace(gpu, power_limit=600), replace(toolchain, nvrtc="12.9")
    ids = [
        store.add_trial(gpu, toolchain, problem(), trial(64)),
        store.add_trial(gpu, other_toolchain, problem(), trial(128)),
        store.add_trial(gpu, toolchain, problem(), trial(256, origin="modelled", modelled_seconds=1e-5)),
    ]
    store.add_trial(other_gpu, toolchain, problem(), trial())
    store.add_trial(gpu, toolchain, problem(M=65), trial())
    store.add_trial(gpu, toolchain, problem(digest="ef" * 32), trial())
    assert [t.id for t in store.trials(problem(), gpu)] == ids
    assert [t.id for t in store.trials(problem(), gpu, toolchain)] == [ids[0], ids[2]]
    assert [t.id for t in store.trials(problem(), gpu, toolchain, "modelled")] == [ids[2]]
    with pytest.raises(DatabaseError, match="origin is 'guessed'"):
        store.trials(problem(), gpu, origin="guessed")


def test_shared_facts_are_stored_once(store, gpu, toolchain, problem, trial):
    for _ in range(3):
        store.add_trial(gpu, toolchain, problem(), trial())
    counted = store.statistics()
    assert (len(counted.gpus), counted.problems, counted.configs) == (1, 1, 1)
    assert counted.trials == {"measured": {"ok": 3}, "modelled": {}}
    assert counted.operators == {"hgemm": 3}
    assert store.problems() == [problem()]


def test_the_database_itself_refuses_a_modelled_time_as_measured(store, gpu, toolchain, problem, trial):
    store.add_trial(gpu, toolchain, problem(), trial(origin="modelled", modelled_seconds=1e-5))
    with pytest.raises(IntegrityError), store.engine.begin() as connection:
        connection.execute(text("UPDATE trials SET seconds = 1e-5"))
    with pytest.raises(IntegrityError), store.engine.begin() as connection:
        connection.execute(text("UPDATE trials SET origin = 'measured'"))


def test_best_is_replaced_and_names_what_it_was_compared_with(store, gpu, toolchain, problem, trial):
    first, second = (store.add_trial(gpu, toolchain, problem(), trial(bm)) for bm in (64, 128))
    assert store.best(problem(), gpu) is None
    store.set_best(second)
    assert store.best(problem(), gpu).trial.id == second
    store.set_best(first, {"default": 3e-5, "opponent": {"name": "cublas", "seconds": 2.2e-5}})
    best = store.best(problem(), gpu)
    assert (best.trial.id, best.problem, best.gpu, best.toolchain) == (first, problem(), gpu, toolchain)
    assert best.comparison == {"default": 3e-5, "opponent": {"name": "cublas", "seconds": 2.2e-5}}
    assert store.statistics().best == 1
    assert store.best(problem(), replace(gpu, driver="571")) is None
    assert store.best(problem(M=1), gpu) is None
    store.unset_best(first)
    assert store.best(problem(), gpu) is None
    assert len(store.trials(problem(), gpu)) == 2


def test_each_space_has_a_best_of_its_own(store, gpu, toolchain, problem, trial):
    """What was found among some configs is never taken for the best of all."""
    some, others = "MmaGemm(BM=64)", "MmaGemm(BM=128)"
    narrow = store.add_trial(gpu, toolchain, problem(), trial(64))
    store.set_best(narrow, {"beats_default": True}, space=some)
    assert store.best(problem(), gpu) is None
    assert store.best_of_operator(problem().digest, gpu) == []
    assert store.all_best(gpu, "measured") == []
    whole = store.add_trial(gpu, toolchain, problem(), trial(128))
    store.set_best(whole)
    assert store.best(problem(), gpu).trial.id == whole
    found = store.best(problem(), gpu, space=some)
    assert (found.trial.id, found.space, found.comparison) == (narrow, some, {"beats_default": True})
    assert store.best_of_operator(problem().digest, gpu, space=some) == [found]
    assert store.best(problem(), gpu, space=others) is None
    store.set_best(whole, space=some)
    assert store.best(problem(), gpu, space=some).trial.id == whole
    assert store.statistics().best == 2


def test_measured_comes_before_modelled_and_each_can_be_asked_for(store, gpu, toolchain, problem, trial):
    measured = store.add_trial(gpu, toolchain, problem(), trial(64))
    modelled = store.add_trial(gpu, toolchain, problem(), trial(128, origin="modelled", modelled_seconds=1e-9))
    store.set_best(modelled)
    assert store.best(problem(), gpu).origin == "modelled"
    store.set_best(measured)
    assert store.best(problem(), gpu).trial.id == measured
    assert store.best(problem(), gpu, "modelled").trial.id == modelled
    assert [record.trial.id for record in store.best_of_operator(problem().digest, gpu)] == [measured]
    assert [record.trial.id for record in store.best_of_operator(problem().digest, gpu, "modelled")] == [modelled]


def test_a_toolchain_admits_the_same_nvrtc_and_schema_only(store, gpu, toolchain, problem, trial):
    store.set_best(store.add_trial(gpu, toolchain, problem(), trial()))
    assert store.best(problem(), gpu, toolchain=replace(toolchain, kgen="0.1.1")) is not None
    assert store.best(problem(), gpu, toolchain=replace(toolchain, nvrtc="12.9")) is None
    assert store.best(problem(), gpu, toolchain=replace(toolchain, schema="99" * 8)) is None
    newer = replace(toolchain, nvrtc="14.0")
    store.set_best(store.add_trial(gpu, newer, problem(), trial(128)))
    assert store.best(problem(), gpu).toolchain == newer
    assert store.best(problem(), gpu, toolchain=toolchain).toolchain == toolchain
    assert len(store.best_of_operator(problem().digest, gpu)) == 1


def test_set_best_needs_a_stored_trial_that_is_ok(store, gpu, toolchain, problem, trial):
    with pytest.raises(DatabaseError, match="no trial has the id 12345"):
        store.set_best(12345)
    wrong = store.add_trial(gpu, toolchain, problem(), trial(status="wrong"))
    with pytest.raises(DatabaseError, match="'wrong'"):
        store.set_best(wrong)
    good = store.add_trial(gpu, toolchain, problem(), trial())
    with pytest.raises(DatabaseError, match="comparison"):
        store.set_best(good, {"ratio": float("nan")})
    assert store.best(problem(), gpu) is None


def test_a_warm_look_up_runs_no_sql(store, gpu, toolchain, problem, trial):
    store.set_best(store.add_trial(gpu, toolchain, problem(), trial()))
    digest = problem().digest

    def ask():
        return store.best(problem(), gpu), store.best(problem(M=9), gpu), store.best_of_operator(digest, gpu)

    with statements(store) as seen:
        cold = ask()
    assert len([s for s in seen if s.lstrip().startswith("SELECT")]) == 1  # of all problems of the operator
    with statements(store) as seen:
        assert ask() == cold
    assert seen == []
    cold[2].clear()
    assert len(store.best_of_operator(digest, gpu)) == 1


def test_own_writes_are_seen_and_those_of_others_after_refresh(tmp_path, gpu, toolchain, problem, trial):
    with open_store(tmp_path / "t.sqlite") as mine, open_store(tmp_path / "t.sqlite") as other:
        assert mine.best(problem(), gpu) is None
        other.set_best(other.add_trial(gpu, toolchain, problem(), trial(64)))
        assert mine.best(problem(), gpu) is None
        mine.refresh()
        assert mine.best(problem(), gpu).trial.config.text.startswith("MmaGemm(BM=64")
        mine.set_best(mine.add_trial(gpu, toolchain, problem(), trial(128)))
        assert mine.best(problem(), gpu).trial.config.text.startswith("MmaGemm(BM=128")
        mine.remove(operator="hgemm")
        assert mine.best(problem(), gpu) is None
        assert mine.best_of_operator(problem().digest, gpu) == []


def test_a_look_up_overtaken_by_a_write_is_not_remembered(store):
    def look_up():
        store.refresh()
        return "stale"

    assert store._remembered(("key",), look_up) == "stale"
    assert store._remembered(("key",), lambda: "fresh") == "fresh"


def test_remove_by_gpu_and_operator(store, gpu, toolchain, problem, trial):
    small = replace(gpu, name="NVIDIA L4", arch="sm_89")
    gelu = problem(operator="gelu", digest="12" * 32)
    for card in (gpu, small):
        for what in (problem(), gelu):
            store.set_best(store.add_trial(card, toolchain, what, trial()))
    with pytest.raises(DatabaseError, match="nothing named"):
        store.remove()
    assert store.remove(gpu="no such card") == 0
    assert store.remove(gpu="NVIDIA L4", operator="gelu") == 1
    assert store.best(gelu, small) is None
    assert store.best(gelu, gpu) is not None
    assert store.remove(gpu="NVIDIA L4") == 1
    assert store.remove(operator="hgemm") == 1
    assert store.problems() == [gelu]
    assert store.statistics().best == 1
    assert store.check() == []


def test_check_names_a_best_that_strayed_from_its_trial(store, gpu, toolchain, problem, trial):
    store.set_best(store.add_trial(gpu, toolchain, problem(), trial()))
    assert store.check() == []
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE best SET origin = 'modelled'"))
    (found,) = store.check()
    assert "does not match its trial" in found


def test_importing_the_package_loads_no_sqlalchemy():
    code = "import sys, kgen.tuning_db as t; t.TrialRecord; assert not {'sqlalchemy', 'alembic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import sys, kgen.tuning_db as t; t.open_store; assert 'sqlalchemy' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not hasattr(sys.modules["kgen.tuning_db"], "no_such_name")

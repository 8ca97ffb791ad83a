"""Buckets in the store and in packs: set, replaced, found by class, removed with their trials, refused where malformed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kgen.dsl.errors import DatabaseError
from kgen.tuning_db import (
    BucketRecord,
    NewBucket,
    all_buckets,
    buckets_of,
    export_pack,
    import_pack,
    open_store,
    set_buckets,
)
from kgen.tuning_db.packs import read_pack


def spans(M, N="64"):
    return {"M": M, "N": N}


@pytest.fixture
def problem(problem):
    """Problems whose text has shapes as the tuner writes them."""

    def make(M=64, layout="row", **changes):
        return replace(problem(M, **changes), text=f"a:f16[{M},64]{layout} out:f16[{M},64]row")

    return make


@pytest.fixture
def put(store, gpu, toolchain, problem, trial):
    """Stores buckets of one range, each with a trial of its own: `put({"1..64": 64, "65..512": 512})`."""

    def put(found, space="", toolchain=toolchain, problem=problem, **changes):
        new = []
        for text, size in found.items():
            number = store.add_trial(gpu, toolchain, problem(size), trial(size, **changes))
            new.append(NewBucket(number, spans(text), {"regret": 0.01}))
        set_buckets(store, new, space)

    return put


def texts(found):
    return [record.spans["M"] for record in found]


def test_buckets_come_back_as_they_were_stored(store, gpu, toolchain, problem, put):
    put({"1..64": 64, "65..512": 512})
    newest, first = buckets_of(store, problem(64), gpu)
    assert isinstance(first, BucketRecord)
    assert (first.problem, first.gpu, first.toolchain, first.spans) == (problem(64), gpu, toolchain, spans("1..64"))
    assert first.evidence == {"regret": 0.01}
    assert first.trial.config.text == "MmaGemm(BM=64, swizzle='xor')"
    assert [first.serves({"M": m, "N": 64}) for m in (0, 1, 64, 65)] == [False, True, True, False]
    assert not first.serves({"M": 1, "N": 65})
    assert newest.serves({"M": 65, "N": 64})
    assert store.check() == []


def test_buckets_are_found_by_the_class_of_a_problem(store, gpu, toolchain, problem, trial):
    number = store.add_trial(gpu, toolchain, problem(64), trial())
    set_buckets(store, [NewBucket(number, spans("1..64"), {})])
    assert texts(buckets_of(store, problem(7), gpu)) == ["1..64"]
    assert buckets_of(store, problem(7, "col"), gpu) == ()
    assert buckets_of(store, replace(problem(7), digest="ee" * 32), gpu) == ()
    assert buckets_of(store, problem(7), replace(gpu, power_limit=300)) == ()
    assert buckets_of(store, problem(7), gpu, space="MmaGemm()") == ()
    assert texts(buckets_of(store, problem(7), gpu, replace(toolchain, kgen="9.9"))) == ["1..64"]
    assert buckets_of(store, problem(7), gpu, replace(toolchain, nvrtc="12.0")) == ()


def test_the_buckets_of_a_range_replace_those_within_it(store, gpu, toolchain, problem, put):
    put({"1..64": 64, "65..512": 512, "513..8192": 1024})
    put({"1..512": 64}, space="MmaGemm()")
    put({"1..512": 64}, toolchain=replace(toolchain, nvrtc="12.0"))
    put({"1..512": 64}, origin="modelled", modelled_seconds=1.0, seconds=None, lower=None, upper=None, samples=None)
    put({"1..300": 64, "301..512": 512})
    mine = buckets_of(store, problem(1), gpu, toolchain)
    assert texts(mine) == ["301..512", "1..300", "513..8192", "1..512"]  # measured first, and newer
    assert [record.origin for record in mine] == ["measured"] * 3 + ["modelled"]
    assert texts(buckets_of(store, problem(1), gpu, toolchain, "MmaGemm()")) == ["1..512"]
    put({"1..400": 64})  # reaches over one, which stays for its other sizes
    assert texts(buckets_of(store, problem(1), gpu, toolchain))[:2] == ["1..400", "301..512"]
    assert store.check() == []


def test_buckets_go_with_their_trials(store, gpu, problem, put):
    put({"1..64": 64})
    assert store.remove(operator="hgemm") == 1
    assert buckets_of(store, problem(64), gpu) == ()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"spans": {"M": "1..64"}}, "names of the spans"),
        ({"spans": spans("64..1")}, "span of M: malformed range"),
        ({"spans": spans(64)}, "span of M is 64"),
        ({"spans": spans("1..64"), "evidence": {"regret": float("nan")}}, "evidence of a bucket"),
        ({"spans": spans("1..64"), "evidence": {"regret": "much"}}, "evidence of a bucket: regret is 'much'"),
        ({"spans": spans("1..64"), "trial_id": 10**6}, "no trial has the id"),
    ],
)
def test_a_bucket_without_meaning_is_not_stored(store, gpu, toolchain, problem, trial, change, match):
    number = store.add_trial(gpu, toolchain, problem(), trial())
    with pytest.raises(DatabaseError, match=match):
        set_buckets(store, [NewBucket(**{"trial_id": number, "evidence": {}, **change})])
    failed = store.add_trial(gpu, toolchain, problem(), trial(status="wrong"))
    with pytest.raises(DatabaseError, match="status of a bucket's trial"):
        set_buckets(store, [NewBucket(failed, spans("1..64"), {})])
    assert buckets_of(store, problem(), gpu) == ()


def test_a_damaged_bucket_is_named_and_does_not_serve(store, gpu, problem, put):
    from sqlalchemy import text

    put({"1..64": 64, "65..512": 512})
    with store.engine.begin() as connection:
        connection.execute(text("""UPDATE buckets SET spans = '{"M": "0", "N": "64"}' WHERE id = 1"""))
    store.refresh()
    assert texts(buckets_of(store, problem(64), gpu)) == ["65..512"]
    assert [line for line in store.check() if "of buckets: span of M" in line]
    put({"1..512": 64})
    assert texts(buckets_of(store, problem(64), gpu)) == ["1..512"]


def test_a_pack_carries_buckets_as_unverified(tmp_path, store, gpu, toolchain, problem, put):
    put({"1..64": 64, "65..512": 512})
    put({"1..512": 64}, space="MmaGemm()")
    path = tmp_path / "h200.json"
    assert export_pack(store, gpu, path) == 2
    there = replace(gpu, driver="999.9")
    with open_store(tmp_path / "there.sqlite") as other:
        assert import_pack(other, there, path) == 2
        assert import_pack(other, there, path) == 0
        found = buckets_of(other, problem(64), there, toolchain)
        assert sorted(texts(found)) == ["1..64", "65..512"]
        assert not any(record.trial.verified for record in found)
        assert [replace(r.trial, id=None) for r in all_buckets(other, there, "measured")] == [
            replace(r.trial, id=None, verified=False) for r in all_buckets(store, gpu, "measured")
        ]
        with pytest.raises(DatabaseError, match="no verified measured configs"):
            export_pack(other, there, tmp_path / "again.json")


def test_a_pack_of_the_time_before_buckets_is_read(tmp_path, store, gpu, put):
    put({"1..64": 64})
    export_pack(store, gpu, tmp_path / "new.json")
    data = json.loads((tmp_path / "new.json").read_text())
    del data["buckets"]
    (tmp_path / "old.json").write_text(json.dumps({**data, "version": 2}))
    assert read_pack(tmp_path / "old.json").buckets == ()
    (tmp_path / "old.json").write_text(json.dumps(data))
    with pytest.raises(DatabaseError, match="missing 'buckets'"):
        read_pack(tmp_path / "old.json")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda entry: entry.pop("spans"), r"buckets\[0\]: entry has missing 'spans'"),
        (lambda entry: entry.update(more=1), r"buckets\[0\]: entry has unknown 'more'"),
        (lambda entry: entry["spans"].update(M="4..1"), r"buckets\[0\]: span of M: malformed range"),
        (lambda entry: entry.update(spans=[]), r"buckets\[0\]: spans of a bucket"),
        (lambda entry: entry["trial"]["config"].update(text="os.system()"), r"buckets\[0\]"),
    ],
)
def test_a_malformed_bucket_of_a_pack_is_refused(tmp_path, store, gpu, put, change, match):
    put({"1..64": 64})
    export_pack(store, gpu, tmp_path / "pack.json")
    data = json.loads((tmp_path / "pack.json").read_text())
    change(data["buckets"][0])
    (tmp_path / "pack.json").write_text(json.dumps(data))
    with pytest.raises(DatabaseError, match=match):
        read_pack(tmp_path / "pack.json")

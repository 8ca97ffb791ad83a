"""Packs: out and in again, and every malformed one refused before anything is stored."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import replace

import pytest

from kgen.dsl.errors import DatabaseError
from kgen.tuning_db import export_pack, import_pack, open_store


@pytest.fixture
def pack(tmp_path, gpu, toolchain, problem, trial):
    path = tmp_path / "h200.json"
    with open_store(tmp_path / "source.sqlite") as store:
        for M in (64, 128, 256):
            given = trial(M, registers=100, clocks={"sm_mhz": 1980}, evidence={"note": "é"}, policy="cold-l2 v1")
            store.set_best(store.add_trial(gpu, toolchain, problem(M), given), {"default": 3e-5})
        store.set_best(store.add_trial(gpu, toolchain, problem(operator="gelu", digest="12" * 32), trial()))
        store.set_best(store.add_trial(gpu, toolchain, problem(), trial(32, origin="modelled", modelled_seconds=1.0)))
        assert export_pack(store, gpu, path) == 4
    return path


@pytest.fixture
def target(tmp_path):
    with open_store(tmp_path / "target.sqlite") as store:
        yield store


def test_round_trip_to_another_driver_is_unverified(pack, target, gpu, toolchain, problem):
    mine = replace(gpu, driver="999", power_limit=500)
    assert import_pack(target, mine, pack) == 4
    best = target.best(problem(128), mine)
    assert (best.gpu, best.toolchain, best.problem, best.comparison) == (
        mine,
        toolchain,
        problem(128),
        {"default": 3e-5},
    )
    assert (best.trial.seconds, best.trial.registers, best.trial.evidence) == (2e-5, 100, {"note": "é"})
    assert best.trial.verified is False
    assert target.best(problem(), mine, "modelled") is None
    with pytest.raises(DatabaseError, match="no verified measured configs"):
        export_pack(target, mine, pack.with_name("again.json"))
    target.mark_verified(best.trial.id)
    assert target.best(problem(128), mine).trial.verified is True
    assert export_pack(target, mine, pack.with_name("again.json")) == 1
    assert target.check() == []


def test_importing_twice_adds_nothing_and_own_results_are_kept(pack, target, gpu, toolchain, problem, trial):
    own = target.add_trial(gpu, toolchain, problem(128), trial(512))
    target.set_best(own)
    assert import_pack(target, gpu, pack) == 3
    assert import_pack(target, gpu, pack) == 0
    assert target.best(problem(128), gpu).trial.id == own
    older = replace(toolchain, nvrtc="12.0")
    target.set_best(target.add_trial(gpu, older, problem(64), trial(512)))
    assert target.best(problem(64), gpu).toolchain == older  # verified here comes before unverified


def test_one_operator_and_one_origin_to_a_pack(tmp_path, pack, gpu):
    with open_store(tmp_path / "source.sqlite") as store:
        assert export_pack(store, gpu, tmp_path / "gelu.json", operator="gelu") == 1
        assert export_pack(store, gpu, tmp_path / "modelled.json", origin="modelled") == 1
        with pytest.raises(DatabaseError, match="of softmax"):
            export_pack(store, gpu, tmp_path / "none.json", operator="softmax")
        with pytest.raises(DatabaseError, match="cannot write pack"):
            export_pack(store, gpu, tmp_path / "no" / "folder.json")
    assert '"seconds": null' in (tmp_path / "modelled.json").read_text()
    assert {"none.json", "no"}.isdisjoint(os.listdir(tmp_path))
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".pack")]


def test_a_pack_of_another_card_is_refused(pack, target, gpu):
    with pytest.raises(DatabaseError, match=r"is for GpuFacts.name='NVIDIA H200'.*Tune for this GPU"):
        import_pack(target, replace(gpu, name="NVIDIA H100 PCIe", sm_count=114), pack)
    assert target.statistics().trials["measured"] == {}


def spoil(*path):
    """Sets the last of `path`, or removes the key before it when it is ..."""
    *way, key, value = path

    def apply(data):
        for step in way:
            data = data[step]
        if value is ...:
            del data[key]
        else:
            data[key] = value

    return apply


TRIAL = ("entries", 1, "trial")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (spoil("format", "other"), "format 'other'"),
        (spoil("version", 1), "version 1"),
        (spoil("version", True), "version True"),
        (spoil("origin", "both"), "origin is 'both'"),
        (spoil("origin", ["measured"]), "origin is"),
        (spoil("origin", "modelled"), r"entries\[0\]: measured time of a modelled trial"),
        (spoil("extra", 1), "unknown 'extra'"),
        (spoil("gpu", ...), "missing 'gpu'"),
        (spoil("gpu", "arch", "hopper"), "GPU architecture is 'hopper'"),
        (spoil("gpu", "sm_count", "132"), "number of SMs is '132'"),
        (spoil("gpu", []), "gpu is a list"),
        (spoil("entries", {}), "entries is a dict"),
        (spoil("entries", 2, None), r"entries\[2\]: entry is a NoneType"),
        (spoil("entries", 1, "problem", "operator", "x; DROP TABLE"), r"entries\[1\]: operator is 'x; DROP TABLE'"),
        (spoil("entries", 1, "problem", "digest", 7), "operator digest is 7"),
        (spoil("entries", 1, "problem", "sizes", [1]), "sizes is"),
        (spoil("entries", 1, "problem", "sizes", {"M": 10**40}), "size M is"),
        (spoil("entries", 1, "toolchain", "schema", ...), "missing 'schema'"),
        (spoil("entries", 1, "comparison", 3), "comparison is 3"),
        (spoil(*TRIAL, "verified", True), "unknown 'verified'"),
        (spoil(*TRIAL, "status", "ok"), "unknown 'status'"),
        (spoil(*TRIAL, "id", 5), "unknown 'id'"),
        (spoil(*TRIAL, "seconds", "2e-5"), "seconds of a measured trial is '2e-5'"),
        (spoil(*TRIAL, "seconds", None), "seconds of a measured trial is None"),
        (spoil(*TRIAL, "modelled_seconds", 1.0), "modelled_seconds of a measured trial"),
        (spoil(*TRIAL, "created_at", "yesterday"), "created_at is 'yesterday'"),
        (spoil(*TRIAL, "created_at", None), "created_at is None"),
        (spoil(*TRIAL, "created_at", "2025-01-01"), "created_at is"),
        (spoil(*TRIAL, "clocks", []), "clocks is"),
        (spoil(*TRIAL, "config", "text", ["MmaGemm()"]), "config is"),
        (spoil(*TRIAL, "config", "key", "../x"), "config key is '../x'"),
        (spoil(*TRIAL, "config", "version", "1"), "version of the schedule is '1'"),
    ],
)
def test_a_malformed_pack_stores_nothing(pack, target, gpu, change, match):
    data = json.loads(pack.read_text())
    change(data)
    pack.write_text(json.dumps(data))
    with pytest.raises(DatabaseError, match=match) as error:
        import_pack(target, gpu, pack)
    assert str(pack) in str(error.value)
    assert target.statistics().trials["measured"] == {}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"format": NaN}',
        b'{"a": 1, "a": 2}',
        b"\x80\x04K\x01.",
    ],
)
def test_what_is_no_pack_is_refused(pack, target, gpu, content):
    pack.write_bytes(content)
    with pytest.raises(DatabaseError, match=f"pack {pack} is "):
        import_pack(target, gpu, pack)


def test_a_missing_pack_and_a_folder_are_refused(tmp_path, target, gpu):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(DatabaseError, match="cannot read pack"):
            import_pack(target, gpu, path)


def test_random_damage_is_refused_or_means_the_same(pack, target, gpu):
    import random

    generator = random.Random(11)
    junk = [None, True, -1, 1.5, 10**400, "", "x" * 300, "\ud800", [], {}, {"a": []}]
    good = json.loads(pack.read_text())
    for _ in range(300):
        data = copy.deepcopy(good)
        place = data
        while True:
            key = generator.choice(sorted(place) if isinstance(place, dict) else range(len(place)))
            if not place[key] or not isinstance(place[key], (dict, list)) or generator.random() < 0.2:
                break
            place = place[key]
        place[key] = generator.choice(junk)
        pack.write_text(json.dumps(data))
        try:
            import_pack(target, gpu, pack)
        except DatabaseError:
            continue
        assert target.check() == []

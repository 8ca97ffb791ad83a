"""`kgen fit`: from a database and from a grid, to a machine's file that defaults follow."""

import gzip
import json
from dataclasses import fields, replace

import pytest

import kgen as library
from kgen.codegen.settings import database
from kgen.dsl.family import normalised
from kgen.dsl.machine import Fitted, Machine
from kgen.dsl.target import TARGETS
from kgen.ops.gemm.gemv import GemvConstants
from kgen.tuner import records
from kgen.tuner.best import best
from kgen.tuning_db import TrialRecord, machines, open_store

H200 = TARGETS["H200"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path / "cache"))
    machines.forget()
    yield
    monkeypatch.undo()
    machines.forget()


@pytest.fixture
def measured():
    """Products of one row with the times of a GPU that starts kernels in twice the time, and reaches half of the bandwidth."""
    known = machines.constants(GemvConstants, H200)
    values = {f.name: getattr(known, f.name) for f in fields(known)} | {
        "start": 2 * known.start,
        "memory": known.memory / 2,
    }
    there = replace(H200, machine=Machine("H200", {"gemv": Fitted("fitted", "a test", values)}))
    problems = [library.hgemm.problem(M=1, N=256 * n, K=4096) for n in range(1, 13)]
    return {
        p: {c: c.estimate(normalised(p), there) for c in best(library.Gemv, normalised(p), H200, 6)} for p in problems
    }


def test_a_database_is_fitted_and_defaults_follow(kgen, measured):
    with open_store(database()) as store:
        for problem, times in measured.items():
            for config, seconds in times.items():
                told = {"seconds": seconds, "lower": seconds, "upper": seconds, "samples": 9}
                trial = TrialRecord(
                    records.config_text(config), status="ok", origin="measured", source_digest="0" * 64, **told
                )
                key = records.problem_key(normalised(problem))
                store.add_trial(records.gpu_facts(H200), records.toolchain(), key, trial)
    ran = kgen("fit", "--gpu", "H200", "--json")
    assert ran.code == 0, ran.err
    found = ran.json["gemv"]["constants"]
    assert found["memory"] == pytest.approx(0.95 / 2, rel=0.1)
    assert ran.json["gemv"]["taken"]
    assert ran.json["gemv"]["after"]["problems"] + ran.json["gemv"]["after_fitted"]["problems"] == len(measured)
    assert machines.constants(GemvConstants, H200).memory == found["memory"]
    assert "gemm_wgmma" in machines.read_machine(machines.user_folder() / "h200.json").models


def test_a_grid_is_fitted_into_a_file(kgen, measured, tmp_path):
    entries = [
        {
            "operator": "hgemm",
            "dtype": "f16",
            "sizes": dict(p.sizes),
            "layouts": {},
            "configs": {repr(c): s for c, s in t.items()},
        }
        for p, t in measured.items()
    ]
    grid = {"format": "kgen-grid", "version": 1, "gpu": "H200", "problems": entries}
    (tmp_path / "grid.json.gz").write_bytes(gzip.compress(json.dumps(grid).encode()))
    ran = kgen("fit", "--grid", str(tmp_path / "grid.json.gz"), "--gpu", "H200", "--out", str(tmp_path / "new.json"))
    assert ran.code == 0, ran.err
    assert "gemv" in ran.out
    assert "best of four, after" in ran.out
    new = machines.read_machine(tmp_path / "new.json").models["gemv"]
    assert new.origin == "fitted"
    assert "72 times of 12 problems" in new.evidence
    other = kgen("fit", "--grid", str(tmp_path / "grid.json.gz"), "--gpu", "H100 SXM")
    assert (other.code, "measured on H200, not on H100 SXM" in other.err) == (2, True)


def test_what_is_no_grid_is_refused(kgen, tmp_path):
    for name, text in (
        ("a.json", b"{}"),
        ("b.json", b"["),
        ("c.json.gz", b"x"),
        ("d.json", b'{"format": "kgen-pack"}'),
    ):
        (tmp_path / name).write_bytes(text)
        ran = kgen("fit", "--grid", str(tmp_path / name), "--gpu", "H200")
        assert ran.code == 2
        assert f"cannot read grid {tmp_path / name}" in ran.err
    assert kgen("fit", "--gpu", "H200").code == 2  # no database yet

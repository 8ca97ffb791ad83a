"""A fit finds the constants that times were made from, and tells regret on problems that it has not seen."""

import json
import random
from dataclasses import fields, replace

import pytest

import kgen
from kgen.dsl.errors import ArgumentError, ConfigError, DatabaseError
from kgen.dsl.family import normalised, schedules
from kgen.dsl.machine import Constants, Fitted, Machine
from kgen.dsl.target import TARGETS
from kgen.ops.gemm.wgmma_model import WgmmaConstants
from kgen.tuner.best import best
from kgen.tuner.columns import scored
from kgen.tuner.fit import Measurement, fit, is_held_out, regret
from kgen.tuning_db import machines

H200 = TARGETS["H200"]
#: A GPU that is not like an H200.
OTHER = {"start": 3e-6, "copy": 36.0, "rate": 0.7, "memory": 0.7, "cluster": 5e-7}


def constants(changed):
    known = machines.constants(WgmmaConstants, H200)
    return {**{f.name: getattr(known, f.name) for f in fields(known)}, **changed}


def target(changed):
    return replace(H200, machine=Machine("H200", {"gemm_wgmma": Fitted("fitted", "a test", constants(changed))}))


@pytest.fixture(scope="module")
def measured():
    """24 products with the times that the model gives with other constants, and 0.3% of noise."""
    source, there, found = random.Random(0), target(OTHER), []
    for _ in range(24):
        sizes = {
            "M": source.choice((64, 200, 700, 2048, 5000)),
            "N": 64 * source.randint(8, 200),
            "K": 64 * source.randint(8, 200),
        }
        problem = normalised(kgen.hgemm.problem(dtype="bf16", layouts={"b": "col"}, **sizes))
        tables = list(scored(kgen.WgmmaGemm, problem, H200))
        drawn = [t.config(source.randrange(t.count)) for t, _ in tables for _ in range(8)]
        configs = [*best(kgen.WgmmaGemm, problem, there, 8), *best(kgen.WgmmaGemm, problem, H200, 8), *drawn]
        times = {c: c.estimate(problem, there) * source.gauss(1, 0.003) for c in configs}
        found.append(Measurement(problem, times))
    return found


def test_the_constants_of_synthetic_times_are_found(measured):
    done = fit(WgmmaConstants, measured, machines.constants(WgmmaConstants, H200), H200, 0.4)
    for name in ("start", "copy", "rate", "memory"):
        assert done.constants[name] == pytest.approx(OTHER[name], rel=0.1), name
    assert done.before_fitted.first[0] > 0.02
    assert max(done.after.first[0], done.after_fitted.first[0]) < 0.01
    assert done.after.of_four[0] <= done.after.first[0]
    assert done.before.problems + done.before_fitted.problems == len(measured)
    assert done.before == regret([m for m in measured if is_held_out(m.problem, 0.4)], H200)


def test_right_constants_stay(measured):
    problems = [m.problem for m in measured[:5]]
    exact = [Measurement(p, {c: c.estimate(p, H200) for c in best(kgen.WgmmaGemm, p, H200, 16)}) for p in problems]
    done = fit(WgmmaConstants, exact, machines.constants(WgmmaConstants, H200), H200, 0.0)
    assert done.constants == pytest.approx(constants({}), rel=1e-3)
    assert done.after.first == pytest.approx((0.0, 0.0, 0.0), abs=1e-9)


def test_too_little_is_refused(measured):
    start = machines.constants(WgmmaConstants, H200)
    with pytest.raises(ArgumentError, match="gemm_wgmma cannot be fitted to 0 problems"):
        fit(WgmmaConstants, [Measurement(measured[0].problem, {})], start, H200, 0.25)


def test_lengths_of_one_weight_are_held_out_together():
    groups = [
        {is_held_out(normalised(kgen.hgemm.problem(M=m, N=n, K=4096)), 0.5) for m in (1, 16, 300, 4096)}
        for n in range(256, 8192, 256)
    ]
    assert all(len(group) == 1 for group in groups)
    assert {held for group in groups for held in group} == {False, True}


def test_every_model_has_constants_of_a_measured_gpu():
    assert schedules()  # of all families, which are imported for it
    for kind in Constants.known.values():
        assert machines.origin(kind, H200) in ("fitted on H200", "counted on H200")
        assert machines.origin(kind, TARGETS["T4"]) == "scaled from H200"
    known = {name for machine in machines.machines() for name in machine.models}
    assert known == Constants.known.keys()


def test_constants_go_with_the_data_sheet():
    mine, other = (machines.constants(WgmmaConstants, TARGETS[name]) for name in ("H200", "H100 SXM"))
    assert other.kept == pytest.approx(mine.kept * 50 / 60)
    assert other.in_flight == pytest.approx(mine.in_flight * 3352 / 4800)
    assert other.copy == mine.copy


def test_a_machine_of_the_users_comes_first(tmp_path, monkeypatch):
    shipped = machines.constants(WgmmaConstants, H200)
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path))
    file = machines.user_folder() / machines.file_name("H100 SXM")
    machines.write_machine(file, Machine("H100 SXM", {"gemm_wgmma": Fitted("fitted", "a test", constants(OTHER))}))
    machines.forget()
    try:
        assert machines.constants(WgmmaConstants, TARGETS["H100 SXM"]).copy == 36
        assert machines.origin(WgmmaConstants, TARGETS["H100 SXM"]) == "fitted on H100 SXM"
        assert machines.constants(WgmmaConstants, H200) == shipped
    finally:
        monkeypatch.undo()
        machines.forget()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d.update(version=2), "version 2"),
        (lambda d: d.update(gpu="H2000"), "gpu is 'H2000'"),
        (lambda d: d["models"]["gemv"].pop("origin"), "gemv has"),
        (lambda d: d["models"]["gemv"].update(origin="guessed"), "guessed"),
        (lambda d: d["models"]["gemv"]["constants"].update(start="soon"), "expected finite numbers"),
        (lambda d: d.update(more=1), "expected exactly"),
    ],
)
def test_malformed_machines_are_refused(tmp_path, change, told):
    data = json.loads((machines.SHIPPED / "h200.json").read_text("utf-8"))
    change(data)
    (tmp_path / "x.json").write_text(json.dumps(data), "utf-8")
    with pytest.raises(DatabaseError, match=told):
        machines.read_machine(tmp_path / "x.json")


def test_other_constants_than_the_models_are_refused():
    values = constants({})
    del values["start"]
    with pytest.raises(ConfigError, match="expected start"):
        Machine("H200", {"gemm_wgmma": Fitted("fitted", "a test", values)}).of(WgmmaConstants)

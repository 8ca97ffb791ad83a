"""Every verb does what it says, on a machine without a GPU, and its JSON is JSON and all there is on stdout."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from cli_runs import Kgen, Ran, invoke

from kgen.cli import doctor as doctor_verb
from kgen.cli import tune as tune_verb
from kgen.cli import verify as verify_verb
from kgen.cli.doctor import Finding
from kgen.cli.output import config_told
from kgen.cli.problems import find_operator, select_one
from kgen.dsl.errors import ConfigError
from kgen.dsl.family import family_of
from kgen.gpu import driver
from kgen.gpu.target import resolve
from kgen.ops.gemm import SimtGemm
from kgen.runtime import dispatch, tuning
from kgen.runtime.machine import Machine
from kgen.tuner.outcome import Outcome
from kgen.tuner.records import config_text
from kgen.tuner.verify import Verdict
from kgen.tuning_db import TrialRecord, open_store

GELU = ("gelu", "--shape", "65536", "--gpu", "H200")
CONFIG = "Elementwise(pack=8, items=1, along='vectors', threads=128, blocks_per_sm=0, load='default', store='default')"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Ran]:
    """A database with one tuned problem, and what tuning it printed."""
    database = str(tmp_path_factory.mktemp("tuned") / "tuning.sqlite")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "device_count", lambda: 0)
        return database, invoke("tune", *GELU, "--db", database, "--json")


# tune


def test_tune_without_the_gpu_models_verifies_and_stores(tuned: tuple[str, Ran]) -> None:
    database, ran = tuned
    assert ran.code == 0, ran.err
    told = ran.json
    assert (told["origin"], told["gpu"], told["database"]) == ("modelled", "H200 (sm_90a)", database)
    (result,) = told["results"]
    assert result["arguments"] == "gelu --shape ...=65536 --dtype f16"
    assert result["trial"]["modelled_seconds"] > 0
    assert "seconds" not in result["trial"]  # nothing was measured
    assert result["trial"]["evidence"]["emulated"] is True
    assert result["trials"]["ok"] > 1
    assert result["speedup_over_default"] >= 1
    assert "not in this machine" in ran.err
    assert "modelled; nothing is measured" in ran.err
    assert Path(database).exists()


def test_tuning_again_tries_nothing(tuned: tuple[str, Ran], kgen: Kgen) -> None:
    ran = kgen("tune", *GELU, "--db", tuned[0], "--json")
    assert ran.code == 0
    (result,) = ran.json["results"]
    assert result["cached"]
    assert result["trials"] == {}
    assert result["config"] == tuned[1].json["results"][0]["config"]


def test_tune_prints_a_table(tuned: tuple[str, Ran], kgen: Kgen) -> None:
    ran = kgen("tune", *GELU, "--db", tuned[0])
    header, row = ran.out.splitlines()
    for word in ("problem", "modelled time", "vs default", "trials", "config"):
        assert word in header
    assert row.startswith("gelu(65536 f16)")
    assert " us " in row
    assert "it was known" in row
    config = tuned[1].json["results"][0]["config"]
    assert config not in row
    assert re.search(r"  Elementwise (\w+=\w+ )*\((else as )?the default\)$", row)
    assert kgen("tune", *GELU, "--db", tuned[0], "--whole").out.rstrip().endswith(f"  {config}")


@pytest.mark.parametrize(
    ("gpu", "changed", "told"),
    [
        ("H200", {}, "WgmmaGemm (the default)"),
        ("H200", {"group": 16}, "WgmmaGemm group=16 (else as the default)"),
        ("A100-SXM4-80GB", {}, "MmaGemm (the default)"),
    ],
)
def test_a_config_is_told_by_what_differs_from_the_default(gpu: str, changed: dict[str, Any], told: str) -> None:
    problem, target = select_one(find_operator("hgemm"), "4096x4096x4096", None, None, None), resolve(gpu)
    default = dispatch.default(problem, target).config
    config = default.replace(**changed)
    assert config_told(config, problem, target) == told
    assert config_told(config, problem, target, whole=True) == repr(config)
    other = SimtGemm.default(family_of(problem.graph).normalise(problem), target)
    assert config_told(other, problem, target) == "SimtGemm (SimtGemm's default)"


def test_tune_without_gpu_or_shape_says_what_it_does_instead(kgen: Kgen, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def interrupted(problem: Any, **more: Any) -> Outcome:
        asked.append(problem)
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "tune", interrupted)
    ran = kgen("tune", "hgemm", "--json")
    assert ran.code == 130
    assert ran.json["results"] == []
    assert "found no GPU: tuning for sm_90a" in ran.err
    assert "suite 'default' of hgemm, 4 problems" in ran.err
    assert "interrupted after 0 of 4 problems" in ran.err
    assert len(asked) == 1


def test_an_error_at_a_later_problem_still_reports_the_earlier_ones(
    tuned: tuple[str, Ran], kgen: Kgen, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tuning.tune

    def second_fails(problem: Any, **more: Any) -> Outcome:
        if problem.leading == (7,):
            raise ConfigError("no luck\nwith seven")
        return real(problem, **more)

    monkeypatch.setattr(tuning, "tune", second_fails)
    ran = kgen("tune", *GELU, "--shape", "7", "--db", tuned[0], "--json")
    assert ran.code == 2
    assert len(ran.json["results"]) == 1
    assert ran.err.endswith("kgen: error: no luck with seven\n")


def test_a_measured_row_has_its_interval_and_both_ratios() -> None:
    problem = select_one(find_operator("hgemm"), "64x64x64", None, None, None)
    here = Machine(resolve("H200"), 0)
    config = dispatch.default(problem, here.target).config
    trial = TrialRecord(
        config_text(config), "ok", "measured", "abcdef12", seconds=10e-6, lower=9.9e-6, upper=10.1e-6, samples=30
    )
    comparison = {"speedup_over_default": 1.25, "speedup_over_opponent": 0.875}
    outcome = Outcome(problem, config, trial, comparison, {"ok": 7, "wrong": 1}, 3.0)
    row = tune_verb._row(problem, outcome, here, find_operator("hgemm"), whole=False)
    assert row[1:5] == ("10 us ±1.0%", "1.250x", "0.875x", "7 ok, 1 wrong")


# list, show, space, explain


def test_list(kgen: Kgen) -> None:
    told = kgen("list", "--json").json
    found = {entry["operator"]: entry for entry in told["operators"]}
    assert found["hgemm"]["family"] == "gemm"
    assert found["hgemm"]["dtypes"] == ["f16", "bf16"]
    assert set(told["families"]) >= {"gemm", "elementwise"}
    lines = kgen("list").out.splitlines()
    assert len(lines) == 1 + len(found)  # one line each


def test_show(tuned: tuple[str, Ran], kgen: Kgen, user_file: Path) -> None:
    told = kgen("show", "gelu", "--db", tuned[0], "--json").json
    assert [b["config"] for b in told["best"]] == [tuned[1].json["results"][0]["config"]]
    assert told["best"][0]["gpu"]["name"] == "H200"
    text = kgen("show", "linear_gelu").out
    assert "linear_gelu(x: f16[..., M, K], w: f16[N, K], bias: f16[N]) -> f16[..., M, N]" in text
    assert "%1 = matmul<f32>(x, %0)" in text
    assert "...xMxNxK" in text
    assert "no config is known yet" in text
    own = kgen("show", f"{user_file}:scaled", "--json").json
    assert own["signatures"] == ["scaled(x: f32[M, N], scale: f32 = 2.0) -> f32[M, N]"]
    assert own["graph"][-1] == "out = %0  # f32"


def test_space_counts_exactly_and_draws_valid_configs(kgen: Kgen) -> None:
    told = kgen("space", *GELU, "--sample", "3", "--json").json
    (schedule,) = told["schedules"]
    assert schedule["domain"] == 5 * 5 * 4 * 4 * 5 * 3 * 2
    assert 0 < schedule["searched"] < schedule["valid"] < schedule["domain"]
    assert (told["valid"], told["searched"]) == (schedule["valid"], schedule["searched"])
    assert schedule["searched"] == schedule["valid"] - sum(entry["configs"] for entry in schedule["left_out"])
    assert len(told["sample"]) == 3
    for config in told["sample"]:
        assert kgen("explain", *GELU, "--config", config).code == 0
    assert f"{told['valid']:,}" in kgen("space", *GELU).out


def test_space_and_explain_agree_on_what_only_the_search_leaves_out(kgen: Kgen) -> None:
    """On sm_90 wgmma serves products: the others are valid, as `explain` says, and `space` says why they are not searched."""
    words = ("hgemm", "--shape", "16x16x16", "--gpu", "sm_90")
    space = kgen("space", *words, "--sample", "20", "--json").json
    told = {entry["schedule"]: entry for entry in space["schedules"]}
    for name in ("MmaGemm", "SimtGemm"):
        assert told[name]["searched"] == 0
        (left_out,) = told[name]["left_out"]
        assert (left_out["rule"], left_out["configs"]) == ("worth_searching", told[name]["valid"])
        assert left_out["configs"] > 0
    config = next(config for config in space["sample"] if config.startswith("MmaGemm"))
    explained = kgen("explain", *words, "--config", config)
    assert explained.code == 0
    assert f"pruned by worth_searching: {left_out['reason']}" in explained.out
    assert "valid, but not searched" in explained.out
    assert told["WgmmaGemm"]["searched"] > 0


def test_explain_names_every_rule_that_rejects(kgen: Kgen) -> None:
    words = ("explain", *GELU, "--dtype", "f32", "--config", CONFIG.replace("pack=8, items=1", "pack=16, items=8"))
    ran = kgen(*words, "--json")
    assert ran.code == 1
    assert ran.json["valid"] is False
    assert ran.json["modelled_seconds"] is None
    broken = {entry["rule"]: entry for entry in ran.json["broken"]}
    assert broken["moderate_vectors"]["reason"].startswith("the widest operand's vector")
    assert not broken["moderate_vectors"]["pruning"]
    assert broken["registers"]["pruning"]
    assert "rejected by moderate_vectors: the widest" in kgen(*words).out
    other = kgen("explain", "hgemm", "--shape", "64x64x64", "--config", CONFIG)
    assert other.code == 1
    assert "Elementwise does not serve hgemm" in other.out


def test_explain_of_a_config_that_only_the_search_leaves_out(kgen: Kgen) -> None:
    words = ("explain", *GELU, "--config", CONFIG.replace("pack=8, items=1", "pack=16, items=8"))
    ran = kgen(*words)
    assert ran.code == 0
    assert "pruned by registers: the vectors in flight" in ran.out
    assert "valid, but not searched; modelled time" in ran.out


def test_explain_of_a_valid_config_tells_the_modelled_time(kgen: Kgen) -> None:
    ran = kgen("explain", *GELU, "--config", CONFIG, "--json")
    assert ran.code == 0
    assert ran.json["broken"] == []
    assert ran.json["modelled_seconds"] > 0
    assert "valid; modelled time" in kgen("explain", *GELU, "--config", CONFIG).out
    assert kgen("explain", *GELU, "--json").json["how"] == "default"


# source, export


def test_source_prints_the_kernel_that_its_own_command_prints_again(kgen: Kgen) -> None:
    import shlex

    text = kgen("source", "hgemm", "--shape", "40x24x72", "--layout", "NT", "--dtype", "bf16").out
    (command,) = [line for line in text.splitlines() if "again: kgen " in line]
    again = kgen(*shlex.split(command.split("again: kgen ")[1]))
    assert again.code == 0, again.err
    assert again.out == text
    assert 'extern "C" __global__' in text


def test_source_takes_the_best_config_known(tuned: tuple[str, Ran], kgen: Kgen) -> None:
    told = kgen("source", *GELU, "--db", tuned[0], "--json").json
    assert told["how"] == "tuned"
    assert told["config"] == tuned[1].json["results"][0]["config"]
    assert told["config"] in told["text"]


def test_source_writes_a_file(kgen: Kgen, tmp_path: Path) -> None:
    ran = kgen("source", *GELU, "--config", CONFIG, "-o", str(tmp_path / "gelu.cu"))
    assert ran.out == ""
    assert (tmp_path / "gelu.cu").read_text() == kgen("source", *GELU, "--config", CONFIG).out


def test_export_writes_a_project_and_lists_it(kgen: Kgen, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = kgen("export", *GELU, "-o", str(out), "--arch", "sm_80", "--arch", "sm_90a", "--json")
    assert ran.code == 0, ran.err
    assert {Path(name).name for name in ran.json["files"]} == {"gelu.cu", "gelu.h", "test_gelu.cu", "CMakeLists.txt"}
    assert "80;90a" in (out / "CMakeLists.txt").read_text().replace(" ", ";")
    again = kgen("export", *GELU, "-o", str(out))  # over the earlier export
    assert sorted(again.out.split()) == sorted(str(path) for path in out.iterdir())


def test_source_does_not_replace_the_operators_own_file(kgen: Kgen, user_file: Path) -> None:
    before = user_file.read_text()
    link = user_file.with_name("link.py")
    link.symlink_to(user_file)
    for out in (user_file, link):
        ran = kgen("source", f"{user_file}:scaled", "--shape", "64x64", "-o", str(out))
        assert ran.code == 2
        assert f"cannot write {out}: the operator {user_file}:scaled is in it; name another file" in ran.err
    assert user_file.read_text() == before


SOFTMAX = ("softmax", "--shape", "1024x131072", "--gpu", "H200")
ODD_GELU = ("gelu", "--shape", "65528", "--gpu", "H200")
DAY = r"\d{4}-\d\d-\d\d"
#: What an export, and the command that makes it, say of a config, by how it was found.
ORIGINS = {
    "given": ([*GELU, "--config", CONFIG], "given", ""),
    "default": (GELU, "the default by the model, not measured", ""),
    "tuned": ([*GELU, "--db"], f"by the model, not measured, for H200, {DAY}", r", by kgen [\d.]+"),
    "nearest": ([*ODD_GELU, "--db"], f"by the model, not measured, for H200, {DAY}, for n0=65536", r", by kgen [\d.]+"),
    # What was measured before the kernel's text changed counts as another shape's until it is measured again.
    "shipped|nearest": (SOFTMAX, f"measured on H200, {DAY}(?:, for n0=1024, n1=131072)?", r", by kgen [\d.]+"),
}


@pytest.mark.parametrize("how", ORIGINS)
def test_an_export_says_where_its_config_is_from(how: str, tuned: tuple[str, Ran], kgen: Kgen, tmp_path: Path) -> None:
    words, origin, made = ORIGINS[how]
    words = [*words, *([tuned[0]] if words[-1] == "--db" else [])]
    ran = kgen("export", *words, "-o", str(tmp_path / "out"))
    assert ran.code == 0, ran.err
    assert re.search(rf"\({'given' if how == 'given' else f'(?:{how}): {origin}{made}'}\)$", ran.err.strip()), ran.err
    texts = [path.read_text() for path in (tmp_path / "out").iterdir()]
    known = origin + (r", by version [\d.]+ of the generator" if made else "")
    assert sum(bool(re.search(f"^// The config: {known}[.]$", text, re.M)) for text in texts) == 1
    assert not any("tuned" in text for text in texts)
    told = kgen("source", *words, "--json").json
    assert told["how"] in how.split("|")
    assert re.fullmatch(origin, told["origin"])


# verify, bench


def test_verify_runs_the_emulator_and_finds_a_kernel_right(kgen: Kgen) -> None:
    ran = kgen("verify", "gelu", "--shape", "1000", "--config", CONFIG, "--emulate", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["emulated"]
    assert len(ran.json["results"]) >= 1
    assert all(entry["ok"] for entry in ran.json["results"])
    assert "gelu(1000 f16)" in [entry["verified"] for entry in ran.json["results"]]


def test_verify_of_a_users_operator_at_a_large_shape_runs_a_small_one(kgen: Kgen, user_file: Path) -> None:
    ran = kgen("verify", f"{user_file}:scaled", "--shape", "4096x4096")
    assert ran.code == 0, ran.err
    assert "found no GPU: verifying on the emulator" in ran.err
    header, *rows = ran.out.splitlines()
    assert header.split() == ["problem", "verdict", "evidence", "config"]
    assert len(rows) > 1
    assert all(" ok " in row and "4096" not in row.split("  ")[0] for row in rows)


def test_verify_runs_what_the_emulator_gets_through_by_what_there_is_to_do(kgen: Kgen) -> None:
    """nms compares pairs: 20000 boxes, its default problem, are 400 million, though they are few bytes and one dimension."""
    ran = kgen("verify", "nms_padded", "--json")
    assert ran.code == 0, ran.err
    results = ran.json["results"]
    assert {found["problem"] for found in results} == {"nms_padded(N=20000 f32,i64)"}
    assert all(
        int(re.search(r"N=(\d+)", found["verified"])[1]) ** 2 < 2 * verify_verb._EMULATED_WORK for found in results
    )
    assert find_operator("nms_padded").problem(N=300).work == 300**2
    assert find_operator("gelu").problem(leading=(4, 5)).work == 20


def test_verify_of_a_wrong_kernel_exits_with_1(kgen: Kgen, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Verdict(False, {"check": "exact", "output": "out", "wrong": 3})
    monkeypatch.setattr("kgen.tuner.emulated.judge", lambda *given, **options: wrong)
    monkeypatch.setattr("kgen.tuner.emulated.judge_far", lambda *given: [])
    ran = kgen("verify", "gelu", "--shape", "1000", "--emulate", "--json")
    assert ran.code == 1
    assert not any(entry["ok"] for entry in ran.json["results"])
    assert "WRONG" in kgen("verify", "gelu", "--shape", "1000", "--emulate").out


@pytest.mark.parametrize(("json", "table"), [(("--json",), False), (("--json", "FILE"), True), ((), True)])
def test_bench_prints_a_table_or_json(
    kgen: Kgen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, json: tuple[str, ...], table: bool
) -> None:
    from kgen.bench import Result, compare
    from kgen.bench.result import Comparison, Participant, Time
    from kgen.runtime import machine

    def measured(operator: Any, problems: Any, opponents: Any, **more: Any) -> Result:
        assert os.environ["KGEN_DATABASE"] == str(tmp_path / "other.sqlite")
        sides = [
            Participant(n, "ok", "", Time(t, t, t, 20)) for n, t in (("kgen", 1e-5), *((o, 2e-5) for o in opponents))
        ]
        told = Comparison(str(problems[0]), problems[0].key, "", 10, 0, 1e-9, 3, {}, {}, tuple(sides))
        return Result("gelu", "abc", {}, {}, (told,))

    with open_store(tmp_path / "other.sqlite"):
        pass
    monkeypatch.setattr(compare, "run", measured)
    monkeypatch.setattr(machine, "find_gpu", lambda text: Machine(resolve("H200"), 0))
    file = tmp_path / "found.json"
    arguments = [str(file) if word == "FILE" else word for word in json]
    before = os.environ["KGEN_DATABASE"]
    ran = kgen(
        "bench", "gelu", *arguments, "--shape", "64", "--vs", "torch,copy", "--db", str(tmp_path / "other.sqlite")
    )
    assert ran.code == 0, ran.err
    assert os.environ["KGEN_DATABASE"] == before
    assert file.exists() == ("FILE" in json)
    assert ("2.000x" in ran.out) == table
    written = file.read_text() if file.exists() else "" if table else ran.out
    assert not written or Result.from_json(written).opponents == ("torch", "copy")


# db, doctor


def test_db_path_makes_nothing(kgen: Kgen, tmp_path: Path) -> None:
    assert kgen("db", "path").out == f"{tmp_path / 'tuning.sqlite'}\n"
    assert kgen("db", "path", "--json").json == {"database": str(tmp_path / "tuning.sqlite"), "exists": False}
    assert list(tmp_path.iterdir()) == []


def test_db_tells_what_it_holds(tuned: tuple[str, Ran], kgen: Kgen) -> None:
    db = ("--db", tuned[0])
    count = sum(tuned[1].json["results"][0]["trials"].values())
    assert kgen("db", "stats", *db, "--json").json["operators"] == {"gelu": count}
    assert "H200" in kgen("db", "stats", *db).out
    (best,) = kgen("db", "best", *db, "--json").json
    assert best["trial"]["config"] == tuned[1].json["results"][0]["config"]
    assert " us modelled" in kgen("db", "best", "--operator", "gelu", "--gpu", "H200", *db).out
    assert len(kgen("db", "trials", "gelu", "--shape", "65536", *db, "--json").json) == count
    assert kgen("db", "trials", "gelu", "--shape", "65537", *db, "--json").json == []
    assert len(kgen("db", "trials", "gelu", *db).out.splitlines()) == 1 + count
    assert kgen("db", "check", *db, "--json").json == {"database": tuned[0], "ok": True, "problems": []}
    assert kgen("db", "check", *db).out.endswith(": ok\n")


def test_configs_go_out_of_one_database_and_into_another(tuned: tuple[str, Ran], kgen: Kgen, tmp_path: Path) -> None:
    pack, other = str(tmp_path / "h200.json"), str(tmp_path / "other.sqlite")
    assert kgen("db", "export", pack, "--modelled", "--db", tuned[0], "--json").json["configs"] == 1
    assert json.loads(Path(pack).read_text())["gpu"]["name"] == "H200"
    assert kgen("db", "import", pack, "--db", other, "--json").json["new"] == 1
    assert "stored 0 new configs for H200" in kgen("db", "import", pack, "--db", other).out
    (best,) = kgen("db", "best", "--db", other, "--json").json
    assert best["trial"]["verified"] is False
    assert kgen("db", "prune", "--operator", "gelu", "--yes", "--db", other, "--json").json["removed"] == 1
    assert kgen("db", "best", "--db", other, "--json").json == []


def test_db_check_of_a_damaged_database_exits_with_1(tuned: tuple[str, Ran], kgen: Kgen, tmp_path: Path) -> None:
    import shutil
    import sqlite3

    damaged = tmp_path / "damaged.sqlite"
    shutil.copy(tuned[0], damaged)
    with sqlite3.connect(damaged) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("UPDATE best SET origin = 'measured'")
    connection.close()
    ran = kgen("db", "check", "--db", str(damaged), "--json")
    assert ran.code == 1
    assert ran.json["problems"] == ["best 1 does not match its trial"]


def test_doctor_checks_everything(kgen: Kgen) -> None:
    ran = kgen("doctor", "--json")
    found = {check["name"]: check for check in ran.json["checks"]}
    names = "python,torch,CUDA driver,GPUs,NVRTC and headers,host compiler,nvcc,cache folder,database"
    assert list(found) == names.split(",")
    assert found["python"]["status"] == found["torch"]["status"] == "ok"
    assert found["database"]["status"] == "absent"
    assert all(check["remedy"] for check in found.values() if check["status"] != "ok")
    assert ran.code == (0 if ran.json["ok"] else 1)


def test_doctor_exits_with_1_where_something_is_a_problem(
    kgen: Kgen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tuning.sqlite").write_text("this is no database, and longer than the header of one would be" * 20)
    ran = kgen("doctor", "--json")
    assert ran.code == 1
    (bad,) = [check for check in ran.json["checks"] if check["status"] == "problem"]
    assert bad["name"] == "database"
    monkeypatch.setattr(doctor_verb, "_torch", lambda: Finding("torch", "problem", "gone", "pip install torch"))
    assert "pip install torch" in kgen("doctor").out


def test_the_version(kgen: Kgen) -> None:
    assert kgen("--version").out.startswith("kgen 0.")
    assert kgen().out == kgen("--help").out

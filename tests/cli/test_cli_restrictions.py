"""`--schedule` and `--set`: every verb that chooses a config chooses among what they name, and refuses wrong ones by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import Kgen

HGEMM = ("hgemm", "--shape", "256x256x256", "--gpu", "H200")
MMA = ("--schedule", "MmaGemm", "--set", "BM=64,128", "--set", "stages=3", "--set", "swizzle=xor", "--set", "BK=32")
#: Few configs, which are soon counted.
FEW = ("--set", "BM=64", "--set", "BN=64", "--set", "stages=2")
#: Every verb with the two options.
VERBS = ("tune", "space", "explain", "source", "export", "bench", "verify")


def test_space_counts_what_is_named(kgen: Kgen) -> None:
    told = kgen("space", *HGEMM, *MMA, "--sample", "5", "--json").json
    (counts,) = told["schedules"]
    assert counts["schedule"] == "MmaGemm(BM=64|128, BK=32, stages=3, swizzle='xor')"
    assert 0 < counts["searched"] <= counts["valid"] == told["valid"] < counts["domain"]
    assert all("stages=3, swizzle='xor'" in config for config in told["sample"])


def test_explain_and_source_take_the_best_of_it(kgen: Kgen) -> None:
    explained = kgen("explain", *HGEMM, *MMA, "--json").json
    assert explained["valid"]
    assert explained["config"].startswith("MmaGemm(")
    sourced = kgen("source", *HGEMM, *MMA, "--json").json
    assert sourced["config"] == explained["config"]
    assert kgen("explain", *HGEMM, "--schedule", "SimtGemm", *FEW, "--json").json["config"].startswith("SimtGemm(")
    several = kgen("explain", *HGEMM, "--schedule", "SimtGemm", "--schedule", "MmaGemm", *FEW, "--json").json
    assert several["config"].startswith("MmaGemm(")


def test_what_is_tuned_is_the_best_of_what_is_named_alone(kgen: Kgen) -> None:
    gelu = ("gelu", "--shape", "65536", "--gpu", "H200")
    ran = kgen("tune", *gelu, "--set", "threads=512", "--budget", "2", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["space"] == "threads=512"
    (result,) = ran.json["results"]
    assert "threads=512" in result["config"]
    again = kgen("tune", *gelu, "--set", "threads=512", "--budget", "2")
    assert "none, it was known" in again.out
    assert "stored" in again.err
    assert again.err.rstrip().endswith("as the best of threads=512")
    assert kgen("source", *gelu, "--set", "threads=512", "--json").json["how"] == "tuned"
    assert kgen("source", *gelu, "--json").json["how"] == "default"
    assert [best["space"] for best in kgen("db", "best", "--json").json] == ["Elementwise(threads=512)"]
    assert "Elementwise(threads=512)" in kgen("db", "best").out
    verified = kgen("verify", *gelu, "--set", "threads=512", "--json")
    assert verified.code == 0
    assert all("threads=512" in entry["config"] for entry in verified.json["results"])


def test_export_takes_them(kgen: Kgen, tmp_path: Path) -> None:
    ran = kgen("export", *HGEMM, *MMA, "-o", str(tmp_path / "out"), "--json")
    assert ran.code == 0, ran.err
    assert ran.json["config"].startswith("MmaGemm(")


def test_an_operator_of_ones_own_narrows_its_own_space(kgen: Kgen, tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "import kgen\nfrom kgen import Tensor, choice, dims, f32\nM, N = dims('M N')\n\n"
        "class Tall(kgen.Elementwise):\n    threads = choice(1024, 128)\n\n"
        "@kgen.operator(schedules=[Tall])\ndef twice(x: Tensor[f32, M, N]) -> Tensor[f32, M, N]:\n    return x * 2\n"
    )
    twice = (f"{path}:twice", "--shape", "512x512", "--gpu", "H200")
    assert "Tall(" in kgen("explain", *twice, "--schedule", "Tall", "--set", "threads=128", "--json").json["config"]
    refused = kgen("explain", *twice, "--schedule", "Elementwise")
    assert (refused.code, "unknown schedule 'Elementwise'; twice has Tall" in refused.err) == (2, True)
    refused = kgen("explain", *twice, "--set", "threads=256")
    assert "Tall: threads=256 is outside its domain 1024, 128" in refused.err


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--schedule", "Rowwise"), "unknown schedule 'Rowwise'; hgemm has WgmmaGemm, MmaGemm, SimtGemm, Gemv"),
        (("--set", "BM"), "malformed field 'BM'; expected for example BM=64,128"),
        (("--set", "=64"), "malformed field '=64'"),
        (("--set", "BM=64,"), "malformed field 'BM=64,'"),
        (("--set", "BM=64", "--set", "BM=128"), "--set names BM twice; expected all its values at once: BM=64,128"),
        (("--set", "width=64"), "hgemm has no schedule for that: WgmmaGemm has no field width"),
        (("--schedule", "MmaGemm", "--set", "BM=100"), "MmaGemm: BM=100 is outside its domain 64, 16"),
    ],
)  # fmt: skip
def test_wrong_names_and_values_are_refused(
    kgen: Kgen, tmp_path: Path, verb: str, options: tuple[str, ...], told: str
) -> None:
    ran = kgen(verb, *HGEMM, *options, *(("-o", str(tmp_path / "out")) if verb == "export" else ()))
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err


def test_benchmarks_of_techniques_need_a_gpu_and_a_budget_their_flag(kgen: Kgen) -> None:
    for options, told in (
        (("--variants",), "a benchmark measures on a GPU"),
        (("--budget", "10s"), "--budget is for --variants"),
        (("--variants", "--budget", "soon"), "'soon'"),
    ):
        ran = kgen("bench", "gelu", *options)
        assert (ran.code, told in ran.err) == (2, True)


def test_show_names_techniques_and_the_operators_own_space(kgen: Kgen) -> None:
    told = kgen("show", "hgemm", "--json").json
    assert told["techniques"]["MmaGemm"]["WMMA m16n16k16"] == {"instruction": "wmma"}
    assert told["space"] == ""
    assert "\ntechniques of WgmmaGemm: " in kgen("show", "hgemm").out


def test_an_empty_space_names_the_rule_that_emptied_it(kgen: Kgen) -> None:
    named = ("--schedule", "MmaGemm", "--set", "BM=256", "--set", "BN=256", "--set", "BK=128", "--set", "stages=5")
    for verb in ("tune", "explain", "source", "verify"):
        ran = kgen(verb, *HGEMM, *named)
        assert ran.code == 2
        assert "is emptied by registers_of_the_block: accumulators" in ran.err
    assert kgen("space", *HGEMM, *named, "--json").json["valid"] == 0


def test_a_whole_config_leaves_nothing_to_choose(kgen: Kgen) -> None:
    config = kgen("explain", *HGEMM, "--json").json["config"]
    ran = kgen("explain", *HGEMM, "--config", config, "--set", "BM=64")
    assert (ran.code, "--config was given beside --schedule or --set" in ran.err) == (2, True)

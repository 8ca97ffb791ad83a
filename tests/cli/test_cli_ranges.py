"""Ranges on the command line: how they are written, tuned without a GPU, told, and taken by explain and export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_runs import Kgen

from kgen.cli import ranges
from kgen.cli.ranges import Range, is_range
from kgen.dsl.errors import ArgumentError
from kgen.tuner.budget import Budget

SCALED = """
import kgen
from kgen import Tensor, dims, f16, rsqrt

M, N = dims("M N")


@kgen.operator
def scaled(x: Tensor[f16, M, N], w: Tensor[f16, N]) -> Tensor[f16, M, N]:
    return x * rsqrt(kgen.sum(w * w, axis=None) + 1e-6) * w
"""


@pytest.mark.parametrize(
    ("text", "ranged"),
    [
        ("64x64x64", False),
        ("M=1,N=64,K=64", False),
        ("...=8x16,M=64", False),
        ("...=1..64,N=8", True),
        ("M=1..8192,N=64,K=64", True),
        ("M=64..8192:64,N=64,K=64", True),
        ("N=64,M=1,8,64,K=64", True),
        ("K=64,M=1,8", True),
        ("1..64x64x64", True),
        ("8,8,8", False),
        ("M=8,", False),
        ("M=8,N", False),
    ],
)
def test_what_is_a_range(text: str, ranged: bool) -> None:
    assert is_range(text) == ranged


def test_a_range_names_the_shapes_in_it() -> None:
    one = Range.parse("...=8x16,M=1,8,64,N=64..256:64,K=32")
    assert (one.fixed, [*one.spans]) == ({"...": "8x16"}, ["M", "N", "K"])
    assert one.ends == ("...=8x16,M=1,N=64,K=32", "...=8x16,M=64,N=256,K=32")
    assert one.told(one.spans.values()) == "M=1,8,64,N=64..256:64,K=32"
    assert Range.parse("...=1..64,N=8").ends == ("...=1,N=8", "...=64,N=8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1..64x64x64", "malformed range '1..64x64x64'; expected named sizes"),
        ("M=1..4,M=5", "names M twice"),
        ("M=8..4,N=1", "malformed range '8..4'"),
        ("M=1,,4,N=1", "malformed sizes"),
        ("M=1..4,N=a", "malformed sizes 'a'"),
    ],
)
def test_a_malformed_range_says_what_is_expected(text: str, message: str, kgen: Kgen) -> None:
    with pytest.raises(ArgumentError, match=message):
        Range.parse(text)


@pytest.mark.parametrize(
    ("given", "seconds", "kernels"), [((), 300, 96), (("--budget", "9s", "--kernels", "12"), 9, 12)]
)
def test_a_range_has_five_minutes_and_96_kernels(
    given: tuple[str, ...], seconds: float, kernels: int, kgen: Kgen, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float | None, int]] = []

    def tune(*args: Any, budget: Budget, kernels: int, **others: Any) -> bool:
        asked.append((budget.seconds, kernels))
        return False

    monkeypatch.setattr(ranges, "tune", tune)
    assert kgen("tune", "gelu", "--shape", "...=8..64", "--gpu", "H200", *given).code == 0
    assert asked == [(seconds, kernels)]


def test_ranges_stand_alone(kgen: Kgen, tmp_path: Path) -> None:
    for further in (("--shape", "64x64x64"), ("--backward",)):
        ran = kgen("tune", "hgemm", "--shape", "M=1..8,N=64,K=64", *further)
        assert ran.code == 2
        assert "expected ranges alone" in ran.err
    ran = kgen("tune", "hgemm", "--shape", "M=1..8,X=64,K=64")
    assert ran.code == 2
    assert "unknown X" in ran.err
    assert not (tmp_path / "tuning.sqlite").exists()  # nothing was written


def test_a_range_is_tuned_told_explained_and_exported(kgen: Kgen, tmp_path: Path) -> None:
    words = ("--gpu", "H200")
    ran = kgen(
        "tune", "gelu", "--shape", "...=1048576..4194304:1048576", *words, "--budget", "200", "--checks", "3", "--json"
    )
    assert ran.code == 0, ran.err
    (told,) = ran.json["ranges"]
    assert (ran.json["origin"], told["range"]) == ("modelled", "...=1048576..4194304:1048576")
    (bucket,) = told["buckets"]
    assert bucket["sizes"] == "...=1048576..4194304:1048576"
    assert bucket["stored"] is True
    assert told["portfolio"] == [bucket["config"]]
    assert len(told["checks"]) == 3
    assert told["worst"] <= told["bound"] < 0.02
    asked = kgen("explain", "gelu", "--shape", "...=3145728", *words)
    assert f"{bucket['config']} (bucket: by the model, not measured, for H200, 2" in asked.out
    assert "for n0=1048576..4194304:1048576, by kgen" in asked.out
    assert "(bucket:" not in kgen("explain", "gelu", "--shape", "...=3145729", *words).out
    out = str(tmp_path / "out")
    ran = kgen("export", "gelu", "--shapes", "...=1048576..4194304", *words, "-o", out, "--json")
    assert ran.code == 0, ran.err
    hows = {one["problem"]: one["how"] for one in ran.json["problems"]}
    assert [name for name, how in hows.items() if how == "bucket"] == ["gelu(1048576 f16)", "gelu(4194304 f16)"]
    assert kgen("db", "check").code == 0
    listed = kgen("db", "buckets", "--operator", "gelu")
    assert "x:f16[]row out:f16[]row  n0=1048576..4194304:1048576  modelled 0.0%" in listed.out
    (record,) = kgen("db", "buckets", "--json").json
    assert (record["config"], record["spans"]) == (bucket["config"], {"n0": "1048576..4194304:1048576"})
    pack = str(tmp_path / "pack.json")
    assert "wrote" in kgen("db", "export", pack, "--gpu", "H200", "--modelled").out
    there = ("--db", str(tmp_path / "there.sqlite"))
    assert kgen("db", "import", pack, *there).code == 0
    assert len(kgen("db", "buckets", "--json", *there).json) == 1


def test_each_launch_is_tuned_over_its_own_dimensions_and_1_apart(kgen: Kgen, tmp_path: Path) -> None:
    """Sums over rows go along the range, the weights' do not, and the last launch reads weights again but of one row."""
    file = tmp_path / "scaled.py"
    file.write_text(SCALED)
    words = ("--gpu", "H200")
    asked = ("tune", f"{file}:scaled", *words, "--budget", "16", "--checks", "1")
    ran = kgen(*asked, "--shape", "M=1,4,N=64", "--json")
    assert ran.code == 0, ran.err
    tuned = [(one["kernel"], [bucket["sizes"] for bucket in one["buckets"]]) for one in ran.json["ranges"]]
    assert tuned == [("scaled_1", ["N=64"]), ("scaled_2", ["M=1,N=64"]), ("scaled_2", ["M=4,N=64"])]
    assert kgen("explain", f"{file}:scaled", "--shape", "M=4,N=64", *words).out.count("(tuned: by the model") == 2


def test_a_launch_without_a_range_is_told_before_any_is_tuned(kgen: Kgen, tmp_path: Path) -> None:
    ran = kgen("tune", "group_norm", "--shape", "B=2,G=2..8,C=4,S=16", "--gpu", "H200")
    assert ran.code == 2
    assert "group_norm_2: cannot tune the range G=2..8" in ran.err
    assert not (tmp_path / "tuning.sqlite").exists()


def test_an_export_of_a_range_in_parts_says_that_it_is_several(kgen: Kgen, tmp_path: Path) -> None:
    ran = kgen("export", "bias_gelu", "--shapes", "...=1,4,N=64", "--gpu", "H200", "-o", str(tmp_path / "out"))
    assert ran.code == 2
    assert "cannot export bias_gelu(1 N=64 f16) and bias_gelu(4 N=64 f16) as one" in ran.err

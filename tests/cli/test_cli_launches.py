"""The verbs on operators that take several launches: whole, and launch by launch."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import Kgen

SHAPE = ("--shape", "B=2,G=2,C=4,S=16", "--gpu", "H200")

OF_MINE = """
import kgen
from kgen import Tensor, dims, f16, f32
A, B = dims("A B")

@kgen.operator
def mine(x: Tensor[f16, A, B]) -> tuple[Tensor[f16, A, B], Tensor[f32, 1, B]]:
    mean = kgen.mean(x, -2)
    return x - mean, mean
"""


def test_explain_tells_where_and_why_a_graph_is_cut(kgen: Kgen) -> None:
    told = kgen("explain", "group_norm", *SHAPE)
    assert told.code == 0
    assert "no one kernel computes it: 2 launches, 32 bytes of workspace, cut at" in told.out
    assert "mean: f32[B, G, 1, 1], a reduction's result (kgen/ops/programs.py:" in told.out
    assert "group_norm_1(B=2 G=2 C=4 S=16 f16,f32) by column_stats" in told.out
    assert "group_norm_2(B=2 G=2 C=4 S=16 f16,f32) by elementwise" in told.out
    facts = kgen("explain", "group_norm", *SHAPE, "--json").json
    assert [launch["family"] for launch in facts["launches"]] == ["column_stats", "elementwise"]
    assert len(facts["cut_at"]) == 2
    assert facts["workspace_bytes"] == 32


def test_a_launch_is_an_operator(kgen: Kgen) -> None:
    facts = kgen("explain", "group_norm_2", *SHAPE, "--json").json
    assert facts["valid"]
    again = kgen("explain", *facts["arguments"].split(), "--config", facts["config"], "--gpu", "H200")
    assert again.code == 0
    assert kgen("space", "group_norm_1", *SHAPE).code == 0
    assert "group_norm_1, group_norm_2" in kgen("show", "group_norm").out
    assert kgen("explain", "group_norm_3", *SHAPE).code == 2


@pytest.mark.parametrize(
    "words",
    [
        ("space", "group_norm"),
        ("explain", "group_norm", "--set", "threads=128"),
        ("source", "group_norm", "--schedule", "Elementwise"),
        ("verify", "group_norm", "--config", "Elementwise()"),
        ("tune", "group_norm", "--set", "threads=128"),
    ],
    ids=" ".join,
)
def test_what_is_about_one_config_names_the_launches(kgen: Kgen, words: tuple[str, ...]) -> None:
    done = kgen(*words, *SHAPE)
    assert done.code == 2
    assert "group_norm takes 2 launches, each with a config of its own; name one of them: group_norm_1" in done.err


def test_source_has_the_kernels_of_all_launches(kgen: Kgen, tmp_path: Path) -> None:
    text = kgen("source", "group_norm", *SHAPE).out
    assert text.count('extern "C" __global__') == 2
    facts = kgen("source", "group_norm", *SHAPE, "--json").json
    assert [launch["entry"] for launch in facts["launches"]] == ["group_norm_1", "group_norm_2"]
    assert facts["text"] == text


def test_verify_runs_each_launch_and_the_whole(kgen: Kgen) -> None:
    results = kgen("verify", "group_norm", *SHAPE, "--emulate", "--json").json["results"]
    verified = [result["verified"] for result in results]
    assert {"group_norm_1", "group_norm_2"} <= {text.split("(")[0] for text in verified}
    assert verified[-1] == "group_norm(B=2 G=2 C=4 S=16 f16)"
    assert all(result["ok"] for result in results)


def test_an_operator_of_a_file_and_its_launches(kgen: Kgen, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OF_MINE)
    whole = kgen("explain", f"{file}:mine", "--shape", "16x32", "--gpu", "H200")
    assert "mine_1(A=16 B=32 f16,f32) by column_stats" in whole.out
    assert kgen("explain", f"{file}:mine_2", "--shape", "16x32", "--gpu", "H200").code == 0
    missing = kgen("explain", f"{file}:mine_3", "--shape", "16x32", "--gpu", "H200")
    assert missing.code == 2
    assert "'mine_3' is not there" in missing.err


def test_several_shapes_in_one_export_are_for_operators_of_one_launch(kgen: Kgen, tmp_path: Path) -> None:
    done = kgen("export", "group_norm", "--shapes", "default", "--gpu", "H200", "-o", str(tmp_path / "out"))
    assert done.code == 2
    assert "group_norm takes several launches, and --shapes is for operators of one" in done.err
    done = kgen("export", "group_norm", *SHAPE, "-o", str(tmp_path / "out"))
    assert done.code == 0
    assert (tmp_path / "out" / "group_norm_1.cu").is_file()

"""--shapes: files, suites, lists and ranges; and one export of several problems by the command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_runs import Kgen

from kgen.cli import shapes
from kgen.dsl.errors import ArgumentError
from kgen.runtime.shipped import shipped


def told(text: str, op: str = "hgemm", layout: str | None = None) -> list[str]:
    """The problems, as printed."""
    return [str(problem) for problem in shapes.select(shipped(op), text, None, None, layout)]


def test_a_list_and_a_suite() -> None:
    assert told("64x32x16,128x32x16") == ["hgemm(M=64 K=16 N=32 f16)", "hgemm(M=128 K=16 N=32 f16)"]
    assert told("splitk") == ["hgemm(M=128 K=32768 N=128 f16)", "hgemm(M=512 K=16384 N=512 f16)"]
    assert told("64x32x16,64x32x16") == ["hgemm(M=64 K=16 N=32 f16)"]


def test_a_range_is_a_ladder_of_sizes() -> None:
    found = told("M=1..5,N=64,K=32..64")
    assert found == [f"hgemm(M={m} K={k} N=64 f16)" for m in (1, 2, 4, 5) for k in (32, 64)]
    found = told("M=100,300,200,N=64,K=64..320:64")
    assert found == [f"hgemm(M={m} K={k} N=64 f16)" for m in (100, 200, 300) for k in (64, 128, 256, 320)]


def test_a_file_has_shapes_layouts_and_comments(tmp_path: Path) -> None:
    (tmp_path / "shapes").write_text(
        "# mine\n64x32x16\n\n64x32x16 layout=TN # transposed\nM=1..2,N=8,K=8 transposed=b\n"
    )
    plain = ["hgemm(M=64 K=16 N=32 f16)", "hgemm(M=64 K=16 N=32 f16 col)"]
    assert told(str(tmp_path / "shapes")) == [*plain, "hgemm(M=1 K=8 N=8 f16 col)", "hgemm(M=2 K=8 N=8 f16 col)"]
    assert told(str(tmp_path / "shapes"), layout="TN")[0] == plain[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", r"'nothing' is neither a file nor a suite \(default, .*\) nor shapes; expected"),
        ("M=8..4,N=8,K=8", "malformed range '8..4'; expected the least and then the largest"),
        ("M=0..4,N=8,K=8", "malformed range '0..4'"),
        ("64x64", "shape '64x64' has 2 sizes; expected at least 3"),
        ("M=1..1000000000000,N=1..1000000000000,K=1", "names more than 1024 problems"),
    ],
)
def test_what_is_no_shape(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        told(text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("64x64x64 speed=11", "shapes:2: malformed line '64x64x64 speed=11'; expected shapes, then layout=TN"),
        ("64x64x64 layout", "shapes:2: malformed line"),
        ("64x64", "shapes:2: shape '64x64' has 2 sizes"),
        ("64x64x64 layout=XX", "shapes:2: malformed layout 'XX'"),
    ],
)
def test_a_file_that_is_wrong_names_the_line(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "shapes").write_text(f"# first\n{line}\n")
    with pytest.raises(ArgumentError, match=message):
        told(str(tmp_path / "shapes"))
    (tmp_path / "shapes").write_text("# nothing\n")
    with pytest.raises(ArgumentError, match="has no shapes; expected one a line"):
        told(str(tmp_path / "shapes"))


def test_one_export_of_several_problems(kgen: Kgen, tmp_path: Path) -> None:
    (tmp_path / "shapes").write_text("4x1280x8192\n64x64x64 layout=NT\n")
    words = ("export", "hgemm", "--shapes", str(tmp_path / "shapes"), "--gpu", "H200", "-o", str(tmp_path / "out"))
    ran = kgen(*words, "--json")
    assert ran.code == 0, ran.err
    # What was measured before the kernel's text changed counts as another shape's until it is measured again.
    assert [one["how"] for one in ran.json["problems"]] in (["shipped", "default"], ["nearest", "default"])
    text = (tmp_path / "out" / "hgemm.cu").read_text()
    assert "hgemm(M=4 K=8192 N=1280 f16): measured on H200, 2" in text
    assert " of the generator.\n" in re.sub(r"\n// {4}", " ", text)
    assert "hgemm(M=64 K=64 N=64 f16 col): the default by the model, not measured.\n" in text
    assert kgen(*words, "--shape", "8x8x8").code == 2
    assert "unknown form 'ptx'; expected cuda, cubin" in kgen(*words, "--form", "ptx").err

"""The documents: their links lead somewhere, README's commands are what CI runs, and its Python defines and runs."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")


def anchors(file):
    """The anchors of a document's headings, as they are made of their text."""
    titles = re.findall(r"^#+ (.*)$", file.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document):
    for link in LINK.findall(document.read_text("utf-8")):
        if "://" not in link:
            name, _, anchor = link.partition("#")
            file = (document.parent / name).resolve() if name else document
            assert file.exists(), f"{document.name} links to {link}"
            assert not anchor or anchor in anchors(file), f"{document.name} links to {link}"


def test_readme_has_the_two_commands_and_ci_runs_the_second():
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert "    pip install -e . && kgen tune hgemm --gpu auto" in lines
    assert "    pip install -e '.[test]' && pytest" in lines
    script = (ROOT / ".ci/run").read_text("utf-8").splitlines()
    assert "step pip install --quiet -e '.[test]'" in script
    assert script[-1] == "step pytest"


def test_readme_s_python_runs(tmp_path, monkeypatch):
    """On the CPU at a hundredth of the sizes, without the tuning."""
    monkeypatch.setenv("KGEN_DATABASE", f"sqlite:///{tmp_path / 'none.db'}")
    text = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert len(blocks) == 2
    program = "\n".join(blocks).replace('"cuda"', '"cpu"').replace("4096", "40")
    program = re.sub(r"^gated\.tune\(.*$", "", program, flags=re.M)
    file = tmp_path / "readme.py"
    file.write_text(program, "utf-8")
    names = runpy.run_path(str(file))
    assert names["y"].shape == (40, 40)
    assert names["y"].isfinite().all()
    assert names["gated"].definition.name == "gated"


def test_the_python_of_tiling_md_runs(tmp_path):
    (program,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/tiling.md").read_text("utf-8"), re.M | re.S)
    file = tmp_path / "tiling.py"
    file.write_text(program, "utf-8")
    names = runpy.run_path(str(file))
    assert "stages=4" in names["fast"].source(M=64, N=64, K=64, target="H200")
    assert "Mine(" in names["wide"].using(names["Mine"]).source(M=64, N=64, K=64, target="H200")


@pytest.mark.parametrize("folder", sorted((ROOT / "benchmarks/results").iterdir()), ids=lambda folder: folder.name)
def test_tables_of_results_are_made_of_the_json(folder):
    """python benchmarks/report.py FOLDER writes them anew."""
    report = runpy.run_path(str(ROOT / "benchmarks/report.py"))
    text = (folder / "README.md").read_text("utf-8")
    assert folder.name != "h200" or text.count("<!-- table: ") > 5
    assert report["written"](folder) == text

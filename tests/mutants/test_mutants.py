"""The gate refuses small bugs: a sample of them; all of them by `python tests/mutants/run.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from mutant import ROOT, Mutant, all_mutants

MUTANTS = all_mutants()

#: Of different kinds, each in another template.
SAMPLE = (
    "simt-sums-in-half",
    "row-block-of-the-first",
    "columns-own-twice",
    "transpose-permutes-each-row",
    "bins-plain-add",
    "wgmma-empty-of-one",
    "split-one-too-few",
    "gemv-stage-no-barrier",
    "reduce-max-begins-at-zero",
    "pointwise-waves-skip",
    "gather-id-of-the-size",
    "scatter-plain-add",
)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_its_place_is_there(mutant: Mutant) -> None:
    assert mutant.applied() != (ROOT / mutant.file).read_text(encoding="utf-8")


def test_every_template_has_mutants() -> None:
    files = {mutant.file for mutant in MUTANTS.values()}
    assert {f"templates/{file.name}" for file in (ROOT / "templates").glob("*.cu.j2")} <= files


def test_the_gate_refuses(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    command = [sys.executable, str(Path(__file__).with_name("run.py")), *SAMPLE, "--json", str(told)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = json.loads(told.read_text(encoding="utf-8"))
    assert [o["name"] for o in outcomes if o["status"] != "refused"] == []
    assert len(outcomes) == len(SAMPLE)

"""The command line on a GPU: tuning measures, a second run finds all cached, verify and bench run there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kgen.gpu.target import device_count

pytestmark = pytest.mark.skipif(not device_count(), reason="needs a GPU")
GELU = ("gelu", "--shape", "1000001")


def kgen(folder: Path, *arguments: str) -> Any:
    command = [sys.executable, "-c", "from kgen.cli.main import main; main()", *arguments]
    done = subprocess.run([*command, "--db", str(folder / "tuning.sqlite"), "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_tune_verify_and_bench(tmp_path: Path) -> None:
    told = kgen(tmp_path, "tune", *GELU, "--budget", "6")
    (result,) = told["results"]
    trial = result["trial"]
    assert told["origin"] == result["origin"] == "measured"
    assert trial["lower"] <= trial["seconds"] <= trial["upper"]
    assert "modelled_seconds" not in trial
    assert sum(result["trials"].values()) == 6
    assert result["speedup_over_default"] > 0
    (again,) = kgen(tmp_path, "tune", *GELU, "--budget", "6")["results"]
    assert again["cached"]
    verified = kgen(tmp_path, "verify", *GELU)
    assert not verified["emulated"]
    assert all(entry["how"] == "tuned" for entry in verified["results"])
    (comparison,) = kgen(tmp_path, "bench", *GELU, "--vs", "torch")["comparisons"]
    assert [p["name"] for p in comparison["participants"]] == ["kgen", "torch"]
    assert comparison["participants"][0]["detail"] == f"{result['config']} (tuned)"
    assert {check["status"] for check in kgen(tmp_path, "doctor")["checks"]} <= {"ok", "absent"}


def test_host_times_stand_beside_torchs() -> None:
    command = [sys.executable, "-c", "from kgen.cli.main import main; main()", "bench", *GELU, "--host"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("gelu(")]
    assert len([cell for cell in row if cell.endswith("x")]) == 2

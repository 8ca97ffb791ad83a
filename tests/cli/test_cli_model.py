"""kgen explain --model: what the backend of torch.compile takes of a model, and what a wrong model is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import Kgen

MODEL = """
import torch

def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.Linear(16, 24), torch.nn.GELU())
    return model.to(torch.bfloat16), torch.randn(3, 5, 16, dtype=torch.bfloat16)

def fails():
    raise RuntimeError("no weights")

def refuse(x):
    raise ValueError("too small\\nby far")

def refuses():
    return refuse, torch.ones(2, 3)

number = 3

def nothing():
    return None
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(MODEL)
    return path


def test_explain_tells_what_is_taken_of_a_model(kgen: Kgen, file: Path) -> None:
    facts = kgen("explain", "--model", f"{file}:make", "--backward", "--json").json
    assert facts["graphs"] == ["graph 0", "graph 1"]
    forward = [one for one in facts["taken"] if one["graph"] == 0]
    assert sorted(one["family"] for one in forward) == ["gemm", "rowwise"]
    assert {"addmm", "erf"} <= {op for one in forward for op in one["ops"]}
    assert {one["op"]: one["pointwise"] for one in facts["left"]}["exp"] is True
    told = kgen("explain", "--model", f"{file}:make").out
    assert "graph 0: " in told
    assert "1 x rowwise" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected an operator, or --model file.py:make, and not both"),
        (("gelu", "--model", "models.py:make"), "and not both"),
        (("--model", "models.py"), "malformed model"),
        (("--model", "nowhere.py:make"), "no file nowhere.py"),
        (("--model", "{file}:number"), "is no function"),
        (("--model", "{file}:nothing"), "gave a NoneType"),
        (("--model", "{file}:fails"), "no weights"),
        (("--model", "{file}:refuses"), "cannot be compiled: ValueError: too small"),
        (("--model", "{file}:make", "--shape", "64"), "beside --model"),
    ],
)
def test_a_wrong_model_is_one_line(kgen: Kgen, file: Path, arguments: tuple[str, ...], message: str) -> None:
    done = kgen("explain", *(text.format(file=file) for text in arguments))
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1

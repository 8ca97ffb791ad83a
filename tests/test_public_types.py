"""The public names of kgen: all load, are documented, and the stub that tells type checkers of them names just these.

`python tests/test_public_types.py` writes the stub anew.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import kgen
from kgen.ops import ALIASES, operators

STUB = Path(kgen.__file__).with_suffix(".pyi")


def natural(name: str) -> list[str]:
    """Names as isort has them: i8 before i32."""
    return [part.zfill(3) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def stub() -> str:
    """The text of kgen/__init__.pyi: what `kgen.__getattr__` does, as types."""
    lines = [
        '"""Types of the public names, which load on first use; tests/test_public_types.py writes this file."""',
        "",
    ]
    for module, names in sorted(kgen._MODULES.items()):
        lines += [f"from {module} import {name} as {name}" for name in sorted(names.split(), key=natural)]
    lines += ["", "__version__: str", ""]
    lines += [f"{name}: KernelOperator" for name in sorted({*operators(), *ALIASES} - {*kgen._NAMES})]
    return "\n".join(lines) + "\n"


def test_the_stub_names_what_there_is() -> None:
    assert STUB.read_text() == stub(), f"run: python {Path(__file__).name}"


@pytest.mark.parametrize("name", kgen.__all__)
def test_a_public_name_loads_and_is_documented(name: str) -> None:
    found = getattr(kgen, name)
    if callable(found):
        assert (inspect.getdoc(found) or "").strip()


def test_whoever_writes_a_family_needs_nothing_else() -> None:
    """What an operator with its own template and what a schedule subclass are made of."""
    needed = """Arch Schedule SearchSpace TemplateSchedule choice rule pruning sm Family register_family render Source Launch
        Pointer Integer Scalar TensorMap Dim ceil_div external Problem MmaGemm WgmmaGemm SimtGemm Gemv Elementwise Transpose
        Gather GatherSum Rowwise RowwiseCluster RowwiseSpan Reduce ColumnStats ChannelStats ScatterAdd ScatterBins ScatterRows
        Nms"""
    assert {*needed.split()} <= {*kgen.__all__}


def test_every_schedule_of_a_family_is_public() -> None:
    from kgen.dsl.family import _FAMILIES

    shipped = [s for family in _FAMILIES.values() for s in family.schedules if s.__module__.startswith("kgen.")]
    assert {schedule.__name__ for schedule in shipped} <= {*kgen.__all__}
    assert all(getattr(kgen, schedule.__name__) is schedule for schedule in shipped)


@pytest.mark.parametrize("file", sorted((Path(__file__).parents[1] / "examples").glob("*.py")), ids=lambda f: f.stem)
def test_examples_use_public_names_alone(file: Path) -> None:
    assert "from kgen." not in file.read_text()


if __name__ == "__main__":
    STUB.write_text(stub())

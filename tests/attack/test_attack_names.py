"""Names and texts of others' making: operators', dimensions', files', and whatever a pack or a database holds."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from attack_runs import faults
from hypothesis import given
from hypothesis import strategies as st

import kgen
from kgen import KgenError, Tensor, dims, f32
from kgen.dsl.size import Dim
from kgen.runtime.operator import KernelOperator
from kgen.tuning_db.packs import SHIPPED

M = dims("M")[0]
#: As part of a generated text, a path or a command this would end up where it must not.
_INJECTED = "int injected = 1;"
NAMES = (
    "", " ", "a b", "../../escaped", "/tmp/escaped", "a/b", "..", ".", "a\0b",
    f"a\n{_INJECTED}\n", f'a"\n{_INJECTED}\n//', f"a */ {_INJECTED}",
    "a\\\n", "??/", "x" * 5000, "naïve", "\u202eabc", "\x1b[31mred", "1abc", "a-b", "a.b", "a;b", "a'b", "{{ x }}",
    "{% x %}", "//% x",
    "$(touch witness)", "\udcff", "ª", "x\u200dy", "a#b", "%s", "__import__('os')",
)  # fmt: skip


def renamed(name: Any) -> KernelOperator:
    def function(x: Tensor[f32, ...]) -> Tensor[f32, ...]:
        return x + 1

    function.__name__ = name
    return kgen.operator(function)


def of_type(type_: Tensor) -> KernelOperator:
    def function(x: type_) -> type_:  # type: ignore[valid-type]
        return x + 1

    function.__annotations__ = {"x": type_, "return": type_}
    return kgen.operator(function)


def looks_generated(text: str) -> None:
    """No line of a generated text was smuggled in."""
    assert _INJECTED not in [line.strip() for line in text.splitlines()]
    for line in text.splitlines():
        assert not line.startswith("#line") or re.fullmatch(r'#line \d+( "([^"\\\n]|\\.)*")?', line), line


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_of_any_name_is_refused_or_stays_in_its_place(name: str, folder: Path) -> None:
    from kgen.dsl.target import TARGETS
    from kgen.export import export
    from kgen.runtime import dispatch

    try:
        operator = renamed(name)
        looks_generated(operator.source(leading=8))
        problem, target = operator.problem(leading=8), TARGETS["H200"]
        written = export(problem, dispatch.default(problem, target).config, target, folder / "out")
    except KgenError:
        assert not (folder / "out").exists()
    else:
        assert all(path.parent == folder / "out" for path in written)
        for path in written:
            looks_generated(path.read_text())


@given(st.text(max_size=8) | st.sampled_from(NAMES))
def test_a_name_is_an_identifier_or_refused(name: str) -> None:
    def of_dtype(name: str) -> KernelOperator:
        return of_type(Tensor[kgen.dtype_var(name, f32), ...])

    def of_dim(name: str) -> KernelOperator:
        return of_type(Tensor[f32, Dim(name)])

    for make in (renamed, of_dtype, of_dim):
        with suppress(KgenError):
            make(name)
            assert re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)


@pytest.mark.parametrize("name", [n.replace("/", "|") for n in NAMES if "\0" not in n and len(n) < 200])
def test_a_file_may_have_any_name(name: str, folder: Path) -> None:
    from kgen.cli.problems import find_operator

    path = folder / f"{name}.py"
    path.write_text(
        "import kgen\nfrom kgen import Tensor, f32\n\n\n"
        # Of a meaning of its own: the same one in two files is generated once, with the lines of the first.
        f"@kgen.operator\ndef scaled(x: Tensor[f32, ...]) -> Tensor[f32, ...]:\n    return x * {crc32(os.fsencode(name))}.0\n"
    )
    assert not faults(["show", f"{path}:scaled"], folder)
    assert not faults(["source", f"{path}:scaled", "--shape", "8"], folder)
    looks_generated(find_operator(f"{path}:scaled").source(leading=8))


def test_a_file_may_use_dataclasses_and_late_annotations(folder: Path) -> None:
    from kgen.cli.problems import find_operator

    (folder / "late.py").write_text(
        "from __future__ import annotations\n\nfrom dataclasses import dataclass\n\n"
        "import kgen\nfrom kgen import Tensor, f32\n\n\n"
        "@dataclass\nclass Scale:\n    by: float = 2.0\n\n\n"
        "@kgen.operator\ndef scaled(x: Tensor[f32, ...]) -> Tensor[f32, ...]:\n    return x * Scale().by\n"
    )
    assert find_operator("late.py:scaled").definition.name == "scaled"
    (folder / "kgen.py").write_text((folder / "late.py").read_text())
    assert find_operator("kgen.py:scaled").definition.name == "scaled"


def _strings(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the texts of a JSON value are."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _strings(inner, (*place, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _strings(inner, (*place, i))
    elif isinstance(value, str):
        yield place


def _pack() -> Any:
    pack = json.loads(next(SHIPPED.glob("*.json")).read_text())
    return {**pack, "entries": pack["entries"][:1]}


@pytest.mark.parametrize("place", list(_strings(_pack())), ids=lambda place: ".".join(map(str, place)))
def test_text_of_a_pack_reaches_no_terminal_raw(place: tuple[Any, ...], folder: Path) -> None:
    pack = _pack()
    inner = pack
    for key in place[:-1]:
        inner = inner[key]
    for text in ("\x1b]0;owned\x07\x1b[2J", "\x9b31m\u202e\x7f\rx\n"):
        inner[place[-1]] += text
        (folder / "pack.json").write_text(json.dumps(pack))
        assert not faults(["db", "import", "pack.json", "--db", "new.sqlite"], folder)
        operator = pack["entries"][0]["problem"]["operator"]
        for verb in (
            "db stats",
            "db best",
            "db best --json",
            f"db best --gpu {pack['gpu']['name']}x",
            "db check",
            "show hgemm",
        ):
            assert not faults([*verb.split(" ", 3), "--db", "new.sqlite"], folder), (verb, operator)

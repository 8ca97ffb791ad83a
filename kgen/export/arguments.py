"""Arguments: what an export may be given, and how anything else is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from kgen.dsl.errors import ArgumentError
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Arch, Target
from kgen.export.collection import Entry

#: What the kernels of an export come as.
Form = Literal["cuda", "cubin", "fatbin", "torch"]
FORMS: tuple[Form, ...] = get_args(Form)
_KINDS: dict[str, tuple[Any, str]] = {
    "problem": (Problem, "a Problem, such as kgen.gelu.problem(leading=4096)"),
    "config": (Schedule, "a Schedule, such as parse_config makes"),
    "entries": ((list, tuple), "a list of Entry"),
    "target": (Target, "a Target, such as kgen.gpu.target.resolve('H200')"),
    "out": ((str, Path), "the path of a folder"),
    "archs": ((list, tuple), "a list of Arch"),
    "force": (bool, "True or False"),
    "origin": (str, "a text"),
    "namespace": ((str, type(None)), "a name for torch.ops, or None"),
    "form": (str, f"one of {', '.join(FORMS)}"),
}
_ITEMS: dict[str, tuple[Any, str]] = {"entries": (Entry, "an Entry"), "archs": (Arch, "an Arch")}


def check_kinds(**given: Any) -> None:
    """Raises ArgumentError where an argument of an export, by its name, is of another type than it must be."""
    for name, value in given.items():
        for told, one, (kinds, expected) in _each(name, value):
            if not isinstance(one, kinds):
                raise ArgumentError(f"export: {told} is a {type(one).__name__}; expected {expected}")
    if given.get("form", "cuda") not in FORMS:
        raise ArgumentError(f"export: unknown form {given['form']!r}; expected {', '.join(FORMS)}")
    if "entries" in given and not given["entries"]:
        raise ArgumentError("export: entries is empty; expected at least one Entry")


def _each(name: str, value: Any) -> Iterator[tuple[str, Any, tuple[Any, str]]]:
    """An argument, and what is in it where it is a list."""
    yield name, value, _KINDS[name]
    if name in _ITEMS and isinstance(value, (list, tuple)):
        yield from ((f"{name}[{i}]", one, _ITEMS[name]) for i, one in enumerate(value))

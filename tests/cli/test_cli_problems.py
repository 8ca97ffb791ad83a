"""Operators, shapes, dtypes and layouts of the command line, and that a generated file's own command finds it again."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from kgen import ops
from kgen.cli.problems import find_operator, parse_shape, select, select_one
from kgen.codegen.render import command_arguments
from kgen.dsl.errors import ArgumentError
from kgen.dsl.family import family_of


@pytest.mark.parametrize(
    ("text", "dims", "sizes"),
    [
        ("4x5x6", ("...", "M", "N", "K"), {"M": 4, "N": 5, "K": 6}),
        ("2x3x4x5x6", ("...", "M", "N", "K"), {"...": (2, 3), "M": 4, "N": 5, "K": 6}),
        ("7", ("...",), {"...": (7,)}),
        (" 8x9 ", ("M", "N"), {"M": 8, "N": 9}),
        ("M=4, N=5", ("M", "N"), {"M": 4, "N": 5}),
        ("N=5,...=2x3", ("...", "N"), {"N": 5, "...": (2, 3)}),
        ("...=", ("...",), {"...": ()}),
    ],
)
def test_shapes_are_read(text: str, dims: tuple[str, ...], sizes: dict[str, object]) -> None:
    assert parse_shape(text, dims) == sizes


def test_without_a_shape_the_default_suite_is_taken() -> None:
    operator = find_operator("hgemm")
    assert [p.sizes["M"] for p in select(operator)] == [1024, 2048, 4096, 8192]
    assert select_one(operator, None, None, None, None).sizes["M"] == 8192
    assert [p.sizes["M"] for p in select(operator, suite="ragged")] == [1000, 4095, 4093]


@pytest.mark.parametrize(
    ("name", "layout", "columns"),
    [
        ("hgemm", "NN", set()),
        ("hgemm", "NT", {"b"}),
        ("hgemm", "tn", {"a"}),
        ("hgemm", "TT", {"a", "b"}),
        ("linear", "NT", set()),  # x @ w.T with w as [N, K]
        ("linear", "NN", {"w"}),
        ("linear", "TN", {"x", "w"}),
        ("fp8gemm_blockwise", "NT", set()),
        ("fp8gemm_blockwise", "TN", {"a", "b"}),
    ],
)
def test_layouts_are_those_of_the_product(name: str, layout: str, columns: set[str]) -> None:
    problem = select_one(find_operator(name), "8x16x32", None, None, layout)
    assert {o.name for o in problem.operands if o.layout == "col"} == columns


@pytest.mark.parametrize("name", [*ops.operators()])
def test_the_command_of_a_generated_file_names_its_problem(name: str) -> None:
    operator = find_operator(name)
    for graph in operator.definition.graphs:
        rank = len(family_of(graph).dims(graph))
        sizes = ["4", "2", "6", "2", "3", "24", "8", "40"]
        for shape in ("x".join(sizes[-rank:]), "x".join(sizes[-rank - 1 :])):
            dtype = ",".join(dict.fromkeys(s.dtype.name for s in (*graph.inputs, *graph.outputs)))
            first = graph.inputs[0].name if len(graph.inputs[0].shape.dims) >= 2 else None
            for transposed in (None, first) if first else (None,):
                try:
                    problem = select_one(operator, shape, dtype, transposed, None)
                except ArgumentError:
                    assert "..." not in family_of(graph).dims(graph)  # no leading sizes: the longer shape
                    continue
                words = shlex.split(command_arguments(problem))
                options = dict(zip(words[1::2], words[2::2]))
                again = select_one(
                    find_operator(words[0]), options["--shape"], options["--dtype"], options.get("--transposed"), None
                )
                assert again == problem
                assert again.graph == graph


def test_the_command_of_a_problem_without_any_dimension() -> None:
    problem = select_one(find_operator("gelu"), "...=", "bf16", None, None)
    assert problem.operands[0].shape == ()
    assert command_arguments(problem) == "gelu --shape ...= --dtype bf16"


def test_operators_of_the_users_own(user_file: Path) -> None:
    operator = find_operator(f"{user_file}:mixed")
    problem = select_one(operator, "4x5x6", "f16,f32", "c", None)
    assert problem.key == "a:f16[4,6]row b:f16[6,5]row c:f32[4,5]col out:f32[4,5]row"
    assert not (user_file.parent / "__pycache__").exists()

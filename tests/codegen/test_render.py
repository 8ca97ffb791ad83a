"""Rendering: the same text each time, a header that makes it again, lines that lead back, nothing left of the template."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import re
import shlex
import subprocess
import sys

import jinja2
import pytest

from kgen.codegen.render import declaration, environment, tidy
from kgen.codegen.source import SM_COUNT, Integer, Launch, Pointer, Scalar, Source
from kgen.dsl.config_text import parse_config
from kgen.dsl.errors import CompileError, ConfigError, DefinitionError
from kgen.dsl.family import family_of, schedules
from kgen.dsl.problem import Problem
from kgen.dsl.program import launches_of
from kgen.dsl.size import Dim, ceil_div, minimum
from kgen.dsl.target import sm
from kgen.dsl.types import f16, f32, i32, i64
from kgen.gpu.compile import compile as nvrtc
from kgen.gpu.target import resolve
from kgen.ops import operator, operators

TARGET = resolve("H200")


def default_source(name: str, number: int = 0) -> tuple[Problem, Source]:
    graph = operator(name).graphs[number]
    family = family_of(graph)
    sizes = dict.fromkeys(graph.dims, 256) | ({"...": (2,)} if graph.outputs[0].shape.leading else {})
    problem = family.normalise(Problem.dense(graph, sizes))
    for schedule in (s for s in family.schedules if s.applies(problem)):
        with contextlib.suppress(ConfigError):  # another schedule of the family serves it
            return problem, schedule.default(problem, TARGET).source(problem)
    raise AssertionError(f"no schedule has a default for {problem}")


@pytest.mark.parametrize("name", [one.name for whole in operators().values() for one in launches_of(whole)])
def test_every_operator_renders_to_clean_text(name: str) -> None:
    for number in range(len(operator(name).graphs)):
        problem, source = default_source(name, number)
        text = source.text
        assert text.startswith(f"// {problem}\n// {problem.key}\n// ")
        for left in ("{{", "//%", "//#", "//@", "\n\n\n", " \n", "\t"):
            assert left not in text, f"{left!r} is left in {name}"
        assert "{\n\n" not in source.body
        assert text.endswith("}\n")
        assert f" {source.entry}(" in text
        assert "asm" not in source.body
        assert source == default_source(name, number)[1]


def test_the_header_has_the_command_that_makes_the_file_again() -> None:
    problem, source = default_source("linear_gelu", 1)
    command = re.search(r"again: (.*)", source.header)
    assert command is not None
    words = shlex.split(command[1])
    assert words[:3] == ["kgen", "source", "linear_gelu"]
    assert words[words.index("--shape") + 1] == "...=2,M=256,K=256,N=256"
    assert words[words.index("--dtype") + 1] == "bf16"
    config = parse_config(words[words.index("--config") + 1], schedules())
    assert config.source(problem) == source


def test_columns_are_named_in_the_header() -> None:
    graph = operators()["hgemm"].graphs[0]
    problem = Problem.dense(graph, {"M": 64, "N": 64, "K": 64}, {"b": "col"})
    problem = family_of(graph).normalise(problem)
    config = next(iter(family_of(graph).schedules)).default(problem, TARGET)
    assert "--transposed b " in config.source(problem).header


def test_the_text_is_the_same_in_every_process() -> None:
    _, source = default_source("gelu_mul")
    program = (
        "import sys; sys.path.insert(0, 'tests/codegen')\n"
        "from test_render import default_source\nprint(default_source('gelu_mul')[1].text, end='')"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout == source.text


def test_lines_lead_back_to_the_generated_file() -> None:
    for name in ("gelu", "linear_gelu"):
        _, source = default_source(name)
        lines = source.text.splitlines()
        found = [i for i, line in enumerate(lines) if line.startswith("#line") and f'"{source.entry}.cu"' in line]
        assert len(found) == 1
        # The number of a directive is that of the line below it, counted from 1.
        assert lines[found[0]] == f'#line {found[0] + 2} "{source.entry}.cu"'
        assert "__global__" in lines[found[0] + 1]


def test_an_error_of_the_compiler_names_the_users_line() -> None:
    _, source = default_source("gelu")
    broken = dataclasses.replace(source, body=source.body.replace("ptx::sigmoid_approximate(", "no_such_function("))
    with pytest.raises(CompileError, match=r"kgen/ops/elementwise/pointwise\.py\(\d+\): error.*no_such_function"):
        nvrtc(broken, sm(90, "a"))


def test_the_environment_is_strict() -> None:
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ missing }}").render()
    text = "a\n//% if yes\nb\n//% endif\nc\n"
    assert environment().from_string(text).render(yes=True) == "a\nb\nc\n"
    assert environment().from_string(text).render(yes=False) == "a\nc\n"
    assert environment().from_string("a\n//# said to nobody\nb").render().split() == ["a", "b"]


def test_tidy() -> None:
    assert tidy("\n\nvoid f() {\n\n  a;  \n\n\n\n  b;\n\n}\n") == "void f() {\n  a;\n\n  b;\n}\n"


def test_declarations() -> None:
    assert declaration(Pointer("a", f16, "a", "in")) == "const __half* a"
    assert declaration(Pointer("o", f32, "o", "out")) == "float* o"
    assert declaration(Pointer("w", i32, "", "counters", 4)) == "int* w"
    assert declaration(Integer("M", Dim("M"))) == "int M"
    assert declaration(Integer("s", Dim("s"), 64)) == "long long s"
    assert declaration(Scalar("eps", f32)) == "float eps"
    assert declaration(Scalar("seed", i64)) == "long long seed"


def sample(**changed: object) -> Source:
    params = (
        Pointer("x", f32, "x", "in"),
        Pointer("part", f32, "", "scratch", Dim("N") * 2),
        Pointer("done", i32, "", "counters", 3),
        Integer("N", Dim("N")),
        Scalar("eps", f32),
    )
    launch = Launch((minimum(ceil_div(Dim("N"), 128), SM_COUNT * 2), 1, 1), (128, 1, 1))
    source = Source("// h\n", ("cuda_fp16.h",), "", '#line 3 "x.py"\nvoid k() {}\n', "k", params, launch, sm(75))
    return dataclasses.replace(source, **changed)  # type: ignore[arg-type]


def test_binding_a_source() -> None:
    bound = sample().bind({"N": 1000, "SM_COUNT": 3})
    assert bound.grid == (6, 1, 1)
    assert bound.integers == {3: 1000}
    assert [(w.index, w.bytes, w.zeroed) for w in bound.workspaces] == [(1, 8000, False), (2, 12, True)]
    with pytest.raises(DefinitionError, match="no value for dimension SM_COUNT; known: N"):
        sample().bind({"N": 1})


def test_a_source_that_was_bound_travels_to_a_worker() -> None:
    source = sample()
    bound = source.bind({"N": 1000, "SM_COUNT": 3})
    again = pickle.loads(pickle.dumps(source))
    assert again == source
    assert again.bind({"N": 1000, "SM_COUNT": 3}) == bound


def test_a_digest_is_of_what_is_compiled() -> None:
    digest = sample().digest
    assert sample(header="// other\n").digest == digest
    assert sample(body='#line 4 "y.py"\nvoid k() {}\n').digest == digest
    assert sample(body="void k() { }\n").digest != digest
    assert sample(includes=()).digest != digest
    assert sample(ptx="int p;\n").digest != digest
    assert sample().text == '// h\n\n#include <cuda_fp16.h>\n\n#line 3 "x.py"\nvoid k() {}\n'

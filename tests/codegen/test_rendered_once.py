"""What a new shape costs of text: none, where its kernel's was made before."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from kgen.codegen import kept, render
from kgen.dsl import schedule
from kgen.dsl.family import normalised
from kgen.dsl.problem import NormalProblem, Problem, Sizes
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.gpu.target import resolve
from kgen.ops import operators
from kgen.runtime import dispatch

#: An operator, two of its problems, and what a kernel of both is.
CASES: dict[str, tuple[Sizes, Sizes]] = {
    "hgemm": ({"M": 1000, "N": 1024, "K": 512}, {"M": 3000, "N": 4096, "K": 1024}),
    "linear_gelu": ({"M": 1000, "N": 1024, "K": 512}, {"M": 3000, "N": 4096, "K": 1024}),
    "softmax": ({"...": (100,), "N": 1000}, {"...": (5, 600), "N": 1000}),
    "rms_norm": ({"...": (100,), "N": 4096}, {"...": (3000,), "N": 4096}),
    "gelu": ({"...": (1000,)}, {"...": (3000, 7)}),
    "column_sum": ({"M": 1000, "N": 4096}, {"M": 3000, "N": 4096}),
    "transpose": ({"M": 1024, "N": 4096}, {"M": 3072, "N": 512}),
    "embedding": ({"...": (100,), "V": 1000, "C": 1024}, {"...": (7, 3), "V": 50, "C": 1024}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_config_of_a_new_shape_renders_no_template(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, target = operators()[name].graphs[0], resolve("H200")
    first, second = (normalised(Problem.dense(graph, sizes)) for sizes in CASES[name])
    config = dispatch.default(first, target).config
    made = config.source(first)
    monkeypatch.setattr(jinja2.Template, "render", _refused)
    again = config.source(second)
    assert again.digest == made.digest
    assert (again.params, again.launch, again.body) == (made.params, made.launch, made.body)
    assert again.header != made.header
    assert str(second) in again.header


@pytest.mark.parametrize("name", CASES)
def test_what_one_process_renders_the_next_one_reads(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path))
    problem = normalised(Problem.dense(operators()[name].graphs[0], CASES[name][0]))
    config = dispatch.default(problem, resolve("H200")).config
    render._made.cache_clear()
    made = config.source(problem)
    render._made.cache_clear()
    monkeypatch.setattr(render, "environment", _refused)
    assert config.source(problem) == made
    render._made.cache_clear()
    monkeypatch.setattr(kept, "stamp", lambda: "other code")
    with pytest.raises(AssertionError, match="a template was rendered"):
        config.source(problem)


def test_what_was_rendered_is_read_and_nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path))
    problem = normalised(Problem.dense(operators()["hgemm"].graphs[0], CASES["hgemm"][0]))
    config = dispatch.default(problem, resolve("H200")).config
    render._made.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(render, "environment", _refused)
        with render.reads_alone(), pytest.raises(render.NotRendered):
            config.source(problem)
    made = config.source(problem)
    render._made.cache_clear()
    with render.reads_alone():
        assert config.source(problem) == made


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Schedule, NormalProblem, Target]:
    """A choice of which no process has rendered or compiled the kernel, its problem and a target."""
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path))
    problem, target = normalised(Problem.dense(operators()["hgemm"].graphs[0], CASES["hgemm"][0])), resolve("H200")
    config = dispatch.default(problem, target).config
    render._made.cache_clear()
    monkeypatch.setattr(schedule, "_sources", {})
    monkeypatch.setattr(dispatch, "_not_rendered", set())
    monkeypatch.setattr(dispatch, "_compiled", set())
    return config, problem, target


def test_whether_a_kernel_is_compiled_renders_nothing(
    unasked: tuple[Schedule, NormalProblem, Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A choice that no process made before is not compiled: a first call need not render its text to know that."""
    monkeypatch.setattr(render, "environment", _refused)
    assert not dispatch._is_compiled(*unasked)
    assert not dispatch._is_compiled(*unasked)


def test_what_this_process_compiled_since_is_compiled(
    unasked: tuple[Schedule, NormalProblem, Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, problem, _ = unasked
    assert not dispatch._is_compiled(*unasked)
    source = schedule.source_of(config, problem)
    assert not dispatch._is_compiled(*unasked)
    monkeypatch.setattr(dispatch, "is_compiled", lambda given, arch, cache: given.digest == source.digest)
    assert dispatch._is_compiled(*unasked)


def test_users_schedules_are_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Their code and templates are not kgen's, whose files tell whether what was kept still holds."""
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path))
    problem = normalised(Problem.dense(operators()["hgemm"].graphs[0], CASES["hgemm"][0]))
    config = dispatch.default(problem, resolve("H200")).config
    own = type("Own", (type(config),), {"__module__": "mine"})
    own(**config.values).source(problem)
    assert not (tmp_path / "rendered").exists()


def _refused(*args: object, **kwargs: object) -> str:
    raise AssertionError("a template was rendered")

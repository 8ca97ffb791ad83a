"""What a new shape costs of text: none, where its kernel's was made before."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from kgen.codegen import kept, render
from kgen.dsl.family import normalised
from kgen.dsl.problem import Problem, Sizes
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

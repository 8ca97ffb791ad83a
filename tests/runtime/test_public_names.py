"""The public names of kgen, and what importing them costs."""

import json
import subprocess
import sys

import pytest

import kgen
from kgen import ops
from kgen.dsl import functions

HEAVY = ("torch", "cuda", "optuna", "sqlalchemy", "alembic", "jinja2", "numpy", "typer", "rich")


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout


def loaded_after(code):
    return set(
        json.loads(
            run(f"import sys, json\n{code}\nprint(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))")
        )
    )


def test_import_loads_nothing_heavy():
    assert not loaded_after("import kgen") & set(HEAVY)


def test_import_is_fast():
    timed = "import time; t = time.perf_counter(); import kgen; print(time.perf_counter() - t)"
    assert min(float(run(timed)) for _ in range(3)) < 0.1


def test_defining_and_reading_an_operator_needs_no_torch():
    found = loaded_after(
        "import kgen\n"
        "def f(x: kgen.Tensor[kgen.f16, ...]) -> kgen.Tensor[kgen.f16, ...]: return kgen.gelu(x) + 1\n"
        "assert 'sigmoid' not in vars(kgen)\n"
        "assert '__global__' in kgen.operator(f).source(leading=64, target='H200')"
    )
    assert not found & {"torch", "optuna", "sqlalchemy"}


def test_every_function_is_public():
    own = [n for n, f in vars(functions).items() if callable(f) and getattr(f, "__module__", "") == functions.__name__]
    assert len(own) > 25
    for name in own:
        if not name.startswith("_"):
            assert callable(getattr(kgen, name)), name


def test_every_listed_name_exists():
    for name in dir(kgen):
        getattr(kgen, name)
    assert {"hgemm", "add", "gelu", "Tensor", "KgenError", "tune", "operator"} <= set(dir(kgen))


def test_operators_are_the_same_object_each_time():
    assert kgen.gelu is kgen.gelu
    assert kgen.swish is kgen.silu
    assert isinstance(kgen.gelu, kgen.KernelOperator)
    assert kgen.gelu.definition is ops.operators()["gelu"]


def test_packages_are_attributes():
    assert run("import kgen; print(kgen.dsl.__name__, kgen.tuning_db.__name__)").split() == [
        "kgen.dsl",
        "kgen.tuning_db",
    ]


def test_unknown_names():
    assert not hasattr(kgen, "_secret")
    assert not hasattr(kgen, "nosuch")
    with pytest.raises(ImportError):
        from kgen import nosuch  # noqa: F401


def test_operators_have_a_meaning_in_words():
    for name, operator in ops.operators().items():
        assert operator.__doc__, name
        assert getattr(kgen, name).__doc__ == operator.__doc__

"""Every public function and every operator, given values of the wrong kind: it works, or raises a KgenError with a message.

The functions come from the public names and the operators from the registry, so that a new one is attacked too. No
kernel is chosen, built or run: a call that is right ends before, in `Accepted` or with a plan that computes nothing.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attack_objects import VALUES, operands, strange, traced

import kgen
from kgen import KgenError, ops
from kgen.dsl.target import TARGETS
from kgen.export import export
from kgen.runtime import dispatch, tuning
from kgen.runtime.operator import KernelOperator

_PUBLIC = {name: getattr(kgen, name) for name in kgen._NAMES}
_FUNCTIONS = [name for name, f in _PUBLIC.items() if inspect.isfunction(f) and name not in ("emulate", "nms")]
#: The operators whose every argument gets every value; the others get the values below.
_WHOLE = ("hgemm", "elu", "rms_norm", "nms_padded")
_SOME = ("None", "1.5", "text", "list", "np.array", "traced", "operator")
_default = dispatch.default  # which the tests replace


class Accepted(KgenError):
    """The arguments were found right."""


@pytest.fixture(autouse=True)
def nothing_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def accepted(*given: Any, **named: Any) -> None:
        raise Accepted("arguments that are right")

    monkeypatch.setattr(dispatch, "choose", accepted)
    monkeypatch.setattr(dispatch, "default", accepted)
    monkeypatch.setattr(tuning, "tune_on", accepted)


def raised(call: Callable[[], Any]) -> str:
    """What a call raised that is no KgenError with one line that says something; empty when all is well."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except KgenError as error:
        return "" if str(error).strip() and "\n" not in str(error) else f"the message {str(error)!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    return ""


def all_well(calls: dict[str, Callable[[], Any]]) -> None:
    wrong = {name: found for name, call in calls.items() if (found := raised(call))}
    assert not wrong


def replaced(function: Callable[..., Any], parameter: str, value: Any) -> Any:
    """Calls a function with a value for one parameter and traced values for the others that it needs."""
    given, named = [], {}
    for p in inspect.signature(function).parameters.values():
        here = p.name == parameter
        if p.kind is p.KEYWORD_ONLY or p.kind is p.VAR_KEYWORD:
            if here or (p.default is p.empty and p.kind is p.KEYWORD_ONLY):
                named["x" if p.kind is p.VAR_KEYWORD else p.name] = value if here else traced()
        elif here or p.kind is not p.VAR_POSITIONAL:
            given.append(value if here else traced() if p.default is p.empty else p.default)
    return function(*given, **named)


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_a_function_takes_or_refuses_everything(name: str) -> None:
    function = _PUBLIC[name]
    all_well(
        {
            f"{parameter}={value}": lambda p=parameter, m=make: replaced(function, p, m())
            for parameter in inspect.signature(function).parameters
            for value, make in VALUES.items()
        }
    )


@pytest.mark.parametrize("method", ["problem", "source", "tune", "using"])
@pytest.mark.parametrize("name", _WHOLE)
def test_a_method_takes_or_refuses_everything(name: str, method: str) -> None:
    operator = getattr(kgen, name)
    function = getattr(operator, method)
    sizes = dict.fromkeys(operator.definition.graphs[0].dims, 8)
    named = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    right = {**sizes, **({"gpu": "H200"} if method == "tune" else {})}
    calls: dict[str, Callable[[], Any]] = {
        f"the first: {v}": lambda m=make: function(m()) for v, make in VALUES.items()
    }
    for parameter in (*named, *sizes, "nosuch") if method != "using" else ():
        for v, make in VALUES.items():
            calls[f"{parameter}={v}"] = lambda p=parameter, m=make: function(**{**right, p: m()})
    for field in ("pack", "stages", "nosuch") if method == "using" else ():
        for v, make in VALUES.items():
            calls[f"{field}={v}"] = lambda f=field, m=make: function(**{f: m()})
    all_well(calls)


@pytest.mark.parametrize("schedule", ["MmaGemm", "Rowwise"])
def test_a_space_takes_or_refuses_everything(schedule: str) -> None:
    kind = getattr(kgen, schedule)
    fields = [*kind.fields, "nosuch"]
    all_well({f"{f}={v}": lambda f=f, m=make: kind.where(**{f: m()}) for f in fields for v, make in VALUES.items()})


@pytest.mark.parametrize("name", ops.operators())
def test_an_operator_takes_or_refuses_everything(name: str) -> None:
    operator = KernelOperator(ops.operator(name))  # of its own, which keeps the empty plans
    right = operands(operator)
    values = VALUES if name in _WHOLE else {v: VALUES[v] for v in _SOME}
    calls: dict[str, Callable[[], Any]] = {}
    for i, x in enumerate(right):
        for v, make in {**values, **strange(x)}.items():
            calls[f"{i}: {v}"] = lambda i=i, m=make: operator(*right[:i], m(), *right[i + 1 :])
    for v, make in values.items():
        calls[f"out: {v}"] = lambda m=make: operator(*right, out=m())
        calls[f"nosuch: {v}"] = lambda m=make: operator(*right, nosuch=m())
        calls[f"as many: {v}"] = lambda m=make: operator(*[m()] * (len(right) + 9))
    for spec in operator.definition.scalars:
        for v, make in VALUES.items():
            calls[f"{spec.name}={v}"] = lambda s=spec, m=make: operator(*right, **{s.name: m()})
    all_well(calls)


@pytest.mark.parametrize("parameter", inspect.signature(export).parameters)
def test_export_takes_or_refuses_everything(parameter: str, folder: Path) -> None:
    problem, target = kgen.gelu.problem(leading=8), TARGETS["H200"]
    right = {"problem": problem, "config": _default(problem, target).config, "target": target, "out": "exported"}
    all_well({v: lambda m=make: export(**{**right, parameter: m()}) for v, make in VALUES.items()})


@pytest.mark.parametrize("parameter", inspect.signature(kgen.emulate).parameters)
def test_emulate_takes_or_refuses_everything(parameter: str) -> None:
    def within(value: Any) -> None:
        with kgen.emulate(**{parameter: value}):
            pass

    all_well({v: lambda m=make: within(m()) for v, make in VALUES.items()})


def test_register_and_tune_and_nms_take_or_refuse_everything() -> None:
    calls: dict[str, Callable[[], Any]] = {}
    for v, make in VALUES.items():
        calls[f"gradient {v}"] = lambda m=make: kgen.operator(kgen.gelu.definition.function).gradient(m())
        calls[f"tune {v}"] = lambda m=make: kgen.tune(m())
        calls[f"nms {v}"] = lambda m=make: kgen.nms(m(), m(), m())
    all_well(calls)


def test_emulate_says_what_it_expects() -> None:
    for wrong in ({"threads": 0}, {"timeout": 0}, {"timeout": float("nan")}, {"async_mode": "soon"}, {"seed": 1.5}):
        with pytest.raises(kgen.ArgumentError, match="expected"), kgen.emulate(**wrong):
            pass

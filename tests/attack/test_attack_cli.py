"""Every verb and every option of the command line, from the command tree itself, given texts that break programs.

Whatever is given, a command works, or says what is wrong in one line on stderr and exits with 2: never a traceback, nothing
written then, nothing run, no password and no control character printed. A verb or an option that is added is attacked too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from attack_runs import faults
from attack_values import SECRET, TEXTS, line, takes_text, verbs
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kgen.cli import doctor, verify
from kgen.cli.main import app
from kgen.codegen import settings
from kgen.runtime import dispatch, tuning

#: An option gets every text in one verb, in `source` where it has it, and each n-th in the others, beginning elsewhere each time.
_STEP = 12
_PAIRS = [(path, command, p) for path, command in verbs() for p in command.params if takes_text(p)]
_WHOLE = {p.name: path for path, _, p in sorted(_PAIRS, key=lambda pair: pair[0] == ("source",))}


def _interrupted(*given: Any, **named: Any) -> None:
    raise KeyboardInterrupt  # what can be wrong with the words has been found by now


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Nothing is tuned or run, and doctor does not start a process to ask torch."""
    monkeypatch.setattr(tuning, "tune_on", _interrupted)
    monkeypatch.setattr(verify, "_verify", _interrupted)
    monkeypatch.setattr(doctor, "_ask_torch", lambda: ["2.0", "absent", "0"])
    dispatch.forget()


def _texts(path: tuple[str, ...], name: str, thorough: bool) -> tuple[str, ...]:
    if thorough or _WHOLE[name] == path:
        return TEXTS
    return TEXTS[sum(map(ord, "".join((*path, name)))) % _STEP :: _STEP]


@pytest.mark.parametrize(
    ("path", "command", "parameter"), _PAIRS, ids=[f"{' '.join(a)} {p.name}" for a, _, p in _PAIRS]
)
def test_an_option_takes_or_refuses_every_text(
    path: tuple[str, ...], command: Any, parameter: Any, folder: Path, request: pytest.FixtureRequest
) -> None:
    wrong = {}
    for text in _texts(path, parameter.name, request.config.getoption("thorough")):
        found = faults(line(path, command, {parameter.name: text}), folder)
        if found:
            wrong[text[:80]] = found
    assert not wrong


@pytest.mark.parametrize(("path", "command"), list(verbs()), ids=[" ".join(path) for path, _ in verbs()])
@given(data=st.data())
def test_a_command_takes_or_refuses_any_options_together(
    path: tuple[str, ...], command: Any, data: st.DataObject
) -> None:
    pool = st.sampled_from(TEXTS) | st.text(max_size=20)
    texts = {p.name: data.draw(st.none() | pool, label=p.name) for p in command.params if takes_text(p)}
    assert not faults(line(path, command, {n: t for n, t in texts.items() if t is not None}), Path.cwd())


@pytest.mark.parametrize("variable", re.findall(r"`([A-Z_]+)`", settings.__doc__ or ""))
@pytest.mark.parametrize("words", ["source gelu --shape 8", "db stats", "db path", "doctor", "tune gelu"])
def test_an_environment_variable_may_be_anything(
    variable: str, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.delenv("KGEN_DATABASE")
    monkeypatch.setenv("KGEN_CACHE_DIR", str(folder / "cache"))
    wrong = {}
    for text in TEXTS if request.config.getoption("thorough") else TEXTS[::_STEP]:
        if "\0" not in text:
            monkeypatch.setenv(variable, text)
            found = faults(words.split(), folder)
            if found:
                wrong[text[:80]] = found
    assert not wrong


@pytest.mark.parametrize(("path", "command"), [(p, c) for p, c in verbs() if any(o.name == "db" for o in c.params)])
def test_no_password_is_printed(path: tuple[str, ...], command: Any, folder: Path) -> None:
    for text in (text for text in TEXTS if SECRET in text):
        ran = CliRunner().invoke(app, line(path, command, {"db": text}), prog_name="kgen")
        assert SECRET not in ran.stdout + ran.stderr


@pytest.mark.parametrize("arch", ["sm_81", "sm_999", "sm_76", "sm_80a", "sm_99a", "sm_130"])
def test_an_architecture_that_is_none_is_refused_with_the_list(arch: str, folder: Path) -> None:
    ran = CliRunner().invoke(app, ["export", "gelu", "--shape", "8", "--out", "out", "--arch", arch], prog_name="kgen")
    assert ran.exit_code == 2
    assert "expected one of sm_75, sm_80, " in ran.stderr
    assert not (folder / "out").exists()

"""Parsed templates on disk (kgen/codegen/parsed.py): parsed once, and nothing damaged, of another text or of others is run."""

from __future__ import annotations

import os

import jinja2
import pytest

from kgen.codegen.parsed import ParsedTemplates


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path))
    return tmp_path / "parsed"


def rendered(text="{{ a }}!"):
    """What a new environment makes of the text, and whether it parsed it."""
    parsed = []

    class Environment(jinja2.Environment):
        def _generate(self, *given, **named):
            parsed.append(1)
            return super()._generate(*given, **named)

    made = Environment(loader=jinja2.DictLoader({"t": text}), bytecode_cache=ParsedTemplates())
    return made.get_template("t").render(a=1), bool(parsed)


def test_a_text_is_parsed_once(folder):
    assert rendered() == ("1!", True)
    assert rendered() == ("1!", False)
    assert len(list(folder.iterdir())) == 1


def test_another_text_is_parsed():
    rendered()
    assert rendered("{{ a }}?") == ("1?", True)
    assert rendered("{{ a }}?") == ("1?", False)


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + b"\7", lambda data: b""])
def test_what_is_damaged_is_parsed_again(folder, damage):
    rendered()
    (path,) = folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert rendered() == ("1!", True)
    assert rendered() == ("1!", False)


@pytest.mark.skipif(os.name != "posix", reason="modes of folders")
def test_what_others_may_write_is_not_run(folder):
    rendered()
    folder.chmod(0o777)
    assert rendered() == ("1!", True)


def test_a_folder_that_cannot_be_made_costs_the_file_alone(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path / "file"))
    assert rendered() == ("1!", True)

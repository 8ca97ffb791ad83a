"""Columns of problem classes on disk (kgen/tuner/kept.py): what is read is what would be made, and nothing damaged is taken."""

from __future__ import annotations

import pytest

import kgen
from kgen.codegen import kept as files
from kgen.dsl.family import normalised
from kgen.gpu.target import resolve
from kgen.ops.gemm import WgmmaGemm
from kgen.tuner import columns, kept

H200 = resolve("H200")
MADE, OTHER = b"\0\1\1\2\0\3", b"\1\1"


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path))
    return tmp_path / "spaces"


def ask(of=("digest", 1), make=lambda: MADE):
    return kept.kept(WgmmaGemm, of, H200, make)


def never(*_):
    raise AssertionError("made again")


def test_what_was_made_is_read(folder):
    assert ask() == MADE
    assert ask(make=never) == MADE
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("other", [("digest", 2), ("digest", "1"), (("digest", 1),)])
def test_another_class_is_made(other):
    ask()
    assert ask(other, lambda: OTHER) == OTHER


def test_other_code_is_another_class(monkeypatch):
    ask()
    monkeypatch.setattr(files, "stamp", lambda: "other")
    assert ask(make=lambda: OTHER) == OTHER


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + b"\7", lambda data: b""])
def test_what_is_damaged_is_made_again(folder, damage):
    ask()
    (path,) = folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert ask() == MADE
    assert ask(make=never) == MADE


def test_what_is_not_plain_or_not_kgens_is_not_kept(folder, monkeypatch):
    assert kept._text(("a", (1, True, None))) == "('a',(1,True,None))"
    ask(of=("digest", object()))
    monkeypatch.setattr(WgmmaGemm, "__module__", "mine")
    ask()
    assert not folder.exists()


def test_a_folder_of_others_costs_the_file_alone(folder):
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert ask() == MADE
    assert not list(folder.iterdir())


@pytest.mark.parametrize(("schedule", "rows", "whole"), [(WgmmaGemm, 4096, False), (kgen.Gemv, 4, True)])
def test_a_class_that_is_read_is_the_one_that_was_enumerated(schedule, rows, whole, folder, monkeypatch):
    problem = normalised(kgen.hgemm.problem(M=rows, N=4096, K=4096))
    columns._prepared(schedule, problem, H200, False)
    first = columns._prepared(schedule, problem, H200, whole)
    monkeypatch.setattr(columns.Space, "of_class", never)
    second = columns._prepared(schedule, problem, H200, whole)

    def configs(known):
        return [known.completed(table, problem, H200).configs() for table in known.of(problem, H200)]

    assert configs(second) == configs(first)

"""The settings read from the environment."""

from pathlib import Path

from kgen.codegen import settings


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path))
    assert settings.cache_dir() == tmp_path
    monkeypatch.setenv("KGEN_CACHE_DIR", "~/kernels")
    assert settings.cache_dir() == Path.home() / "kernels"
    monkeypatch.setenv("KGEN_CACHE_DIR", "")
    assert settings.cache_dir().name == "kgen"


def test_the_database(tmp_path, monkeypatch):
    monkeypatch.delenv("KGEN_DATABASE", raising=False)
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path))
    assert settings.database() == str(tmp_path / "tuning.sqlite")
    monkeypatch.setenv("KGEN_DATABASE", "sqlite:///here.db")
    assert settings.database() == "sqlite:///here.db"


def test_toolkits(monkeypatch):
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("CUDA_PATH", "/opt/toolkit")
    assert settings.cuda_homes() == (Path("/opt/toolkit"),)

"""toolchain: the NVRTC in use, its headers, and what remembers both."""

import json

import pytest
from kernels import add

from kgen.codegen.cache_folder import read_whole, write_whole
from kgen.dsl.errors import ToolchainError
from kgen.dsl.target import Arch
from kgen.gpu import toolchain as module
from kgen.gpu.cache import CubinCache
from kgen.gpu.compile import compile
from kgen.gpu.toolchain import load_nvrtc, toolchain


@pytest.fixture
def processes(monkeypatch, tmp_path):
    """A cache folder of its own, and a function that makes what comes a new process, with NVRTC or with none to be loaded."""
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path))

    def begin(nvrtc=True):
        toolchain.cache_clear()
        load_nvrtc.cache_clear()
        if not nvrtc:
            monkeypatch.setattr(module, "bindings", _missing)

    begin()
    yield begin
    monkeypatch.undo()
    begin()


def _missing():
    raise ToolchainError("NVRTC cannot be loaded")


def test_the_next_process_loads_no_nvrtc_for_what_is_compiled(processes, tmp_path):
    cache = CubinCache(tmp_path / "cubins")
    known = toolchain()
    assert known.loaded
    compile(add(), Arch(80), cache=cache)
    processes(nvrtc=False)
    assert toolchain() == known
    assert not toolchain().loaded
    assert compile(add(), Arch(80), cache=cache).cached
    with pytest.raises(ToolchainError, match="cannot be loaded"):
        compile(add(), Arch(86), cache=cache)


def test_another_library_is_not_taken_for_the_one_remembered(processes):
    known, place = toolchain(), module._place()
    told = json.loads(read_whole(place))
    told["files"][0][1] += 1  # its size
    write_whole(place, json.dumps({**told, "identity": "of before"}).encode())
    processes()
    assert toolchain() == known
    assert toolchain().loaded


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"no JSON"])
def test_what_is_damaged_is_found_again(processes, data):
    known = toolchain()
    write_whole(module._place(), data)
    processes()
    assert toolchain() == known


def test_an_nvrtc_that_came_since_compiles_and_is_remembered(processes, tmp_path):
    known, place, cache = toolchain(), module._place(), CubinCache(tmp_path / "cubins")
    compile(add(), Arch(80), cache=cache)
    # As if another one had been remembered, whose files are still there.
    write_whole(place, json.dumps({**json.loads(read_whole(place)), "identity": "another"}).encode())
    processes()
    assert toolchain().identity == "another"
    assert compile(add(), Arch(80), cache=cache).cached  # what this NVRTC compiled before
    assert toolchain() == known
    processes(nvrtc=False)
    assert toolchain() == known


def test_a_change_of_where_it_is_looked_for_is_no_old_place(processes, monkeypatch):
    before = module._place()
    monkeypatch.setenv("CUDA_HOME", "/opt/another")
    assert module._place() != before


def test_a_folder_that_cannot_be_written_remembers_nothing(processes, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path / "file"))
    assert toolchain().loaded
    processes()
    assert toolchain().loaded


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No headers but those a test makes under the folder returned."""
    monkeypatch.setattr(module.sys, "path", [])
    monkeypatch.setattr(module, "cuda_homes", tuple)
    monkeypatch.setattr(module, "_TOOLKIT", tmp_path / "none")
    return tmp_path


def folder(where, *headers):
    for header in headers:
        (where / "include" / header).parent.mkdir(parents=True, exist_ok=True)
        (where / "include" / header).touch()
    return where


def test_missing_headers_are_named(nowhere):
    library = folder(nowhere / "cu13", "cuda_fp16.h", "mma.h") / "lib" / "libnvrtc.so"
    with pytest.raises(
        ToolchainError, match=r"crt/mma\.h was not found; pip install nvidia-cuda-runtime nvidia-cuda-crt"
    ):
        module._header_folders(library)


def test_headers_may_lie_in_two_packages(nowhere, monkeypatch):
    library = folder(nowhere / "nvidia" / "runtime", "cuda_fp16.h", "mma.h") / "lib" / "libnvrtc.so"
    folder(nowhere / "nvidia" / "crt", "crt/mma.h")
    monkeypatch.setattr(module.sys, "path", [str(nowhere)])
    found = module._header_folders(library)
    assert found == tuple(str(nowhere / "nvidia" / name / "include") for name in ("runtime", "crt"))


def test_headers_of_a_toolkit(nowhere, monkeypatch):
    home = folder(nowhere / "toolkit", "cuda_fp16.h", "mma.h", "crt/mma.h")
    monkeypatch.setattr(module, "cuda_homes", lambda: (home,))
    assert module._header_folders(None) == (str(home / "include"),)

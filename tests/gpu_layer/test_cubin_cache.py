"""CubinCache: found by content, private, checked when read, safe between processes."""

import multiprocessing
import os
import stat
from dataclasses import replace

import pytest
from kernels import add

from kgen.codegen import cache_folder
from kgen.codegen.cache_folder import TEMPORARY
from kgen.dsl.errors import CacheError
from kgen.dsl.target import Arch
from kgen.gpu import compile as module
from kgen.gpu.binary import Binary
from kgen.gpu.cache import CubinCache, cache_key
from kgen.gpu.compile import compile
from kgen.gpu.toolchain import load_nvrtc


def binary(cubin: bytes = b"\x7fELF" + bytes(range(256))) -> Binary:
    return Binary(
        cubin, "k", "sm_80", 40, 4, 8, 16, 32, "a log\nof two lines", (("177-D", "text"), (None, "é")), 0.25, "13.0"
    )


@pytest.fixture
def cache(tmp_path):
    return CubinCache(tmp_path / "a" / "cubins")


def test_an_entry_comes_back_whole(cache):
    cache.put("key", binary())
    assert cache.get("key") == replace(binary(), cached=True)
    assert cache.get("other") is None


def test_newlines_in_a_cubin(cache):
    cache.put("key", binary(b"\n\n\0\n"))
    assert cache.get("key").cubin == b"\n\n\0\n"


def test_second_compile_calls_no_compiler(cache, monkeypatch):
    first = compile(add(), Arch(80), cache=cache)
    monkeypatch.setattr(module, "_nvrtc", None)
    assert compile(add(), Arch(80), cache=cache) == replace(first, cached=True)


def test_the_key_sees_source_options_and_compiler(cache, monkeypatch):
    def built(source, arch, **options):
        return not compile(source, arch, cache=cache, **options).cached

    assert built(add(), Arch(80))
    assert built(add(), Arch(86))
    assert built(add(), Arch(80), lineinfo=True)
    assert built(replace(add(), body=add().body + "// another\n"), Arch(80))
    assert not built(replace(add(), header="// another"), Arch(80))
    assert not built(add(), Arch(80))
    other = replace(load_nvrtc(), identity="another compiler")
    monkeypatch.setattr(module, "toolchain", lambda: other)
    assert built(add(), Arch(80))


def test_keys_keep_their_parts_apart():
    assert cache_key("ab", "c") != cache_key("a", "bc") != cache_key("abc")
    assert len(cache_key("a")) == 64


@pytest.mark.parametrize("where", [0, 70, -1])
def test_a_flipped_byte_is_a_miss_and_is_rebuilt(cache, where):
    compile(add(), Arch(80), cache=cache)
    [entry] = cache.directory.iterdir()
    data = bytearray(entry.read_bytes())
    data[where] ^= 1
    entry.write_bytes(data)
    assert not compile(add(), Arch(80), cache=cache).cached
    assert compile(add(), Arch(80), cache=cache).cached


@pytest.mark.parametrize("data", [b"", b"\n", b"not an entry"])
def test_garbage_is_a_miss(cache, data):
    cache.put("key", binary())
    (cache.directory / "key").write_bytes(data)
    assert cache.get("key") is None


def test_a_truncated_entry_is_a_miss(cache):
    cache.put("key", binary())
    entry = cache.directory / "key"
    entry.write_bytes(entry.read_bytes()[:-5])
    assert cache.get("key") is None


def test_the_folder_is_private(cache):
    cache.put("key", binary())
    assert stat.S_IMODE(cache.directory.stat().st_mode) == 0o700
    assert [entry.name for entry in cache.directory.iterdir()] == ["key"]


def test_a_folder_others_may_write_is_refused(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(CacheError, match="chmod 700"):
        CubinCache(folder).get("key")


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="KGEN_CACHE_DIR"):
        CubinCache(tmp_path / "file" / "cubins").get("key")


def test_what_a_killed_process_left_goes_in_time(cache):
    cache.put("key", binary())
    old, new = cache.directory / f"{TEMPORARY}old", cache.directory / f"{TEMPORARY}new"
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (0, 0))
    cache_folder._clean.cache_clear()  # as in another process
    assert CubinCache(cache.directory).get("key") is not None
    assert (old.exists(), new.exists()) == (False, True)


def test_a_failing_disk_costs_the_entry_only(cache, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    cache.get("key")
    monkeypatch.setattr("kgen.codegen.cache_folder.os.replace", fail)
    with pytest.warns(RuntimeWarning, match="No space left"):
        cache.put("key", binary())
    assert list(cache.directory.iterdir()) == []


def test_the_default_folder_follows_the_setting(tmp_path, monkeypatch):
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path / "given"))
    compile(add(), Arch(75), cache=CubinCache())
    assert len(list((tmp_path / "given" / "cubins").iterdir())) == 1


def _use(directory, rounds, results):
    cache = CubinCache(directory)
    good = 0
    for i in range(rounds):
        cache.put(f"key{i % 4}", binary(bytes([i % 4]) * 100_000))
        found = cache.get(f"key{(i + 1) % 4}")
        good += found is None or found.cubin == bytes([(i + 1) % 4]) * 100_000
    results.put((good, cache.get("key0") is not None))


def test_two_processes_share_a_folder(cache):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    workers = [context.Process(target=_use, args=(cache.directory, 100, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    told = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(timeout=60)
    assert told == [(100, True), (100, True)]
    assert sorted(entry.name for entry in cache.directory.iterdir()) == ["key0", "key1", "key2", "key3"]


def _read_on(directory, ready, stop, misses):
    cache = CubinCache(directory)
    while not stop.is_set():
        ready.set()
        if cache.get("key") is None:
            misses.value += 1


def test_a_reader_never_sees_half_an_entry(cache):
    cache.put("key", binary(b"a" * 200_000))
    context = multiprocessing.get_context("spawn")
    ready, stop, misses = context.Event(), context.Event(), context.Value("i", 0)
    reader = context.Process(target=_read_on, args=(cache.directory, ready, stop, misses))
    reader.start()
    assert ready.wait(timeout=60)
    for i in range(100):
        cache.put("key", binary(bytes([i]) * 200_000))
    stop.set()
    reader.join(timeout=60)
    assert reader.exitcode == 0
    assert misses.value == 0

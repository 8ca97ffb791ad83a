"""The cache on disk: private, shared by processes, rebuilt when it should be; and the few rewrites the body goes through."""

from __future__ import annotations

import dataclasses
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from emulated_kernels import integers, make, read, write

from kgen import emulator
from kgen.codegen import cache_folder, host_compiler
from kgen.codegen.cache_folder import TEMPORARY
from kgen.codegen.source import Source
from kgen.dsl.errors import CacheError, CompileError, EmulatorError, ToolchainError
from kgen.emulator import Options, build

COPY = """
extern "C" __global__ void __launch_bounds__(64) copy(const float* in, float* out, int n) {
  if (threadIdx.x < n) out[threadIdx.x] = in[threadIdx.x];
}
"""

PROCESS = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_emulator_build import copies
copies(Path(sys.argv[1]))
"""


def copies(folder: Path) -> None:
    """Compiles and runs a kernel, everything built in `folder`."""
    x, y = integers([64]), np.zeros(64, np.float32)
    emulator.compile(make(COPY, 64), cache_dir=folder).launch([read(x), write(y), 64], (1, 1, 1))
    assert np.array_equal(x, y)


def test_a_kernel_nobody_holds_is_unloaded(begun_cache: Callable[[], Path]) -> None:
    """A process may have 65530 mappings, and a test run loads more kernels than fit."""
    folder = begun_cache()

    def loaded() -> int:
        return Path("/proc/self/maps").read_text().count(str(folder))

    runtime = build.Cache(folder).runtime()
    before = loaded()
    x, y = integers([64]), np.zeros(64, np.float32)
    kernel = emulator.compile(make(COPY, 64), cache_dir=folder)
    kernel.launch([read(x), write(y), 64], (1, 1, 1))
    assert loaded() > before
    del kernel
    gc.collect()
    assert loaded() == before
    copies(folder)
    assert runtime is build.Cache(folder).runtime()


def test_stacks_that_are_kept_leave_room_for_other_launches() -> None:
    """Two workers that kept what a cooperative launch had needed took all of a process's 65530 mappings."""
    body = COPY.replace("threadIdx.x", "i").replace("{\n", "{\n  int i = blockIdx.x * 64 + threadIdx.x;\n", 1)
    source = make(body, 64)
    together = dataclasses.replace(source, launch=dataclasses.replace(source.launch, cooperative=True))
    kernels = [emulator.compile(together), emulator.compile(source)]
    x, y = integers([16384]), np.zeros(16384, np.float32)
    for number in range(8):
        kernels[number % 2].launch([read(x), write(y), 16384], (256, 1, 1), options=Options(threads=2))
        assert len(Path("/proc/self/maps").read_text().splitlines()) < 32000
    assert np.array_equal(x, y)


def test_processes_share_a_private_cache(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROCESS, str(tmp_path / "cache"), str(Path(__file__).parent)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in running:
        _, log = process.communicate(timeout=300)
        assert process.returncode == 0, log
    (folder,) = (tmp_path / "cache" / "emulator").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(file.suffix for file in folder.iterdir() if file.is_file()) == [".sha256", ".sha256", ".so", ".so"]
    assert not list(folder.rglob(f"{TEMPORARY}*"))
    # What is damaged, as by a disk that was full, is built anew: a shared object cut short would take Python with it.
    built = [file for file in folder.rglob("*") if file.suffix in (".so", ".gch", ".pch")]
    assert len(built) == 3
    for file in built:
        os.truncate(file, file.stat().st_size // 2)
    again = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    assert all(host_compiler.is_built(file) for file in built)
    times = {file: file.stat().st_mtime_ns for file in folder.rglob("*.so")}
    copies(tmp_path / "cache")
    assert times == {file: file.stat().st_mtime_ns for file in folder.rglob("*.so")}


@pytest.mark.parametrize("damage", ["none", "empty", "short", "long", "a bit", "gone", "no digest", "another's digest"])
def test_what_no_build_left_so_is_not_taken(tmp_path: Path, damage: str) -> None:
    target = tmp_path / "made.so"
    host_compiler.produce(
        target, [sys.executable, "-c", "import sys; open(sys.argv[2], 'wb').write(bytes(999))"], "a file"
    )
    content, digests = target.read_bytes(), target.with_name("made.so.sha256")
    assert host_compiler.is_built(target)
    changed = {"empty": b"", "short": content[:-1], "long": content + b"x", "a bit": b"\1" + content[1:]}.get(damage)
    if changed is not None:
        target.write_bytes(changed)
    elif damage == "gone":
        target.unlink()
    elif damage != "none":
        digests.write_text("" if damage == "no digest" else "0" * 64)
    assert host_compiler.is_built(target) == (damage == "none")


def test_a_compiler_that_the_machine_failed_is_no_fault_of_the_kernel(tmp_path: Path) -> None:
    for program in (
        "import os; os.kill(os.getpid(), 9)",
        "raise SystemExit('x.s: fatal error: No space left on device')",
    ):
        with pytest.raises(ToolchainError, match=r"could not build a file: .*(signal 9|No space left)"):
            host_compiler.produce(tmp_path / "made.so", [sys.executable, "-c", program], "a file")
    with pytest.raises(ToolchainError, match="cannot run the host compiler"):
        host_compiler.produce(tmp_path / "made.so", [str(tmp_path / "no-such-compiler")], "a file")
    assert not list(tmp_path.iterdir())


def test_what_a_killed_build_left_goes_in_time(tmp_path: Path) -> None:
    folder = build.Cache(tmp_path).folder
    old, new = folder / f"{TEMPORARY}old", folder / f"{TEMPORARY}new"
    for path in (old, new):
        path.mkdir()
        (path / build.BODY_NAME).write_text("half")
    os.utime(old, (0, 0))
    cache_folder._clean.cache_clear()  # as in another process
    build.Cache(tmp_path)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_cache_that_others_may_write_is_refused(tmp_path: Path) -> None:
    cache = build.Cache(tmp_path)
    os.chmod(cache.folder, 0o777)
    with pytest.raises(CacheError, match="others may write"):
        emulator.compile(make(COPY, 64), cache_dir=tmp_path)


def test_the_folder_depends_on_compiler_and_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.Cache(tmp_path).folder
    other = dataclasses.replace(build.toolchain(), version="g++ 99")
    monkeypatch.setattr(build, "toolchain", lambda: other)
    build._version.cache_clear()
    try:
        assert build.Cache(tmp_path).folder != before
    finally:
        build._version.cache_clear()


def test_shared_variables_keep_their_lines() -> None:
    body = (
        "a\nextern __shared__ __align__(1024) unsigned char shared[];\n"
        "__shared__ alignas(16)\n float t[2][N + 1];\nb __shared__ int last;\n"
    )
    lines = build.translate(make(COPY.replace("copy", "a", 0) + body, 64)).splitlines()
    original = (COPY + body).splitlines()
    assert lines.index("a") == original.index("a")
    assert next(i for i, line in enumerate(lines) if line.startswith("b ")) == original.index("b __shared__ int last;")


SHARED = """
template <class T, int N>
__device__ __forceinline__ T reversed(T value) {
  __shared__ __align__(16) T line[N];
  line[threadIdx.x] = value;
  __syncthreads();
  return line[N - 1 - threadIdx.x];
}
__constant__ const float scale[2] = {1.0f, 2.0f};
extern "C" __global__ void __launch_bounds__(64) twice(const float* in, float* out, int n) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ int count, unused;
  __shared__ float pairs[2][32];
  if (threadIdx.x == 0) shared[n] = 3;
  float a = reversed<float, 64>(in[threadIdx.x]);
  int b = reversed<int, 64>(threadIdx.x);
  pairs[threadIdx.x / 32][threadIdx.x % 32] = a * scale[1] + b + shared[n];
  __syncthreads();
  if (blockIdx.x == gridDim.x - 1) out[threadIdx.x] = pairs[threadIdx.x / 32][threadIdx.x % 32];
}
"""


@pytest.mark.parametrize("checks", [True, False])
def test_shared_variables_of_every_form(checks: bool) -> None:
    x, y = integers([64]), np.zeros(64, np.float32)
    body = SHARED.replace("  __shared__ int count, unused;\n", "")
    options = Options(checks=checks)
    emulator.compile(make(body, 64, 256)).launch([read(x), write(y), 100], (3, 1, 1), options=options)
    np.testing.assert_array_equal(y, 2 * x[::-1] + np.arange(63, -1, -1) + 3)


def test_in_place_and_overlapping_buffers() -> None:
    body = """
extern "C" __global__ void __launch_bounds__(64) scale(const float* in, float* out, int n) { out[threadIdx.x] = 2.0f * in[threadIdx.x]; }
"""  # noqa: E501
    x = integers([128])
    expected = x.copy()
    expected[:64] *= 2
    emulator.compile(make(body, 64)).launch([read(x), write(x[:64]), 64], (1, 1, 1))
    np.testing.assert_array_equal(x, expected)


TIMES = """
__device__ float scaled(float x) { return FACTOR * x; }
extern "C" __global__ void __launch_bounds__(64) times(const float* in, float* out, int n) {
  if (threadIdx.x < n) out[threadIdx.x] = scaled(in[threadIdx.x]);
}
"""


def times(factor: int, before: str = "") -> Source:
    return make(f"{before}constexpr int FACTOR = {factor};{TIMES}", 64)


def libraries(folder: Path) -> list[Path]:
    """The compiled kernels, each file once."""
    return [path for path in build.Cache(folder).folder.glob("*-checked.so") if not path.is_symlink()]


def multiplied(source: Source, folder: Path, n: int = 64) -> list[float]:
    x, y = integers([64]), np.zeros(64, np.float32)
    emulator.compile(source, cache_dir=folder).launch([read(x), write(y), n], (1, 1, 1))
    return list(y / np.where(x == 0, 1, x))


def test_kernels_are_compiled_together_and_are_what_each_is_alone(begun_cache: Callable[[], Path]) -> None:
    """Functions of one name in all of them; each says its own lines of a fault, and is found after damage."""
    folder = begun_cache()
    sources = [times(2), times(3), times(2), times(5, "\n\n")]
    emulator.compile_together(sources, cache_dir=folder)
    (library,) = libraries(folder)
    for source, factor in zip(sources, (2, 3, 2, 5)):
        assert {0.0, float(factor)} >= {*multiplied(source, folder)} != {0.0}
        line = 1 + next(i for i, text in enumerate(source.body.splitlines()) if "scaled(in[" in text)
        with pytest.raises(EmulatorError, match=rf"line {line} "):
            emulator.compile(source, cache_dir=folder).launch(
                [read(np.zeros(8, np.float32)), write(np.zeros(64, np.float32)), 64], (1, 1, 1)
            )
    assert libraries(folder) == [library]
    gc.collect()
    library.unlink()
    library.write_bytes(b"damaged")
    assert {0.0, 3.0} >= {*multiplied(sources[1], folder)}
    assert len(libraries(folder)) == 2


def test_a_kernel_that_is_rejected_keeps_none_from_being_compiled(begun_cache: Callable[[], Path]) -> None:
    folder = begun_cache()
    emulator.compile_together([times(2), times(3, "nonsense ")], cache_dir=folder)
    assert 2.0 in multiplied(times(2), folder)
    with pytest.raises(CompileError, match="nonsense"):
        emulator.compile(times(3, "nonsense "), cache_dir=folder)


def test_so_many_kernels_are_compiled_together_at_most(begun_cache: Callable[[], Path]) -> None:
    folder = begun_cache()
    sources = [times(factor) for factor in range(2, build._TOGETHER + 4)]
    emulator.compile_together(sources[:1], cache_dir=folder)
    assert libraries(folder) == []  # one alone is left to `compile`
    emulator.compile_together(sources, cache_dir=folder)
    assert len(libraries(folder)) == 2

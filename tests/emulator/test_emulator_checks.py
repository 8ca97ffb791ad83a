"""Every fault the emulator knows is found, and reported with thread and line: one broken kernel for each."""

# ruff: noqa: E501 (tables and CUDA)
from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import pytest
from emulated_kernels import MMA_HGEMM, MMA_HGEMM_SHARED, aligned, integers, make, read, write

from kgen import emulator
from kgen.dsl.errors import ArgumentError, CompileError, EmulatorError
from kgen.emulator import Options

FILL = "for (int i = t; i < 256; i += 64) tile[i] = i;\n__syncthreads();\n"

HEAD = """extern "C" __global__ void __launch_bounds__(64) k(const float* in, float* out, int n) {
  extern __shared__ __align__(1024) unsigned char shared[];
  float* tile = reinterpret_cast<float*>(shared);
  int t = threadIdx.x;
"""


@dataclass(frozen=True)
class Case:
    """`body` runs with 64 threads, 1 KB of shared memory, 64 floats in and out; `mark` tells the line at fault."""

    body: str
    says: tuple[str, ...]
    mark: str = "// HERE"
    options: Options = field(default_factory=Options)
    thread: str | None = None


CASES = {
    "global-load-out-of-bounds": Case("out[t] = in[t + n - 63]; // HERE", ("out of bounds", "reads 4 bytes", "byte offset 256 of in, which has 256"), thread="63, 0, 0"),
    "global-store-out-of-bounds": Case("out[t - 1] = 1.0f; // HERE", ("out of bounds", "writes 4 bytes", "byte offset -4 of out"), thread="0, 0, 0"),
    "vector-over-the-end": Case("if (t == 0) {\n float4 v = *(const float4*)(in + 60 + n - 64 + 4); // HERE\n out[0] = v.x;\n}", ("out of bounds", "reads 16 bytes", "byte offset 256"), thread="0, 0, 0"),
    "null-pointer": Case("if (t == 3) *(float*)(long long)(n - 64) = 1.0f; // HERE", ("out of bounds", "null pointer"), thread="3, 0, 0"),
    "misaligned-vector": Case("if (t == 5) {\n float4 v = *(const float4*)(in + 1); // HERE\n out[t] = v.x + v.w;\n}", ("misaligned", "reads 16 bytes", "byte offset 4 of in"), thread="5, 0, 0"),
    "misaligned-struct": Case("struct alignas(16) Vec { __half v[8]; };\nif (t == 6) *reinterpret_cast<Vec*>(out + 2) = *reinterpret_cast<const Vec*>(in); // HERE", ("misaligned", "writes 16 bytes", "byte offset 8 of out"), thread="6, 0, 0"),
    "misaligned-shared-vector": Case("if (t == 5) *(float2*)(tile + 1) = make_float2(1.0f, 2.0f); // HERE", ("misaligned", "writes 8 bytes", "offset 4 of shared memory"), thread="5, 0, 0"),
    "write-to-an-input": Case("if (t == 7) const_cast<float*>(in)[t] = 1.0f; // HERE", ("writes 4 bytes at byte offset 28 of in, which is an input",), thread="7, 0, 0"),
    "read-of-an-unwritten-output": Case("out[t] = t;\nif (t == 9) out[10] += out[63] + out[t]; // HERE", ("of out, which nothing has written",), thread="9, 0, 0", options=Options(seed=3)),
    "shared-out-of-bounds": Case("tile[t * 5] = 1.0f; // HERE", ("out of bounds of shared memory", "writes 4 bytes", "has 1024 bytes")),
    "shared-before-the-start": Case("tile[t - 64] = 1.0f; // HERE", ("out of bounds of shared memory", "offset -")),
    "uninitialised-shared-read": Case("tile[t] = t;\n__syncthreads();\nout[t] = tile[t + 1]; // HERE", ("reads shared memory at offset 256 that nothing has written",), thread="63, 0, 0"),
    "missing-syncthreads-read-after-write": Case(FILL + "tile[t] = t; // HERE\nout[t] = tile[63 - t]; // HERE", ("race on shared memory", "no __syncthreads in between")),
    "missing-syncthreads-write-after-read": Case("tile[t] = in[t];\n__syncthreads();\nfloat v = tile[63 - t]; // HERE\ntile[t] = v; // HERE", ("race on shared memory", "with no __syncthreads")),
    "two-writers": Case("tile[0] = t; // HERE", ("race on shared memory", "writes offset 0", "wrote")),
    "missing-syncwarp": Case(FILL + "tile[t] = t; // HERE\nout[t] = tile[t ^ 1]; // HERE", ("race on shared memory", "__syncwarp")),
    "missing-syncwarp-after-a-shuffle": Case("tile[t] = t;\nfloat v = __shfl_xor_sync(~0u, in[t], 1);\nout[t] = tile[t ^ 1] + v; // HERE", ("race on shared memory", "__syncwarp")),
    "syncwarp-of-too-few": Case("tile[t] = t;\n__syncwarp(t % 32 < 16 ? 0xffffu : 0xffff0000u);\nout[t] = tile[t ^ 16]; // HERE", ("race on shared memory", "__syncwarp")),
    "bytes-of-a-word-race": Case(FILL + "shared[t] = t; // HERE\n__syncwarp();\nout[t] = shared[(t + 1) % 64]; // HERE", ("race on shared memory", "__sync")),
    "divergent-barrier": Case("if (t < 32) {\n __syncthreads();\n out[t] = 1.0f;\n} else {\n __syncthreads();\n out[t] = 2.0f;\n}", ("divergent barrier", "another __syncthreads"), mark="__syncthreads"),
    "barrier-not-reached-by-all": Case("if (t == 17) return;\n__syncthreads(); // HERE\nout[t] = 1.0f;", ("divergent barrier", "63 of 64 threads wait", "1 have ended")),
    "divergent-shuffle": Case("float v = in[t];\nif (t % 2)\n v = __shfl_xor_sync(~0u, v, 1);\nelse\n v = __shfl_down_sync(~0u, v, 1);\nout[t] = v;", ("divergent collective", "a shuffle"), mark="__shfl"),
    "shuffle-mask-without-the-caller": Case("out[t] = __shfl_sync(0xffffu, in[t], 0); // HERE", ("does not name the calling lane",)),
    "shuffle-with-ended-lanes": Case("if (t % 32 < 4) return;\n__nanosleep(1);\nout[t] = __shfl_sync(~0u, in[t], 8); // HERE", ("have ended",)),
    "shuffle-from-an-unnamed-lane": Case("if (t % 32 < 16) out[t] = __shfl_sync(0xffffu, in[t], 20); // HERE", ("reads lane 20, which the mask 0000ffff does not name",)),
    "deadlock": Case("if (t < 32) __syncwarp(t == 0 ? ~0u : ~1u); // HERE\nif (t >= 32) __syncthreads();\nout[t] = 1.0f;", ("__syncwarp",)),
    "deadlock-of-two-warps": Case("if (t > 0 && t < 32) __syncwarp(); // HERE\n__syncthreads();\nout[t] = 1.0f;", ("deadlock", "__syncwarp of lanes ffffffff", "33 of 64 threads wait at __syncthreads")),
    "mma-in-a-branch": Case("unsigned a[4] = {}, b[2] = {};\nfloat d[4] = {};\nif (t % 32 != 9)\n ptx::mma_m16n8k16_f16_f32(d, a, b); // HERE\nout[t] = d[0];", ("mma", "have ended")),
    "cp-async-without-wait": Case("ptx::cp_async<4>(ptx::smem_address(tile + t), in + t, 4);\nptx::cp_async_commit();\nout[t] = tile[t]; // HERE", ("reads shared memory", "cp.async of thread", "is under way")),
    "cp-async-wait-for-too-few-groups": Case("ptx::cp_async<4>(ptx::smem_address(tile + t), in + t, 4);\nptx::cp_async_commit();\nptx::cp_async_wait<1>();\nout[t] = tile[t]; // HERE", ("is under way",), options=Options(async_mode="eager")),
    "cp-async-without-commit": Case("ptx::cp_async<4>(ptx::smem_address(tile + t), in + t, 4);\nptx::cp_async_wait<0>();\nout[t] = tile[t]; // HERE", ("is under way",)),
    "cp-async-without-barrier": Case("ptx::cp_async<4>(ptx::smem_address(tile + t), in + t, 4);\nptx::cp_async_commit();\nptx::cp_async_wait<0>();\nout[t] = tile[63 - t]; // HERE", ("shared memory", "thread (")),
    "cp-async-over-what-is-read": Case("tile[t] = in[t];\n__syncthreads();\nfloat v = tile[t ^ 32]; // HERE\nptx::cp_async<4>(ptx::smem_address(tile + t), in + t, 4); // HERE\nptx::cp_async_commit();\nptx::cp_async_wait<0>();\nout[t] = v;", ("shared memory", "thread (")),
    "cp-async-source-out-of-bounds": Case("ptx::cp_async<16>(ptx::smem_address(tile + t % 16 * 4), in + t * 4, 16); // HERE", ("out of bounds", "of in, which has 256")),
    "cp-async-misaligned": Case("ptx::cp_async<8>(ptx::smem_address(tile + 1), in, 8); // HERE", ("misaligned", "cp.async")),
    "cp-async-past-shared": Case("if (t == 2) ptx::cp_async<16>(ptx::smem_address(tile) + 1024, in, 16); // HERE", ("out of bounds of shared memory", "cp.async"), thread="2, 0, 0"),
    "ldmatrix-out-of-bounds": Case(FILL + "unsigned r[4];\nptx::ldmatrix(r, ptx::smem_address(shared) + t * 64); // HERE\nout[t] = r[0];", ("ldmatrix", "out of bounds of shared memory", "1024 bytes")),
    "ldmatrix-misaligned": Case("unsigned r[1];\nfor (int i = t; i < 256; i += 64) tile[i] = 0.0f;\n__syncthreads();\nptx::ldmatrix(r, ptx::smem_address(shared) + t % 8 * 24); // HERE\nout[t] = r[0];", ("ldmatrix", "misaligned")),
    "ldmatrix-of-unwritten-rows": Case("unsigned r[2];\nptx::ldmatrix(r, ptx::smem_address(shared) + t % 16 * 16); // HERE\nout[t] = r[0];", ("nothing has written",)),
    "ldmatrix-races-with-the-store": Case("unsigned r[2];\ntile[t] = t;\nptx::ldmatrix(r, ptx::smem_address(shared) + t % 16 * 16); // HERE\nout[t] = r[0];", ("shared memory",)),
    "local-memory-of-another-thread": Case("float mine[2] = {in[t], 1.0f};\nfloat* p = mine;\nauto q = (float*)__shfl_sync(~0u, (unsigned long long)p, 0);\nout[t] = q[n % 2]; // HERE", ("another thread's local memory",)),
    "assertion": Case("assert(t < n - 1); // HERE", ("assertion failed: t < n - 1",), thread="63, 0, 0"),
    "division-by-zero": Case("out[t] = t / (n - 64); // HERE", ("division by zero",)),
    "endless-loop": Case("volatile float x = 1.0f;\nwhile (x > 0.0f) { x = x + 1.0f; } // HERE", ("takes longer than 0.3 s",), options=Options(timeout=0.3)),
    "endless-wait": Case("while (*(volatile float*)out != 1.0f) { __nanosleep(20); } // HERE", ("nothing has written",)),
    "endless-poll": Case("out[t] = 1.0f;\nif (t == 0)\n while (*(volatile const float*)in != 0.5f) {} // HERE", ("an endless wait",), options=Options(timeout=60)),
    "too-deep": Case("volatile float deep[20000]; deep[n] = 1.0f; deep[0] = deep[n]; out[t] = deep[0];", ("local memory overflows its 64 KB",), mark=""),
}  # fmt: skip


def run(case: Case, options: Options) -> None:
    source = make(HEAD + case.body + "\n}\n", 64, 1024)
    arrays = integers([64]), aligned(np.zeros(64, np.float32))
    emulator.compile(source, checks=options.checks).launch(
        [read(arrays[0]), write(arrays[1]), 64], (1, 1, 1), options=options
    )


@pytest.mark.parametrize("name", CASES)
def test_fault_is_reported(name: str) -> None:
    case = CASES[name]
    with pytest.raises(EmulatorError) as caught:
        run(case, case.options)
    message = str(caught.value)
    for text in case.says:
        assert text in message, message
    assert "(0, 0, 0)" in message
    if case.thread is not None:
        assert f"thread ({case.thread})" in message, message
    lines = (HEAD + case.body).splitlines()
    named = [int(line) for line in re.findall(r"line (\d+)", message)]
    marked = [number for number, line in enumerate(lines, 1) if case.mark in line]
    assert not case.mark or (named and set(named) & set(marked)), message


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, case in CASES.items()
        if any(word in " ".join(case.says) for word in ("divergent", "deadlock", "division", "longer"))
    ],
)
def test_fault_is_reported_without_checks(name: str) -> None:
    options = Options(checks=False, timeout=CASES[name].options.timeout)
    with pytest.raises(EmulatorError, match=CASES[name].says[0]):
        run(CASES[name], options)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("ptx::cp_async_wait<STAGES - 2>();", "ptx::cp_async_wait<STAGES - 1>();", "cp.async"),
        ("    __syncthreads();\n", "", "race on shared memory"),
        ("next % STAGES *", "step % STAGES *", "shared memory"),
        ("if (m < M && n < N) C", "if (n < N) C", "out of bounds|which is an input"),
        ("bool inside = row0 + row < rows && k < K;", "bool inside = true;", "out of bounds"),
        ("lane % 16, chunk", "lane % 17, chunk", None),
    ],
    ids=["wait-count", "no-barrier", "wrong-stage", "store-unguarded", "load-unguarded", "wrong-row"],
)
def test_broken_pipelines_are_found(old: str, new: str, says: str | None) -> None:
    assert old in MMA_HGEMM
    m, n, k = 120, 128, 128
    a, b, c = (
        integers([m, k]).astype(np.float16),
        integers([n, k], seed=1).astype(np.float16),
        np.zeros((m, n), np.float32),
    )
    a, b = aligned(a), aligned(b)
    kernel = emulator.compile(make(MMA_HGEMM.replace(old, new), shared_bytes=MMA_HGEMM_SHARED))
    if says is not None:
        with pytest.raises(EmulatorError, match=says):
            kernel.launch([read(a), read(b), write(c), m, n, k], (1, 1, 1))
    else:
        kernel.launch([read(a), read(b), write(c), m, n, k], (1, 1, 1))
        assert not np.array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)


def test_late_copies_show_a_missing_wait_without_checks() -> None:
    broken = make(
        MMA_HGEMM.replace("cp_async_wait<STAGES - 2>", "cp_async_wait<STAGES - 1>"), shared_bytes=MMA_HGEMM_SHARED
    )
    a = aligned(integers([128, 128]).astype(np.float16))
    kernel = emulator.compile(broken, checks=False)
    results = {}
    for mode in ("late", "eager"):
        c = np.zeros((128, 128), np.float32)
        kernel.launch(
            [read(a), read(a), write(c), 128, 128, 128], (1, 1, 1), options=Options(checks=False, async_mode=mode)
        )
        results[mode] = c
    assert np.isnan(results["late"]).any()
    np.testing.assert_array_equal(results["eager"], a.astype(np.float32) @ a.astype(np.float32).T)


def test_a_line_directive_names_the_users_file() -> None:
    body = HEAD + '#line 70 "model.py"\n  out[t + 1] = in[t];\n}\n'
    arrays = integers([64]), np.zeros(64, np.float32)
    with pytest.raises(EmulatorError, match=r"line 6 \(`out\[t \+ 1\] = in\[t\];`\) from model.py:70"):
        emulator.compile(make(body, 64, 1024)).launch([read(arrays[0]), write(arrays[1]), 64], (1, 1, 1))


def test_a_fault_leaves_the_next_launch_alone() -> None:
    good = Case("tile[t] = in[t];\n__syncthreads();\nout[t] = tile[63 - t];", ())
    for _ in range(3):
        with pytest.raises(EmulatorError):
            run(CASES["too-deep"], Options(checks=False))
        run(good, Options())


def test_compile_errors_carry_the_log_and_the_line() -> None:
    with pytest.raises(CompileError, match=r"kernel-body.cpp:5:\d+: error") as caught:
        emulator.compile(make(HEAD + "out[t] = nonsense;\n}\n", 64))
    assert "nonsense" in caught.value.log


@pytest.mark.parametrize(
    ("arguments", "grid", "says"),
    [
        (lambda i, o: [read(i), write(o)], (1, 1, 1), "takes 3 arguments, got 2"),
        (lambda i, o: [read(i), 3, 64], (1, 1, 1), "argument out must be a Buffer"),
        (lambda i, o: [read(i), write(o), 2**31], (1, 1, 1), "n must be an integer of 32 bits"),
        (lambda i, o: [read(i), write(o), 64], (0, 1, 1), "grid"),
    ],
)
def test_wrong_arguments_are_refused(arguments, grid: tuple[int, int, int], says: str) -> None:
    kernel = emulator.compile(make(HEAD + "out[t] = in[t];\n}\n", 64, 1024))
    arrays = integers([64]), np.zeros(64, np.float32)
    with pytest.raises(ArgumentError, match=says):
        kernel.launch(arguments(*arrays), grid)

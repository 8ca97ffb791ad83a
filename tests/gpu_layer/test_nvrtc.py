"""compile: Sources to Binaries by the real NVRTC, without a GPU."""

from dataclasses import replace

import pytest
from kernels import ADD, SPILL, add, source

from kgen.codegen.source import Source
from kgen.dsl.errors import CompileError, ToolchainError
from kgen.dsl.target import Arch
from kgen.gpu import compile as module
from kgen.gpu.compile import compile, parse_log
from kgen.gpu.toolchain import load_nvrtc, toolchain

ARCHS = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120"]


@pytest.mark.parametrize("arch", ARCHS)
def test_compiles_for_every_architecture(arch):
    binary = compile(add(), Arch.parse(arch))
    assert binary.cubin[:4] == b"\x7fELF"
    assert b"add" in binary.cubin
    assert (binary.entry, binary.arch, binary.cached) == ("add", arch, False)
    assert 6 <= binary.registers <= 64
    assert (binary.spill_stores, binary.spill_loads, binary.local_bytes) == (0, 0, 0)
    assert binary.warnings == ()
    assert binary.fatal_warnings == ()
    assert binary.compile_seconds > 0
    assert binary.nvrtc == toolchain().version


@pytest.mark.parametrize("header", ["cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "mma.h"])
def test_headers_are_found(header):
    body = 'extern "C" __global__ void empty() {}\n'
    made = source(body, "empty")
    with_header = Source(made.header, (header,), "", body, "empty", (), made.launch, made.arch)
    assert compile(with_header, Arch(80)).entry == "empty"


def test_figures_of_the_report():
    body = """\
extern "C" __global__ void __launch_bounds__(64) shared_kernel(float* z, int n) {
  __shared__ float tile[256];
  volatile float stack[32];
  for (int i = 0; i < 32; ++i) stack[i * n % 32] = z[i * n];
  tile[threadIdx.x] = z[threadIdx.x];
  __syncthreads();
  z[n] = tile[n] + stack[n % 32];
}
"""
    binary = compile(source(body, "shared_kernel"), Arch(80))
    assert binary.shared_static == 1024
    assert binary.local_bytes == 128
    assert binary.spill_stores == 0


def test_spills_are_fatal():
    binary = compile(source(SPILL, "spill"), Arch(80))
    assert binary.registers <= 64
    assert binary.spill_stores > 64
    assert binary.spill_loads > 64
    assert any(reason.startswith("spills") for reason in binary.fatal_warnings)


def test_a_call_counts_toward_the_entry():
    body = """\
__device__ __noinline__ float pick(const float* p, int n) {
  float y[16];
  for (int i = 0; i < 16; ++i) y[i] = p[i * n];
  return y[n];
}
extern "C" __global__ void calls(float* z, int n) { z[threadIdx.x] = pick(z, n); }
"""
    assert compile(source(body, "calls"), Arch(90, "a")).local_bytes >= 64


def test_front_end_warnings_are_kept():
    body = 'extern "C" __global__ void warned(float* z) {\n  int unused;\n  z[0] = 1.f;\n}\n'
    binary = compile(source(body, "warned"), Arch(80))
    [(code, text)] = binary.warnings
    assert code == "177-D"
    assert "unused" in text
    assert binary.fatal_warnings == ()


def test_serialised_wgmma_is_fatal():
    # The accumulator is read between the wgmma and the wait for it, so ptxas must serialise.
    body = """\
extern "C" __global__ void __launch_bounds__(128) early(float* z, unsigned long long a, unsigned long long b) {
  float d[4] = {0.f, 0.f, 0.f, 0.f};
  for (int i = 0; i < 4; ++i) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    d[0] += z[i];
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  z[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
"""
    binary = compile(source(body, "early", arch="sm_90a"), Arch(90, "a"))
    assert {"C7511", "C7517"} & {code for code, _ in binary.warnings}, binary.log
    assert len(set(binary.fatal_warnings)) == len(binary.fatal_warnings) > 0


def test_ignored_setmaxnreg_is_fatal():
    body = 'extern "C" __global__ void regs() { asm volatile("setmaxnreg.inc.sync.aligned.u32 240;"); }\n'
    binary = compile(source(body, "regs", arch="sm_90a"), Arch(90, "a"))
    assert binary.fatal_warnings == ("C7508: setmaxnreg is ignored",)


@pytest.mark.parametrize(
    "line",
    [
        "ptxas warning : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum registers.",
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized",
        "ptxas info    : (C7519) fence is missing in function 'k'",
    ],
)
def test_codes_are_read_from_every_level(line):
    report = (
        "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n    0 bytes stack frame, 0 bytes spill stores, "
    )
    binary = parse_log(f"{line}\n{report}0 bytes spill loads\nptxas info    : Used 8 registers\n", "k")
    assert binary.registers == 8
    [reason] = binary.fatal_warnings
    assert reason.startswith(line.split("(")[1][:5])


def test_only_the_entry_is_read():
    body = SPILL + 'extern "C" __global__ void small(float* z) { z[0] = 1.f; }\n'
    assert compile(source(body, "small"), Arch(80)).spill_stores == 0


def test_error_names_the_users_line():
    body = '#line 7 "user_operator.py"\nextern "C" __global__ void broken(float* z) { z[0] = undefined_name; }\n'
    with pytest.raises(CompileError, match=r"user_operator\.py\(7\): error.*undefined_name") as caught:
        compile(source(body, "broken"), Arch(80))
    assert "undefined_name" in caught.value.log


def test_error_of_the_assembler():
    body = 'extern "C" __global__ void broken() { asm volatile("no.such.instruction;"); }\n'
    with pytest.raises(CompileError, match="broken does not compile: ptxas"):
        compile(source(body, "broken"), Arch(80))


def test_missing_entry():
    with pytest.raises(CompileError, match="no kernel other"):
        compile(source(ADD, "other", ptx=add().ptx), Arch(80))


def test_architecture_too_old():
    with pytest.raises(CompileError, match=r"needs sm_90a and cannot run on sm_80"):
        compile(source("", "never", arch="sm_90a"), Arch(80))


def test_unknown_architecture():
    with pytest.raises(ToolchainError, match=r"NVRTC cannot work: .*gpu-architecture"):
        compile(add(), Arch(77))


def test_line_information_is_optional():
    assert len(compile(add(), Arch(80), lineinfo=True).cubin) > len(compile(add(), Arch(80)).cubin)


def test_a_header_that_is_gone_is_no_fault_of_the_kernel(monkeypatch):
    bare = replace(load_nvrtc(), includes=())
    monkeypatch.setattr(module, "toolchain", lambda: bare)
    with pytest.raises(ToolchainError, match=r"could not open source file \"cuda_fp16\.h\""):
        compile(source(f"#include <cuda_fp16.h>\n{ADD}", "add"), Arch(80))


def test_log_without_report():
    with pytest.raises(CompileError, match="no kernel k"):
        parse_log("", "k")

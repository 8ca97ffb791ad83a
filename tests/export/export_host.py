"""Builds an export's launch function and test for the host, with a plain C++ function in the kernel's place.

So the checks, the arguments of the launch, the test's cases and its comparison run where there is no GPU.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from kgen.codegen.render import declaration
from kgen.codegen.settings import cuda_homes
from kgen.export.interface import Interface
from kgen.export.kernel import Kernel
from kgen.gpu.toolchain import toolchain

RUNTIME = """
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cstdlib>
#include <cstring>
#include <utility>

// A tensor map of the host: address, sizes, strides in bytes, boxes. It is refused where the driver would.
static CUresult encode(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* address, const cuuint64_t* sizes,
                       const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave,
                       CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  map->opaque[0] = reinterpret_cast<cuuint64_t>(address);
  if (rank < 1 || rank > 5 || map->opaque[0] % 16) return CUDA_ERROR_INVALID_VALUE;
  for (cuuint32_t axis = 0; axis < rank; ++axis) {
    if (sizes[axis] < 1 || box[axis] < 1 || box[axis] > 256 || steps[axis] != 1) return CUDA_ERROR_INVALID_VALUE;
    map->opaque[1 + axis] = sizes[axis];
    map->opaque[11 + axis] = box[axis];
    if (axis + 1 == rank) break;
    if (strides[axis] % 16) return CUDA_ERROR_INVALID_VALUE;
    map->opaque[6 + axis] = strides[axis];
  }
  return CUDA_SUCCESS;
}

// cudaErrorMemoryAllocation for the function that the environment names, as where a GPU has no memory left for a kernel's code.
cudaError_t outcome(const char* function) {
  const char* failing = std::getenv("FAILING");
  return failing != nullptr && !std::strcmp(failing, function) ? cudaErrorMemoryAllocation : cudaSuccess;
}

extern "C" {
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned version, unsigned long long,
                                             cudaDriverEntryPointQueryResult*) {
  if (outcome("cudaGetDriverEntryPointByVersion")) return outcome("cudaGetDriverEntryPointByVersion");
  if (std::strcmp(name, "cuTensorMapEncodeTiled") || version != 12000) return cudaErrorSymbolNotFound;
  *found = reinterpret_cast<void*>(&encode);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { *device = 0; return outcome("cudaGetDevice"); }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { *value = 132; return outcome("cudaDeviceGetAttribute"); }
cudaError_t cudaMalloc(void** p, size_t n) { *p = std::aligned_alloc(256, (n + 255) / 256 * 256); return cudaSuccess; }
cudaError_t cudaFree(void* p) { std::free(p); return cudaSuccess; }
cudaError_t cudaMemset(void* p, int value, size_t n) { std::memset(p, value, n); return cudaSuccess; }
cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind) { std::memcpy(to, from, n); return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return outcome("cudaFuncSetAttribute"); }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long*, cudaGraph_t*,
                                     const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) { return error == cudaErrorMemoryAllocation ? "out of memory" : "error"; }
const char* cudaGetErrorName(cudaError_t) { return "error"; }
}
"""

_LAUNCH = """
#include <utility>
inline cudaLaunchConfig_t launched;
cudaError_t outcome(const char* function);
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Arguments&&... arguments) {
  if (outcome("cudaLaunchKernelEx")) return outcome("cudaLaunchKernelEx");
  launched = *config;
  kernel(std::forward<Arguments>(arguments)...);
  return cudaSuccess;
}
template <typename T>
cudaError_t cudaMalloc(T** p, size_t n) { return cudaMalloc(reinterpret_cast<void**>(p), n); }
template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
"""


def includes() -> list[str]:
    """Folders with cuda_fp16.h and what it includes on a host (nv/target, which not every package of the headers has)."""
    nvcc = shutil.which("nvcc")
    homes = [*cuda_homes(), *([Path(nvcc).resolve().parent.parent] if nvcc else []), Path("/usr/local/cuda")]
    for folder in (*map(Path, toolchain().includes), *(home / "include" for home in homes)):
        for cccl in (folder, folder / "cccl"):
            if (folder / "cuda_fp16.h").is_file() and (cccl / "nv/target").is_file():
                return [str(folder), str(cccl)]
    pytest.skip("no CUDA headers that a host compiler takes: nv/target is missing")


def replaced(launch: str, namespace: str, kernel: str) -> str:
    """The launch file with `kernel` in place of the device code in a namespace."""
    pattern = rf"namespace {namespace} \{{.*\}}  // namespace {namespace}\n"
    text, found = re.subn(
        pattern,
        lambda _: f"namespace {namespace} {{\n{kernel}\n}}  // namespace {namespace}\n",
        launch,
        flags=re.DOTALL,
    )
    assert found == 1
    return text


def stub(kernel: Kernel, body: str) -> str:
    """A host function with a kernel's parameters."""
    declared = (declaration(p).replace("const __grid_constant__ ", "const ") for p in kernel.source.params)
    types = ", ".join(f"[[maybe_unused]] {text}" for text in declared)
    maps = "namespace ptx { struct alignas(64) TensorMap { unsigned long long words[16]; }; }"
    return f"{maps}\nvoid {kernel.source.entry}({types}) {{ {body} }}"


def laid(folder: Path, files: Mapping[str, str], op: str) -> None:
    """The header, with launches of host functions behind it, and what else is no C++ of an export."""
    for name, text in files.items():
        if name.endswith((".h", ".py")):
            (folder / name).write_text(text + (_LAUNCH if name == f"{op}.h" else ""))


def picks(
    f: Interface, files: Mapping[str, str], calls: Sequence[Sequence[int]], folder: Path
) -> list[tuple[int, int, int]]:
    """What each call of an export's launch function does: the kernel that it runs, -1 where none, its result, its workspace.

    A call is the addresses of the operands and then the values of the symbols.
    """
    (folder / f"{f.name}.h").write_text(files[f"{f.name}.h"] + _LAUNCH + "inline int picked = -1;\n")
    launch = files[f"{f.name}.cu"]
    for kernel in f.kernels:
        launch = replaced(launch, kernel.namespace, stub(kernel, f"picked = {kernel.number};"))
    at = [f"({p.dtype.ctype}*)c[{i}]" for i, p in enumerate(f.operands)]
    at += [f"c[{len(f.operands) + i}]" for i in range(len(f.symbols))]
    scalars = ["1" for _ in f.scalars]
    workspace = ["(void*)4096"] if f.has_workspace else []
    size = f"{f.name}_workspace_bytes({', '.join(at)})" if f.has_workspace else "0"
    main = f"""#include "{f.name}.h"
#include <cstdio>
const long long CALLS[][{len(at)}] = {{
{chr(10).join("{" + ", ".join(map(str, call)) + "}," for call in calls)}
}};
int main() {{
  for (const auto& c : CALLS) {{
    picked = -1;
    const int result = {f.name}_launch({", ".join([*at, *scalars, *workspace, "nullptr"])});
    std::printf("%d %d %lld\\n", picked, result, (long long){size});
  }}
}}
"""
    code, told = built(folder, {"launch.cpp": launch, "main.cpp": main, "runtime.cpp": RUNTIME})
    assert code == 0, told
    return [tuple(map(int, line.split())) for line in told.splitlines()]  # type: ignore[misc]


def run(files: Mapping[str, str], kernel: str, folder: Path) -> tuple[int, str]:
    """Exit code and output of an export's test, with `kernel` (a host function of the kernel's name) for the kernel."""
    (op,) = (name.removesuffix(".h") for name in files if name.endswith(".h"))
    (folder / f"{op}.h").write_text(files[f"{op}.h"] + _LAUNCH)
    launch = replaced(files[f"{op}.cu"], f"{op}_kernel", kernel)
    return built(folder, {"launch.cpp": launch, "test.cpp": files[f"test_{op}.cu"], "runtime.cpp": RUNTIME})


def built(folder: Path, sources: Mapping[str, str], optimised: str = "-O1") -> tuple[int, str]:
    """Exit code and output of a program of these sources."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler for the host")
    for name, text in sources.items():
        (folder / name).write_text(text)
    headers = [word for path in includes() for word in ("-isystem", path)]
    flags = ["-std=c++17", optimised, "-Wall", "-Werror", *headers, "-o", str(folder / "test")]
    done = subprocess.run(
        [compiler, *flags, *(str(folder / name) for name in sources)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    done = subprocess.run([str(folder / "test")], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr

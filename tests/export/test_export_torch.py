"""The extension of torch: built against the headers here, with the kernel as a host function, and called on CPU tensors."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from export_host import RUNTIME, includes, laid, replaced, stub
from export_nvcc import needs_nvcc
from export_samples import H200, bias_gelu, default, elementwise, problem, scaled_product

from kgen.dsl.errors import ArgumentError
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.types import f16, f32
from kgen.export import Entry, export
from kgen.export.collection import Collection, collect
from kgen.export.extension import TORCH
from kgen.export.interface import Interface
from kgen.export.kernel import Kernel
from kgen.export.project import contents
from kgen.export.variants import Served
from kgen.runtime.shipped import shipped

COMPILER = shutil.which("g++") or shutil.which("c++")
KERNEL = """
void scaled_product(const __half* a, const __half* b, const __half* bias, __half* out, int M, int N, int K,
                    long long a_sm, long long b_sn, long long out_sm) {
  for (long long m = 0; m < M; ++m)
    for (long long n = 0; n < N; ++n) {
      float v = float(bias[n]);
      for (long long k = 0; k < K; ++k) v += float(a[m * a_sm + k]) * float(b[n * b_sn + k]);
      out[m * out_sm + n] = __half(v);
    }
}
"""
STREAM = 'extern "C" int aoti_torch_get_current_cuda_stream(int, void** stream) { *stream = nullptr; return 0; }\n'


def loaded(folder: Path) -> ModuleType:
    """The package in a folder."""
    spec = importlib.util.spec_from_file_location(f"exported_{folder.name}", folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def built(of: Problem, config: Schedule, kernel: Callable[[Kernel], str], folder: Path) -> Callable[..., torch.Tensor]:
    """An operator of torch around a host function in the kernel's place, for tensors on the CPU."""
    if COMPILER is None:
        pytest.skip("no C++ compiler for the host")
    found = Collection.single(Served(config, of, H200))
    name = of.graph.name
    files = contents(found, [H200.arch], "torch", f"{name}_on_cpu")
    texts = {file: text for file, text in files.items() if isinstance(text, str)}
    launch = replaced(texts[f"{name}.cu"], f"{name}_kernel", kernel(Interface(found).kernels[0]))
    launch = launch.replace("is_aligned(workspace, 256)", "is_aligned(workspace, 64)")  # as torch aligns on a CPU
    glue = texts[f"{name}_torch.cpp"].replace("_on_cpu, CUDA,", "_on_cpu, CPU,")
    glue = "\n".join(line for line in glue.splitlines() if "DeviceGuard" not in line)
    glue = glue.replace("static_cast<int64_t>(bytes)", 'outcome("workspace") ? 1LL << 50 : static_cast<int64_t>(bytes)')
    laid(folder, texts, name)
    sources = {"launch.cpp": launch, "glue.cpp": glue, "runtime.cpp": RUNTIME + STREAM}
    for file, text in sources.items():
        (folder / file).write_text(text)
    place = Path(torch.__file__).parent
    headers = [word for path in (str(place / "include"), *includes()) for word in ("-isystem", path)]
    options = ["-std=c++17", "-O0", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    # A torch with CUDA has the runtime's functions too.
    library = ["-o", str(folder / f"lib{name}_torch.so"), "-Wl,-Bsymbolic", f"-L{place / 'lib'}", "-ltorch_cpu"]
    command = [
        COMPILER,
        *options,
        f"-DTORCH_TARGET_VERSION={TORCH}",
        *headers,
        *(str(folder / file) for file in sources),
        *library,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    op: Callable[..., torch.Tensor] = getattr(loaded(folder), name)
    return op


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., torch.Tensor]:
    """A product with an epilogue."""
    of = problem(scaled_product, {}, {"...": (2,), "M": 63, "N": 47, "K": 33})
    return built(of, default(of, "SimtGemm"), lambda _: KERNEL, tmp_path_factory.mktemp("extension"))


def operands(*leading: int, m: int = 37, n: int = 29, k: int = 31) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(m)
    shapes = ((*leading, m, k), (n, k), (n,))
    a, b, bias = (torch.randint(-3, 4, shape, generator=made).to(torch.float16) for shape in shapes)
    return a, b, bias


def expected(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (a.float() @ b.float().T + bias.float()).half()


@pytest.mark.parametrize("leading", [(), (1,), (3,), (2, 3)], ids=str)
def test_any_number_of_leading_axes(leading: tuple[int, ...], on_cpu: Callable[..., torch.Tensor]) -> None:
    given = operands(*leading)
    found = on_cpu(*given)
    assert found.is_contiguous()
    torch.testing.assert_close(found, expected(*given), rtol=0, atol=0)


@pytest.mark.parametrize(
    "change",
    [
        lambda a, b, bias: (a[..., :20], b[..., :20], bias),  # rows with gaps
        lambda a, b, bias: (a[::2], b, bias),  # batches with gaps, which are copied
        lambda a, b, bias: (a.transpose(-1, -2).contiguous().transpose(-1, -2), b, bias),  # another layout, too
        lambda a, b, bias: (a, b[:1], bias[:1]),
        lambda a, b, bias: (a[:, :1], b, bias),
        lambda a, b, bias: (a[:0], b, bias),
    ],
    ids=["rows", "batches", "columns", "N=1", "M=1", "empty"],
)
def test_any_strides(change: Callable[..., tuple[torch.Tensor, ...]], on_cpu: Callable[..., torch.Tensor]) -> None:
    a, b, bias = change(*operands(4))
    torch.testing.assert_close(on_cpu(a, b, bias), expected(a, b, bias), rtol=0, atol=0)


def test_what_does_not_fit_is_refused_by_name(on_cpu: Callable[..., torch.Tensor]) -> None:
    a, b, bias = operands(2)
    for given, message in (
        ((a.float(), b, bias), "scaled_product: expected a of Half"),
        ((a, b[:, :-1], bias), "scaled_product: a size is 30; expected K, 31"),
        ((a, b, bias[:-1]), "expected N, 29"),
        ((a, b[0], bias), "b has 1 dimensions; expected 2"),
    ):
        with pytest.raises(RuntimeError, match=message):
            on_cpu(*given)


def test_a_result_that_does_not_fit_in_memory_is_an_error(on_cpu: Callable[..., torch.Tensor]) -> None:
    one = torch.zeros(1, 1, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="new_empty"):
        on_cpu(one.expand(1 << 26, 1), one.expand(1 << 26, 1), one[0].expand(1 << 26))


def test_what_the_runtime_fails_at_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel with tensor maps, a workspace and much shared memory: each call of the runtime fails once, the workspace too."""
    of = problem("hgemm", {"a": f16}, {"M": 128, "N": 128, "K": 16384})
    config = default(of, "WgmmaGemm", target=H200, work="split_k")
    assert Interface(Collection.single(Served(config, of, H200))).has_workspace
    op = built(of, config, lambda kernel: stub(kernel, ""), tmp_path)
    a, b = torch.zeros(128, 16384, dtype=torch.float16), torch.zeros(16384, 128, dtype=torch.float16)
    for function in ("cudaFuncSetAttribute", "cudaGetDriverEntryPointByVersion", "cudaLaunchKernelEx", "cudaGetDevice"):
        monkeypatch.setenv("FAILING", function)
        with pytest.raises(RuntimeError, match="hgemm_launch: out of memory"):
            op(a, b)
    monkeypatch.setenv("FAILING", "workspace")
    with pytest.raises(RuntimeError, match="new_zeros"):
        op(a[:, :8192], b[:8192])
    monkeypatch.delenv("FAILING")
    assert op(a[:, :8192], b[:8192]).shape == (128, 128)


def test_torch_compiles_and_checks_it(on_cpu: Callable[..., torch.Tensor]) -> None:
    given = operands(3)
    torch.library.opcheck(on_cpu.default, given, test_utils=("test_schema", "test_faketensor"))  # type: ignore[attr-defined]
    compiled = torch.compile(lambda *x: on_cpu(*x) + 1, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*given), expected(*given) + 1, rtol=0, atol=0)
    shape = on_cpu(*(x.to("meta") for x in operands(5, 2))).shape
    assert shape == (5, 2, 37, 29)


@needs_nvcc
@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("ninja")), reason="CMake or Ninja is not installed")
def test_cmake_builds_extension_and_loader(tmp_path: Path) -> None:
    """The whole of it, with nvcc. Here it has no GPU to run on: schema and shapes are there all the same."""
    of = problem(bias_gelu, {"x": f32}, {"...": (33,), "N": 512})
    out = tmp_path / "fused"
    export(of, elementwise(of), H200, out, form="torch")
    with pytest.raises(ImportError, match="is not built; in"):
        loaded(out)
    other = problem("gelu", {"x": f16}, {"...": (4096,)})
    export(other, elementwise(other), H200, tmp_path / "binary", form="cubin")
    both = "cmake_minimum_required(VERSION 3.24)\nset(CMAKE_CUDA_ARCHITECTURES 90a)\nproject(both LANGUAGES CXX CUDA)\n"
    (tmp_path / "CMakeLists.txt").write_text(both + "add_subdirectory(fused)\nadd_subdirectory(binary)\n")
    build = ["--build", str(tmp_path / "build"), "--parallel", "2", "--target", "bias_gelu_torch", "gelu"]
    options = [f"-DPython3_EXECUTABLE={sys.executable}", "-DCMAKE_SHARED_LINKER_FLAGS=-static-libstdc++"]
    for arguments in (["-S", str(tmp_path), "-B", str(tmp_path / "build"), "-G", "Ninja", *options], build):
        done = subprocess.run(["cmake", *arguments], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    op = loaded(out).bias_gelu
    assert str(op.default._schema) == "kgen_bias_gelu::bias_gelu(Tensor x, Tensor b, float alpha=1.) -> Tensor"
    x, b = torch.empty(2, 3, 512, device="meta"), torch.empty(512, device="meta")
    assert op(x, b, 2.0).shape == x.shape
    with pytest.raises(NotImplementedError, match="CPU"):
        op(torch.zeros(3, 512), torch.zeros(512))
    # Where the compiler's own library is linked statically, as some are set up to: facets of its locales that two extensions
    # shared had the wrong type in one of them.
    exported = ["nm", "--dynamic", "--defined-only", str(out / "libbias_gelu_torch.so")]
    symbols = subprocess.run(exported, capture_output=True, text=True, check=True).stdout
    assert symbols
    assert "_ZNSt8numpunct" not in symbols


def test_of_several_layouts_one_is_asked_for() -> None:
    problems = [problem("hgemm", {"a": f16}, {"M": 64, "N": 64, "K": 64}, layout) for layout in ({}, {"a": "col"})]
    made = collect([Entry(of, default(of, "SimtGemm")) for of in problems], H200, True)
    text = " ".join(str(contents(made, [H200.arch], "torch")["hgemm_torch.cpp"]).split())
    either = "a_view.sizes[0] == 1 || a_view.strides[0] == 1 || a_view.sizes[1] == 1 || a_view.strides[1] == 1"
    assert f"bool takes_a(const View& a_view) {{ return ({either}); }}" in text
    assert "bool takes_b(const View& b_view) { return (b_view.sizes[1] == 1 || b_view.strides[1] == 1); }" in text


def test_results_and_sizes_that_inputs_do_not_tell() -> None:
    of = shipped("histogram").problem(leading=4096, BINS=64)
    files = contents(Collection.single(Served(default(of, "ScatterAdd", target=H200), of, H200)), [H200.arch], "torch")
    assert 'library.def("histogram(Tensor x, *, SymInt BINS) -> Tensor");' in files["histogram_torch.cpp"]
    assert "new_empty([BINS], dtype=torch.int32)" in files["__init__.py"]


@pytest.mark.parametrize("namespace", ["", "a b", "1a", "a::b"])
def test_namespaces_are_names(namespace: str, tmp_path: Path) -> None:
    of = problem(bias_gelu, {"x": f16}, {"...": (33,), "N": 512})
    found = Collection.single(Served(elementwise(of), of, H200))
    with pytest.raises(ArgumentError, match=r"malformed namespace .* for torch.ops; expected a name"):
        contents(found, [H200.arch], "torch", namespace)


def test_a_result_in_another_layout_is_refused() -> None:
    of = problem("hgemm", {"a": f16}, {"M": 64, "N": 64, "K": 64}, {"out": "col"})
    found = Collection.single(Served(default(of, "SimtGemm"), of, H200))
    with pytest.raises(ArgumentError, match=r"it returns out:.*col; expected row-major results"):
        contents(found, [H200.arch], "torch")

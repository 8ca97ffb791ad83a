"""The exported files: what they hold, where they may be written, and that nvcc and CMake build them without a warning."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from export_nvcc import NVCC, built_and_run, compiled, needs_nvcc, read_by_both_passes
from export_samples import TARGET, M, N, bias_gelu, default, elementwise, problem, shifted, tma_shift

from kgen.codegen.source import Launch, Pointer
from kgen.dsl.errors import ArgumentError, ConfigError, KgenError
from kgen.dsl.functions import sum
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.size import Dim, ceil_div
from kgen.dsl.target import sm
from kgen.dsl.types import bf16, f16, f32, i32
from kgen.export import export
from kgen.export.collection import Collection
from kgen.export.interface import Interface
from kgen.export.project import _kernel_file, files
from kgen.export.variants import Served
from kgen.gpu.target import resolve


def pointwise() -> Problem:
    return problem(bias_gelu, {"x": f16}, {"...": (33,), "N": 512})


# Where files are written.


def test_files_and_their_names(tmp_path: Path) -> None:
    of = pointwise()
    paths = export(of, elementwise(of), TARGET, tmp_path / "new" / "out")
    assert [p.name for p in paths] == ["bias_gelu.cu", "bias_gelu.h", "test_bias_gelu.cu", "CMakeLists.txt"]
    assert all(p.is_file() for p in paths)


def test_an_earlier_export_is_replaced(tmp_path: Path) -> None:
    of = pointwise()
    export(of, elementwise(of, pack=8), TARGET, tmp_path)
    (kernel, *_) = export(of, elementwise(of, pack=1), TARGET, tmp_path)
    assert "PACK = 1;" in kernel.read_text()


def test_foreign_files_are_safe(tmp_path: Path) -> None:
    of = pointwise()
    (tmp_path / "CMakeLists.txt").write_text("# mine\n")
    with pytest.raises(KgenError, match=r"holds CMakeLists.txt.*--force"):
        export(of, elementwise(of), TARGET, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["CMakeLists.txt"]
    assert (tmp_path / "CMakeLists.txt").read_text() == "# mine\n"
    (tmp_path / "notes.txt").write_text("mine")
    export(of, elementwise(of), TARGET, tmp_path, force=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert "project(bias_gelu" in (tmp_path / "CMakeLists.txt").read_text()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    of = pointwise()
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(ArgumentError, match="cannot export to"):
            export(of, elementwise(of), TARGET, out)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither half a folder nor half of an earlier export's files; the next export is as good as the first."""
    of, new, old = pointwise(), tmp_path / "new" / "out", tmp_path / "old"
    export(of, elementwise(of, pack=8), TARGET, old)
    before = {path.name: path.read_text() for path in old.iterdir()}
    whole = Path.write_text

    def full(path: Path, text: str, **options: Any) -> int:
        if path.name == "test_bias_gelu.cu":
            whole(path, text[:100], **options)
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(path, text, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        for out in (new, old):
            with pytest.raises(ArgumentError, match="No space left on device; name another folder"):
                export(of, elementwise(of, pack=1), TARGET, out)
    assert not new.exists()
    assert {path.name: path.read_text() for path in old.iterdir()} == before
    for out in (new, old):
        assert len(export(of, elementwise(of, pack=1), TARGET, out)) == len([*out.iterdir()]) == 4


def test_an_export_that_was_killed_is_no_foreign_file(tmp_path: Path) -> None:
    of = pointwise()
    (tmp_path / ".export-left").mkdir()
    (tmp_path / ".export-left" / "bias_gelu.cu").write_text("half a")
    export(of, elementwise(of), TARGET, tmp_path)
    assert (tmp_path / "bias_gelu.cu").is_file()


# What cannot be exported.


def test_empty_problem(tmp_path: Path) -> None:
    of = problem(bias_gelu, {"x": f16}, {"...": (0,), "N": 512})
    config = elementwise(pointwise())
    with pytest.raises(ArgumentError, match="a size is 0"):
        export(of, config, TARGET, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_config_that_is_not_valid(tmp_path: Path) -> None:
    of = problem(bias_gelu, {"x": f16}, {"...": (33,), "N": 511})
    with pytest.raises(ConfigError, match="whole_vectors"):
        export(of, elementwise(pointwise(), pack=8), TARGET, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_architecture_that_is_too_old(tmp_path: Path) -> None:
    of = problem(bias_gelu, {"x": bf16}, {"N": 512})
    with pytest.raises(ConfigError, match=r"needs sm_80.*got sm_75"):
        export(of, elementwise(of), TARGET, tmp_path / "out", archs=[sm(75)])


def test_names_of_the_launch_function(tmp_path: Path) -> None:
    def clash(stream: Tensor[f32, ...]) -> Tensor[f32, ...]:
        return stream * 2

    of = Problem.dense(Operator(clash).graph({}), {"...": (64,)})
    with pytest.raises(ArgumentError, match="stream is a name of the launch function's own"):
        export(of, elementwise(of), TARGET, tmp_path / "out")


def test_the_interface_has_the_operands_names() -> None:
    """Whatever the kernel calls them; `int` is a keyword, `x_s0` a stride of x, `map_x` the launch function's own map."""

    def named(
        x: Tensor[f32, M, N], THREADS: Tensor[f32, N], row: Tensor[f32, N], int: Tensor[f32, N], x_s0: Tensor[f32, N],
        v0: float,
    ) -> Tensor[f32, M, N]:  # fmt: skip
        return x * v0 + THREADS + row + int + x_s0

    of = Problem.dense(Operator(named).graph({}), {"M": 48, "N": 96})
    texts = files(of, elementwise(of), TARGET, [TARGET.arch])
    pointers = (
        "const float* x, const float* THREADS, const float* row, const float* int_, const float* x_s0_, float* out"
    )
    for file in ("named.h", "named.cu"):
        text = " ".join(texts[file].split())
        assert f"named_launch( {pointers}, int64_t" in text.replace("named_launch(const", "named_launch( const")
        assert "float v0, cudaStream_t stream)" in text
    assert "named_kernel::named, x, THREADS, row, int_, x_s0_, out," in " ".join(texts["named.cu"].split())


@needs_nvcc
def test_the_test_has_the_interfaces_names(tmp_path: Path) -> None:
    """`new` is a keyword, `k0` what the reference's loops count by."""

    def named(
        new: Tensor[f32, M, N], class_: Tensor[f32, N], delete: Tensor[f32, N], float: float, k0: float
    ) -> Tensor[f32, M]:  # fmt: skip
        return sum(new * float + class_ + delete) * k0

    of = Problem.dense(Operator(named).graph({}), {"M": 48, "N": 96})
    config = default(of, "Rowwise")
    read_by_both_passes([files(of, config, TARGET, [TARGET.arch])], str(TARGET.arch), tmp_path)


# What the files say.


def test_no_trace_of_the_generator() -> None:
    of = problem("linear_gelu", {}, {"M": 256, "N": 256, "K": 256})
    for text in files(of, default(of, "SimtGemm"), TARGET, [TARGET.arch]).values():
        assert "kgen" not in text
        assert "#line" not in text
        assert not re.search(r"[ \t]+$|\n\n\n", text, flags=re.MULTILINE)


def test_same_input_same_files() -> None:
    of = pointwise()
    assert files(of, elementwise(of), TARGET, [sm(80)]) == files(of, elementwise(of), TARGET, [sm(80)])


def test_architectures_of_the_build() -> None:
    of = pointwise()
    found = files(of, elementwise(of), TARGET, [sm(80), sm(90, "a")])
    assert "set(CMAKE_CUDA_ARCHITECTURES 80 90a)" in found["CMakeLists.txt"]
    assert "-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a" in found["test_bias_gelu.cu"]


def test_checks_of_the_launch() -> None:
    of = pointwise()
    text = files(of, elementwise(of, pack=8, blocks_per_sm=4), TARGET, [TARGET.arch])["bias_gelu.cu"]
    for line in (
        "if (n0 < 0 || n1 < 0 || x_s0 < 0 || out_s0 < 0) return cudaErrorInvalidValue;",
        "if (n0 == 0 || n1 == 0) return cudaSuccess;",
        "if (x == nullptr || b == nullptr || out == nullptr) return cudaErrorInvalidValue;",
        "if (!is_aligned(x, 16) || !is_aligned(b, 16) || !is_aligned(out, 16)) return cudaErrorInvalidValue;",
        "if (n1 % 8 != 0 || x_s0 % 8 != 0 || out_s0 % 8 != 0) return cudaErrorInvalidValue;",
        "cudaDevAttrMultiProcessorCount",
    ):
        assert line in text


def by_tma(**changes: Any) -> tuple[Problem, Any]:
    return problem(shifted, {}, {"M": 64, "N": 128}), tma_shift(**changes)


def test_tensor_maps_are_encoded_by_the_launch() -> None:
    of, config = by_tma(scratch=True)
    text = " ".join(files(of, config, TARGET, [TARGET.arch])["shifted.cu"].split())
    parameters = "const float* x, const float* b, float* out, int64_t n0, int64_t n1, int64_t x_s0, int64_t out_s0"
    for piece in (
        f"cudaError_t shifted_launch({parameters}, void* workspace, cudaStream_t stream)",
        "if (!is_aligned(x, 16) || !is_aligned(b, 4) || !is_aligned(out, 16)) return cudaErrorInvalidValue;",
        "if (n1 % 4 != 0 || x_s0 % 4 != 0 || out_s0 % 4 != 0) return cudaErrorInvalidValue;",
        "encode_tensor_map(&map_x, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_SWIZZLE_NONE, x, {n1, n0}, "
        "{4, x_s0 * 4}, {32, 32});",
        "CU_TENSOR_MAP_SWIZZLE_NONE, partials, {n0 * 32}, {4}, {32});",
        "cudaLaunchKernelEx(&config, shifted_kernel::shifted, map_x, b, map_out, static_cast<int>(n1), partials, map_partials)",
    ):
        assert piece in text
    assert "attributes" not in text


@pytest.mark.parametrize("cluster", [1, 2])
def test_cooperative_launches_say_so(cluster: int) -> None:
    of, config = by_tma(cooperative=True, cluster=cluster)
    text = files(of, config, TARGET, [TARGET.arch])["shifted.cu"]
    assert f"attributes[{cluster - 1}].id = cudaLaunchAttributeCooperative;" in text
    assert f"attributes[{cluster - 1}].val.cooperative = 1;" in text
    assert f"config.numAttrs = {cluster};" in text


def test_overlapping_launches_say_so() -> None:
    text = _kernel_file(altered(pdl=True))
    assert "attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;" in text
    assert "attributes[0].val.programmaticStreamSerializationAllowed = 1;" in text


def test_looping_launches_get_no_more_clusters_than_fit() -> None:
    f = altered(cluster=(4, 1, 1), persistent=True)
    text = _kernel_file(f)
    assert "cudaOccupancyMaxActiveClusters(&count, bias_gelu_kernel::bias_gelu, &config)" in text
    assert "config.gridDim.x = std::min(config.gridDim.x, clusters * 4);" in text
    # Asked once all else of the launch is said.
    assert text.index("config.numAttrs = 1;") < text.index("get_clusters_at_once(config, &clusters)")


def altered(**launch: Any) -> Interface:
    """The interface of a pointwise kernel whose launch is another: for what its family does not use."""
    of = pointwise()
    served = Served(elementwise(of, blocks_per_sm=0), of, TARGET)
    f = Interface(Collection.single(served))
    source, found = served.source, f.kernels[0]
    tiles = ceil_div(Dim("n0"), 64)
    params = (
        *source.params,
        Pointer("partials", f32, "", "scratch", tiles * 64),
        Pointer("counters", i32, "", "counters", tiles),
    )
    vars(served)["source"] = dataclasses.replace(
        source,
        params=params,
        launch=dataclasses.replace(source.launch, **launch),
        body=source.body.replace("float alpha)", "float alpha, float* partials, int* counters)"),
    )
    vars(f)["kernels"] = (dataclasses.replace(found),)
    return f


def test_workspace_shared_memory_and_cluster(tmp_path: Path) -> None:
    launch = Launch((ceil_div(Dim("n0"), 64), 4, 1), (256, 1, 1))
    f = altered(shared_bytes=100 * 1024, cluster=(2, 1, 1), grid=launch.grid)
    text = _kernel_file(f)
    assert "cudaFuncAttributeMaxDynamicSharedMemorySize" in text
    assert "constexpr size_t SHARED_BYTES = 102400;" in text
    assert "attributes[0].val.clusterDim.x = 2;" in text
    assert "size_t bias_gelu_workspace_bytes(int64_t n0)" in text
    # Counters come first, so that where they lie does not depend on the size of the rest.
    assert text.index("int* const counters = static_cast<int*>(workspace);") < text.index("float* const partials")
    assert "workspace == nullptr || !is_aligned(workspace, 256)" in text
    if NVCC:
        header = files(pointwise(), f.first.config, TARGET, [sm(90, "a")])["bias_gelu.h"]
        header = header.replace("cudaStream_t stream)", "void* workspace, cudaStream_t stream)").replace(
            "// Launches", "size_t bias_gelu_workspace_bytes(int64_t n0);\n// Launches"
        )
        (tmp_path / "bias_gelu.h").write_text(header)
        (tmp_path / "bias_gelu.cu").write_text(text)
        compiled(tmp_path, "sm_90a", ["-c", "bias_gelu.cu"])


# That they build.

CASES = {
    "pointwise": lambda: (pointwise(), "Elementwise", {"blocks_per_sm": 2}),
    "a name of the C library": lambda: (problem("div", {"a": bf16}, {"...": (1000,)}), "Elementwise", {}),
    "cuda cores": lambda: (problem("sgemm", {}, {"M": 256, "N": 192, "K": 128}), "SimtGemm", {}),
    "tensor cores": lambda: (
        problem("linear_gelu", {"x": f16}, {"...": (2,), "M": 128, "N": 256, "K": 128}),
        "MmaGemm",
        {},
    ),
    "split sum": lambda: (problem("hgemm", {"a": bf16}, {"M": 128, "N": 128, "K": 4096}), "MmaGemm", {"splits": 4}),
}


@needs_nvcc
@pytest.mark.parametrize(("case", "arch"), [*zip(CASES, itertools.cycle(["80", "90a"]))])
def test_nvcc_alone_builds_it(case: str, arch: str, tmp_path: Path) -> None:
    of, schedule, changes = CASES[case]()
    target = resolve(f"sm_{arch}")
    builds_and_skips(of, default(of, schedule, target=target, **changes), target, tmp_path)


@needs_nvcc
@pytest.mark.parametrize("changes", [{}, {"cooperative": True, "cluster": 2, "scratch": True}], ids=["plain", "all"])
def test_nvcc_alone_builds_tensor_maps(changes: dict[str, Any], tmp_path: Path) -> None:
    builds_and_skips(*by_tma(**changes), TARGET, tmp_path)


@needs_nvcc
def test_nvcc_alone_builds_what_no_graph_expresses(tmp_path: Path) -> None:
    of = problem("nms", {}, {"N": 5000})
    builds_and_skips(of, default(of, "Nms"), TARGET, tmp_path)


def builds_and_skips(of: Problem, config: Any, target: Any, tmp_path: Path) -> None:
    # Without a GPU of that architecture the test still checks that wrong arguments are refused, and says that it skips.
    exported = files(of, config, target, [target.arch])
    code, told = built_and_run(exported, str(target.arch), tmp_path, CUDA_VISIBLE_DEVICES="")
    assert code == 77, told
    assert "skipped" in told


@needs_nvcc
@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("ninja")), reason="CMake or Ninja is not installed")
def test_cmake_builds_and_runs_the_test(tmp_path: Path) -> None:
    of = pointwise()
    export(of, elementwise(of), TARGET, tmp_path / "out")
    build = tmp_path / "build"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    for command in (
        ["cmake", "-S", str(tmp_path / "out"), "-B", str(build), "-G", "Ninja"],
        ["cmake", "--build", str(build), "--parallel", "2"],
        ["ctest", "--test-dir", str(build), "--output-on-failure"],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "Skipped" in done.stdout


@pytest.mark.parametrize("case", CASES)
def test_the_header_is_c(case: str, tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    nvcc_home = Path(NVCC).resolve().parent.parent if NVCC else None
    homes = [
        home
        for home in (nvcc_home, Path("/usr/local/cuda"))
        if home and (home / "include/cuda_runtime_api.h").is_file()
    ]
    if compiler is None or not homes:
        pytest.skip("no C compiler, or no headers of the CUDA runtime")
    of, schedule, changes = CASES[case]()
    header = files(of, default(of, schedule, **changes), TARGET, [TARGET.arch])[f"{of.graph.name}.h"]
    (tmp_path / "header.c").write_text(header)
    subprocess.run(
        [
            compiler,
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fsyntax-only",
            "-I",
            str(homes[0] / "include"),
            "header.c",
        ],
        cwd=tmp_path,
        check=True,
        timeout=60,
    )

"""Names of operators, operands, dimensions and files in generated code: any that Python allows works, or is refused by name."""

from __future__ import annotations

import builtins
import keyword
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import kgen
from kgen import Tensor, dims, dtype_var, f32
from kgen.codegen.library import blocks
from kgen.codegen.names import _KEYWORDS, kernel_name
from kgen.dsl.errors import DefinitionError
from kgen.dsl.expr import Expr, Location, Shape
from kgen.dsl.operator import Operator
from kgen.gpu.compile import compile as nvrtc
from kgen.gpu.target import resolve
from kgen.runtime.operator import KernelOperator

M, N = dims("M N")
TARGET = resolve("H200")


#: Functions, types and macros of CUDA's headers and of those of C that they bring.
CUDA = """
    abs acos acosf acosh asin atan2f atomicAdd atomicCAS cbrt ceil ceilf clock clock64 copysign cos cosf cospi
    cuda_fp16 dim3 div double2 double4 erf erfcinv erfcx erff exp exp10 exp10f exp2f expf expm1f fabs fabsf fdim
    fdividef float2 float4 floorf fma fmaf fmaxf fmin fmod frexp free half half2 hypot ilogb index int2 int4
    isfinite isinf isnan j0 j1f jn labs ldexp lgamma llabs llmax llmin llrint llround log log10f log1p log2f logb
    logf long2 longlong2 lrint lround make_float4 make_half2 malloc max memcpy memset min modf nan nanf nearbyint
    nextafter norm norm3d norm4df normcdf normcdfinvf offsetof pow powf printf remainder remquo rhypot rint rnorm
    round rsqrtf scalbln scalbn short2 signbit sin sincos sincospi sinf sinpi size_t sqrt sqrtf surf2Dread tan tanhf
    tex2D tgamma time trunc uchar4 uint uint4 ullmax ulonglong2 umax umin ushort2 warpSize y0 ynf __half
    __nv_bfloat16 __syncthreads __global__ __device__ __launch_bounds__ __restrict__ nv_bfloat16 nullptr_t int8_t
    uint32_t intptr_t NULL EOF INT_MAX FLT_MAX CHAR_BIT assert std main abort clock_t operator new delete and or not
    xor co_await requires concept typeof asm
"""


def named(name: str) -> KernelOperator:
    def function(x: Tensor[f32, M, N], y: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
        return x + y

    function.__name__ = name
    return kgen.operator(function)


#: Keywords of C++ and CUDA's words, names and macros of headers, kgen's own: one of a kind of clash each.
PROBLEM = kgen.add.problem(leading=8, dtype="f32")
WORDS = [
    "double", "class", "std", "isnan", "assert", "NULL", "errno", "threadIdx", "float4", "atomicAdd", "half", "clock", "ptx",
    "Vector", "load_vector", "compute", "THREADS", "PACK", "Index", "steps", "emu_entry", "__global__", "x", "min", "EOF",
]  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
def test_kernels_of_any_name_compile(name: str) -> None:
    run = named(name)
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(run(x, x), 2 * x)
    problem = run.problem(M=2, N=3)
    source = kgen.ops.elementwise.Elementwise.default(problem, TARGET).source(problem)
    assert nvrtc(source, TARGET.arch).warnings == ()


def test_kernels_of_many_names_compile() -> None:
    """All of C++'s words, of CUDA's headers' and of the templates' at once, as kernels of one text."""
    words = {*_KEYWORDS, *keyword.kwlist, *dir(builtins), *CUDA.split(), *blocks("common"), *blocks("ptx")}
    source = kgen.ops.elementwise.Elementwise.default(PROBLEM, TARGET).source(PROBLEM)
    names = sorted({kernel_name(word, source.body) for word in words})
    assert len(names) > 300
    kernels = "".join(f'extern "C" __global__ void {name}(const float* a) {{}}\n' for name in names)
    includes = ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h")
    assert nvrtc(replace(source, includes=includes, body=source.body + kernels), TARGET.arch).cubin


@pytest.mark.parametrize(
    "name", ["na\u00efve", "../../X", "a b", "1st", "", "x\ny", "\x1b[31m", "x" * 101, "a.b", "\uff58"]
)
def test_names_that_are_refused(name: str) -> None:
    def function(x: Any) -> Any:
        return x

    def check(match: str, call: Any) -> None:
        with pytest.raises(DefinitionError, match=match) as caught:
            call()
        assert len(str(caught.value)) < 400
        assert str(caught.value).isprintable()

    if name:  # an empty name is none: then it is the function's
        function.__annotations__ = {"x": Tensor[f32, ...], "return": Tensor[f32, ...]}
        check("an operator is named", lambda: Operator(function, name))
    for kind in (
        Tensor[dtype_var(name, f32), ...],
        *([Tensor[f32, kgen.dsl.size.Dim(name)]] if name.isidentifier() else []),
    ):
        function.__annotations__ = {"x": kind, "return": kind}
        check("a dtype variable is named|a dimension is named", lambda: Operator(function))
    if name.isidentifier():
        code = function.__code__
        function.__code__ = code.replace(co_varnames=(name,))
        function.__annotations__ = {name: Tensor[f32, ...], "return": Tensor[f32, ...]}
        check("an operand is named", lambda: Operator(function))


@pytest.mark.parametrize(
    "file", ['a"b.py', "a\nb.py", "a\\nb.py", "a\rb\u2028.py", 'x"\n#error "', "\udcff.py", "\x1b[2J.py"]
)
def test_names_of_files_stay_within_their_directive(file: str) -> None:
    from kgen.codegen.expression import Argument, pointwise_function

    x = Expr("input", (), f32, Shape(), "x")
    node = Expr("add", (x, x), f32, Shape(), None, Location(file, 7))
    text = pointwise_function("f", [Argument(x, "x", f32)], [node], [f32], False)
    lines = [line for line in text.splitlines() if line.startswith("#")]
    assert len(lines) == 1
    assert re.fullmatch(r'#line 7 "[^"\\]*"', lines[0])
    assert len(text.splitlines()) == 5
    text.encode()

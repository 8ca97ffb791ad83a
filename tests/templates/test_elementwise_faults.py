"""What hand-written elementwise kernels get wrong: the tails of activations, of vectors, of alignment and of indices."""

from __future__ import annotations

import math

import pytest
import torch
from cases import TARGET
from launches import dense, launch, problem_of

from kgen.dsl.errors import ConfigError
from kgen.dsl.family import family_of
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Operand, Problem
from kgen.dsl.size import dims
from kgen.dsl.types import DType, bf16, f16, f32, i8
from kgen.numerics.dtypes import round_to
from kgen.numerics.reference import evaluate
from kgen.ops import operator
from kgen.ops.elementwise import Elementwise

M, N = dims("M N")

ACTIVATIONS = ("sigmoid", "tanh", "relu", "elu", "gelu", "gelu_erf", "quick_gelu", "silu", "hardswish", "hardshrink")


def evaluated(name: str, dtype: DType, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernel of an activation gives, and the exact result in f64."""
    graph = operator(name).graph({"x": dtype})
    out = torch.empty_like(x)
    scalars = {s.name: float(s.default or 0) for s in graph.scalars}
    launch(graph, [x, out], Elementwise, scalars=scalars)
    return out, evaluate(graph, {"x": x}, scalars)[0]


@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_tails_of_activations(name: str, dtype: DType) -> None:
    x = torch.cat([torch.linspace(-20, 20, 4001), torch.tensor([0.0, -0.0, 1e4, -1e4, 6e4, -6e4, 6e-8, -6e-8])])
    got, want = evaluated(name, dtype, round_to(x, dtype))
    assert got.isfinite().all()
    # One unit in the last place for 16 bits; in f32 what the argument's rounding makes of the exponential's tail.
    relative = {f16: 2.0**-10, bf16: 2.0**-7, f32: 2e-5}[dtype]
    # Beside one unit of the least subnormal half; a sigmoid below 2^-128 is 0 in f32.
    smallest = {f16: 2.0**-24, bf16: 20 * 2.0**-127, f32: 20 * 2.0**-127}[dtype]
    wrong = (got.double() - want).abs() > relative * want.abs() + smallest
    assert not wrong.any(), (x[wrong][:5], got[wrong][:5], want[wrong][:5])


@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_nan_stays_nan_and_infinity_has_its_limit(name: str, dtype: DType) -> None:
    got, _ = evaluated(name, dtype, round_to(torch.tensor([math.nan, math.inf, 1.0]), dtype))
    limit = 1.0 if name in ("sigmoid", "tanh") else math.inf
    assert got[0].isnan()
    assert got[1] == limit
    assert got[2].isfinite()


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_nan_on_either_side(name: str) -> None:
    graph = operator(name).graph({"a": f32})
    a, b = torch.tensor([math.nan, 1.0, 2.0, math.nan]), torch.tensor([1.0, math.nan, 3.0, math.nan])
    out = torch.empty(4)
    launch(graph, [a, b, out], Elementwise)
    assert out.isnan().tolist() == [True, True, False, True]
    assert out[2] == (3.0 if name == "maximum" else 2.0)


@pytest.mark.parametrize("pack", [1, 2, 4, 8, 16])
def test_tails_of_vectors_are_neither_dropped_nor_overrun(pack: int) -> None:
    graph = operator("add").graph({"a": f16})
    for n in {1, pack - 1, pack, pack + 1, 3 * pack - 1, 128 * pack + 1} - {0}:
        left, right = (torch.arange(n) % 100).half(), torch.ones(n).half()
        storage = torch.full((n + 32,), 7.0, dtype=torch.float16)
        out = storage[16 : 16 + n]
        launch(graph, [left, right, out], Elementwise, {"pack": pack, "items": 1, "threads": 128})
        assert torch.equal(out, left + 1), n
        assert (storage[:16] == 7).all(), n
        assert (storage[16 + n :] == 7).all(), n


@pytest.mark.parametrize("offset", [1, 2, 4, 8])
def test_misaligned_slices(offset: int) -> None:
    graph = operator("add").graph({"a": f16})
    base = torch.arange(256 + 16, dtype=torch.float16)
    a, b, out = base[offset : offset + 256], base[:256], torch.empty(256, dtype=torch.float16)
    problem = problem_of(graph, [a, b, out])
    assert Elementwise.default(problem, TARGET).values["pack"] == offset
    launch(graph, [a, b, out], Elementwise)
    assert torch.equal(out, a + b)
    if offset < 8:
        wider = Elementwise.default(problem, TARGET).replace(pack=8)
        with pytest.raises(ConfigError, match="aligned: a vector's access needs the alignment of its operand"):
            wider.check(problem, TARGET)


def test_rows_of_an_odd_pitch_are_not_read_in_vectors() -> None:
    graph = operator("bias_gelu").graph({"x": f16})
    x, b, out = torch.randn(5, 24).half()[:, :16], torch.randn(16).half(), torch.empty(5, 16).half()
    assert Elementwise.default(problem_of(graph, [x, b, out]), TARGET).values["pack"] == 8
    x = torch.randn(5, 17).half()[:, :16]
    assert Elementwise.default(problem_of(graph, [x, b, out]), TARGET).values["pack"] == 1
    launch(graph, [x, b, out], Elementwise)
    torch.testing.assert_close(out, torch.nn.functional.gelu(x + b, approximate="tanh"), atol=2e-3, rtol=2e-3)


def shifted(x: Tensor[i8, M, N], y: Tensor[i8, M, N]) -> Tensor[i8, M, N]:
    return x + y


def test_rows_further_apart_than_32_bits_count() -> None:
    graph = Operator(shifted).graphs[0]
    # Memory that is never touched costs nothing.
    storage = torch.empty(2**31 + 4096, dtype=torch.int8)
    x = storage.as_strided((2, 64), (2**31 + 1024, 1))
    x[0], x[1] = 3, torch.arange(64, dtype=torch.int8)
    y, out = torch.ones(2, 64, dtype=torch.int8), torch.empty(2, 64, dtype=torch.int8)
    launch(graph, [x, y, out], Elementwise, checks=False)
    assert torch.equal(out, x + 1)


@pytest.mark.parametrize(("elements", "index"), [(2**31 - 16, "unsigned"), (2**35, "unsigned long long")])
def test_indices_are_as_wide_as_the_tensor(elements: int, index: str) -> None:
    graph = operator("add").graph({"a": f16})
    problem = dense(graph, {"...": (elements,)})
    config = Elementwise.default(problem, TARGET)
    text = config.source(problem).text
    assert f"using Index = {index};" in text
    assert "  long long column;\n" in text
    assert "long long n0" in text
    vectors = -(-elements // int(config.values["pack"]))
    assert vectors + config.values["threads"] * config.values["items"] < 2 ** (32 if index == "unsigned" else 64)


def test_strides_are_64_bits_wide() -> None:
    graph = Operator(shifted).graphs[0]
    operands = [Operand(n, i8, (8, 8), (2**40, 2) if n == "x" else (8, 1)) for n in ("x", "y", "out")]
    problem = family_of(graph).normalise(Problem.bind(graph, operands))
    text = Elementwise.default(problem, TARGET).source(problem).text
    assert "long long x_s0" in text
    assert "long long x_s1" in text
    assert "int x_s" not in text


def test_nothing_is_read_of_a_tensor_that_broadcasts_but_its_one_element() -> None:
    graph = operator("mul").graph({"a": f32})
    a, b, out = torch.arange(37.0), torch.tensor([2.0]), torch.empty(37)
    launch(graph, [a, b, out], Elementwise)
    assert torch.equal(out, 2 * a)

"""Patterns: what is found in a graph, and what is not mistaken for it."""

from __future__ import annotations

import bench_operators as ops
import pytest
from bench_operators import K, M, N

from kgen.bench import patterns
from kgen.dsl import functions as F
from kgen.dsl.expr import Expr, Shape
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.types import f16, f32


def leaf(name: str = "x") -> Expr:
    return Expr("input", (), f16, Shape(leading=True), name)


@pytest.mark.parametrize("name", patterns.ACTIVATIONS)
def test_every_activation_is_found_with_its_argument(name: str) -> None:
    x = leaf()
    found = patterns.activation(getattr(F, name)(x))
    assert found is not None
    assert found.name == name
    assert found.argument is x
    assert found.numbers == ()


def test_parameters_of_an_activation_are_found() -> None:
    x = leaf()
    found = patterns.activation(F.elu(x, 0.25))
    assert found is not None
    assert found.name == "elu"
    assert [n.attr for n in found.numbers] == [0.25]
    alpha = Expr("scalar", (), f32, Shape(), "alpha")
    found = patterns.activation(F.elu(x, alpha))
    assert found is not None
    assert found.numbers[0] is alpha


def test_the_order_of_factors_does_not_matter() -> None:
    x = leaf()
    found = patterns.activation(F.sigmoid(x) * x)
    assert found is not None
    assert found.name == "silu"


def test_nearly_an_activation_is_none() -> None:
    x, y = leaf("x"), leaf("y")
    assert patterns.activation(x * F.sigmoid(y)) is None  # a gate, not silu
    assert patterns.activation(x * F.sigmoid(1.7 * x)) is None  # quick_gelu has 1.702
    assert patterns.activation(x + y) is None


def test_products() -> None:
    def of(operator: Operator) -> patterns.Product:
        found = patterns.product(operator.graphs[0])
        assert found is not None
        return found

    plain = of(ops.product)
    assert plain.pure
    assert (plain.a.name, plain.a.transposed, plain.b.name, plain.b.transposed) == ("a", False, "b", False)
    assert plain.accumulate is f32
    assert of(ops.product_f16acc).accumulate is f16
    biased = of(ops.linear)
    assert (biased.c, biased.b.transposed, biased.activation, biased.pure) == ("bias", True, None, False)
    assert of(ops.linear_gelu).activation == "gelu"
    general = of(ops.general)
    assert (general.alpha, general.beta, general.c) == ("alpha", "beta", "c")
    scaled = of(ops.product_fp8)
    assert (scaled.alpha, scaled.c, scaled.beta) == ("scale", None, None)


def test_what_is_no_product() -> None:
    def gated(a: Tensor[f16, M, K], b: Tensor[f16, K, N], g: Tensor[f16, M, N]) -> Tensor[f16, M, N]:
        return (a @ b) * g

    def sum_of_two(a: Tensor[f16, M, K], b: Tensor[f16, K, N], c: Tensor[f16, K, N]) -> Tensor[f16, M, N]:
        return a @ b + a @ c

    for function in (gated, sum_of_two):
        assert patterns.product(Operator(function).graphs[0]) is None
    assert patterns.product(ops.add.graphs[0]) is None

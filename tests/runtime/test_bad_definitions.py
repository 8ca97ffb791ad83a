"""Definitions that are wrong: one clear DefinitionError, at the definition, that names the file and the line."""

import math

import pytest
import torch

import kgen
from kgen import DefinitionError, Tensor, dims, dtype_var, f16, f32, i32
from kgen.dsl.indexing import repeat
from kgen.dsl.size import Dim, ceil_div
from kgen.dsl.types import dtype as dtype_named

M, N, K = dims("M N K")


def define(function):
    return lambda: kgen.operator(function)


def missing_annotation(x) -> Tensor[f32, ...]:
    return x


def foreign_annotation(x: torch.Tensor) -> Tensor[f32, ...]:
    return x


def missing_result(x: Tensor[f32, ...]):
    return x


def no_tensor(alpha: float) -> Tensor[f32, ...]:
    return alpha


def number_first(alpha: float, x: Tensor[f32, ...]) -> Tensor[f32, ...]:
    return alpha * x


def variadic(*x: Tensor[f32, ...]) -> Tensor[f32, ...]:
    return x[0]


def two_results(x: Tensor[f32, ...]) -> Tensor[f32, ...]:
    return x, x


def other_shape(x: Tensor[f32, M, N]) -> Tensor[f32, N, M]:
    return x


def unequal_dims(x: Tensor[f32, M], y: Tensor[f32, N]) -> Tensor[f32, M]:
    return x + y


def contracts_unequal(a: Tensor[f16, M, K], b: Tensor[f16, N, K]) -> Tensor[f16, M, N]:
    return a @ b


def two_dtypes(a: Tensor[f16, M, K], b: Tensor[f32, K, N]) -> Tensor[f32, M, N]:
    return a @ b


def bool_arithmetic(x: Tensor[f32, ...]) -> Tensor[f32, ...]:
    return (x > 0) + (x < 1)


def bool_function(x: Tensor[kgen.bool_, ...]) -> Tensor[f32, ...]:
    return kgen.exp(x)


def float_into_int(x: Tensor[f32, ...]) -> Tensor[i32, ...]:
    return x * 2


def python_if(x: Tensor[f32, ...]) -> Tensor[f32, ...]:
    return x if x > 0 else -x


def python_and(x: Tensor[f32, ...]) -> Tensor[f32, ...]:
    return kgen.where(x > 0 and x < 1, x, 0.0)


def of_math(x: Tensor[f32, ...]) -> Tensor[f32, ...]:
    return math.exp(x)


def indexed(x: Tensor[f32, M, N]) -> Tensor[f32, M]:
    return x[:, 0]


def unpacked(x: Tensor[f32, M]) -> Tensor[f32, M]:
    a, b = x
    return a + b


def text_operand(x: Tensor[f32, ...]) -> Tensor[f32, ...]:
    return x + "1"


def condition_not_bool(x: Tensor[f32, ...]) -> Tensor[f32, ...]:
    return kgen.where(x, x, 0.0)


def cast_to_text(x: Tensor[f32, ...]) -> Tensor[f16, ...]:
    return kgen.cast(x, "f16")


def middle_axis(x: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
    return x - kgen.mean(x, axis=0)


def inside_an_operator(x: Tensor[f32, ...]) -> Tensor[f32, ...]:
    return kgen.gelu(x > 0)


def wrong_numbers_inside(x: Tensor[f32, ...]) -> Tensor[f32, ...]:
    return kgen.elu(x, beta=2.0)


def scaled(x: Tensor[f16, M, M], s: Tensor[f16, M, ceil_div(M, 4)]) -> Tensor[f16, M, M]:
    return x * repeat(s, 4, M)


#: Definitions. The message names the file and the line.
DEFINITIONS = [
    ("no annotation", define(missing_annotation), ["operand x", "nothing", "Tensor[...]"]),
    ("annotation of torch", define(foreign_annotation), ["operand x", "torch.Tensor", "Tensor[...]"]),
    ("no annotation of the result", define(missing_result), ["result", "-> Tensor[...]"]),
    ("no tensor", define(no_tensor), ["at least one"]),
    ("number before a tensor", define(number_first), ["x follows a number", "tensors come first"]),
    ("variadic", define(variadic), ["*x", "name every operand"]),
    ("too many results", define(two_results), ["returns 2", "annotated: 1"]),
    ("another shape", define(other_shape), ["x: f32[M, N]", "out: f32[N, M]"]),
    ("dimensions that do not broadcast", define(unequal_dims), ["x: f32[M]", "y: f32[N]"]),
    ("contraction of unequal dimensions", define(contracts_unequal), ["contracts K", "with N"]),
    ("product of two dtypes", define(two_dtypes), ["a: f16[M, K]", "b: f32[K, N]", "cast"]),
    ("sum of bools", define(bool_arithmetic), ["add of a bool", "where"]),
    ("exp of a bool", define(bool_function), ["exp of a bool", "x: bool"]),
    ("float into int", define(float_into_int), ["mul: f32", "out: i32", "cast(..., i32)"]),
    ("if", define(python_if), ["no truth value", "where"]),
    ("and", define(python_and), ["no truth value", "where"]),
    ("math.exp", define(of_math), ["not a number yet", "functions of kgen"]),
    ("indexing", define(indexed), ["indexing", "not supported"]),
    ("unpacking", define(unpacked), ["cannot be iterated"]),
    ("text", define(text_operand), ["str '1'", "number"]),
    ("where of a float", define(condition_not_bool), ["bool condition", "x: f32"]),
    ("cast to text", define(cast_to_text), ["'f16'", "dtype"]),
    ("reduction over the first axis", define(middle_axis), ["axis 0", "-1"]),
    ("an error inside another operator", define(inside_an_operator), ["in gelu(...)", "bool"]),
    ("numbers another operator lacks", define(wrong_numbers_inside), ["in elu(...)", "beta"]),
]  # fmt: skip


def refused(call, words):
    with pytest.raises(DefinitionError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message
    return message


@pytest.mark.parametrize(("define", "words"), [c[1:] for c in DEFINITIONS], ids=[c[0] for c in DEFINITIONS])
def test_a_definition_is_refused(define, words):
    assert "test_bad_definitions.py:" in refused(define, words)


def test_a_graph_that_no_family_serves_is_refused():
    operator = kgen.operator(scaled)
    x, s = torch.ones(4, 4, dtype=torch.float16), torch.ones(4, 1, dtype=torch.float16)
    refused(lambda: operator(x, s), ["no family serves scaled", "elementwise"])
    refused(lambda: operator.source(M=4), ["no family serves scaled"])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Tensor["f16", 4], ["starts with a dtype", "'f16'"]),
        (lambda: Tensor[f16, "M"], ["dims(...)", "'M'"]),
        (lambda: Tensor[f16, -4], ["positive int", "-4"]),
        (lambda: Tensor[f16, 0], ["positive int", "0"]),
        (lambda: Dim("a b"), ["identifier", "'a b'"]),
        (lambda: dtype_var("T"), ["at least one dtype"]),
        (lambda: dtype_named("float16"), ["'float16'", "f16"]),
        (lambda: kgen.choice(), ["distinct values"]),
        (lambda: kgen.choice(1, 1), ["distinct values"]),
        (lambda: kgen.rule(lambda self, problem, target: True), ["docstring"]),
    ],
)
def test_a_type_is_refused(make, words):
    refused(make, words)

"""The reference against torch and by hand; operands with the exact layout asked for."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from tuner_samples import problem_of

from kgen.dsl import functions as f
from kgen.dsl.errors import ArgumentError
from kgen.dsl.expr import Expr, cast, matmul, where
from kgen.dsl.external import external
from kgen.dsl.indexing import arange, random, repeat, scatter_add, size, take
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Operand, Problem, common_alignment
from kgen.dsl.size import ceil_div, dims
from kgen.dsl.types import DTYPES, DType, bf16, bool_, e4m3, e5m2, f16, f32, f64, i8, i32, i64, tf32
from kgen.numerics.dtypes import from_torch, round_to, torch_dtype
from kgen.numerics.operands import guards_intact, make_operands, poison, same_bits, scalar_values
from kgen.numerics.philox import philox
from kgen.numerics.reference import evaluate, evaluate_exactly, evaluate_ranged, native

M, N, K = dims("M N K")


def graph_of(function: Callable[..., Expr], inputs: list[object], output: object) -> Operator:
    names = ["a", "b", "c"][: len(inputs)]
    function.__annotations__ = {**dict(zip(names, inputs)), "return": output}
    return Operator(function, "meant")


def test_dtypes_go_both_ways() -> None:
    for dtype in DTYPES.values():
        back = from_torch(torch_dtype(dtype))
        assert back is (f32 if dtype is tf32 else dtype)
        assert torch.empty(0, dtype=torch_dtype(dtype)).element_size() == dtype.bytes
    with pytest.raises(ArgumentError, match=r"complex64.*expected one of"):
        from_torch(torch.complex64)


@pytest.mark.parametrize(
    ("dtype", "given", "expected"),
    [
        (e4m3, [1000.0, -1000.0, 17.0, 0.0, math.inf], [448.0, -448.0, 16.0, 0.0, 448.0]),
        (e5m2, [1e6, -1e6, 9.0], [57344.0, -57344.0, 8.0]),
        (i32, [2.9, -2.9, 1e20, math.nan], [2, -2, 2**31 - 1, 0]),
        (i64, [1e30, -1e30], [2**63 - 1024, -(2**63)]),
        (i8, [127.9, -500.0], [127, -128]),
        (bool_, [0.0, 0.5], [False, True]),
        (f16, [70000.0, 1 + 2**-11], [math.inf, 1.0]),
        (bf16, [1 + 2**-8, 1 + 3 * 2**-8], [1.0, 1 + 2**-6]),
    ],
)
def test_rounding(dtype: DType, given: list[float], expected: list[float]) -> None:
    got = round_to(torch.tensor(given, dtype=torch.float64), dtype)
    assert got.dtype is torch_dtype(dtype)
    assert got.to(torch.float64).tolist() == [float(x) for x in expected]


def test_wrapping_of_integers() -> None:
    assert round_to(torch.tensor([2**31, 200]), i32).tolist() == [-(2**31), 200]
    assert round_to(torch.tensor([200]), i8).tolist() == [-56]


POINTWISE: list[tuple[Callable[..., Expr], Callable[[torch.Tensor], torch.Tensor]]] = [
    (lambda a: f.gelu(a), lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    (lambda a: f.gelu_erf(a), torch.nn.functional.gelu),
    (lambda a: f.silu(a), torch.nn.functional.silu),
    (lambda a: f.relu(a), torch.relu),
    (lambda a: f.elu(a), torch.nn.functional.elu),
    (lambda a: f.hardswish(a), torch.nn.functional.hardswish),
    (lambda a: f.hardshrink(a), torch.nn.functional.hardshrink),
    (
        lambda a: where(a > 0, f.log1p(a), f.expm1(a)) - f.pow(abs(a), 0.5),
        lambda x: torch.where(x > 0, x.log1p(), x.expm1()) - x.abs() ** 0.5,
    ),
    (lambda a: f.sin(a) / f.sqrt(abs(a) + 1), lambda x: x.sin() / (x.abs() + 1).sqrt()),
    (lambda a: f.atan2(a, 1 - a), lambda x: torch.atan2(x, 1 - x)),
    (lambda a: f.maximum(a, 0.25) + f.minimum(a, -0.25), lambda x: x.clamp_min(0.25) + x.clamp_max(-0.25)),
]


@pytest.mark.parametrize("number", range(len(POINTWISE)))
def test_pointwise_expressions_are_torchs(number: int) -> None:
    expression, expected = POINTWISE[number]

    def traced(a):
        return expression(a)

    graph = graph_of(traced, [Tensor[f64, M, N]], Tensor[f64, M, N]).graphs[0]
    x = torch.randn(7, 33, dtype=torch.float64) * 3
    (got,) = evaluate(graph, {"a": x}, {})
    torch.testing.assert_close(got, expected(x), rtol=1e-12, atol=1e-12)


def test_reductions_and_broadcasts() -> None:
    def softmax(a):
        e = f.exp(a - f.amax(a))
        return e / f.sum(e)

    def row_means(a):
        return f.mean(a)

    x = torch.randn(5, 9).half()
    (got,) = evaluate(graph_of(softmax, [Tensor[f16, M, N]], Tensor[f16, M, N]).graphs[0], {"a": x}, {})
    torch.testing.assert_close(got, x.double().softmax(-1))
    (got,) = evaluate(graph_of(row_means, [Tensor[f16, M, N]], Tensor[f32, M]).graphs[0], {"a": x}, {})
    torch.testing.assert_close(got, x.double().mean(-1))


@pytest.mark.parametrize("op", ["cumsum", "cumprod", "logcumsumexp"])
def test_scans(op: str) -> None:
    def scanned(a):
        return getattr(f, op)(a)

    x = torch.randn(5, 9).half()
    (graph,) = graph_of(scanned, [Tensor[f16, M, N]], Tensor[f16, M, N]).graphs
    (got,) = evaluate(graph, {"a": x}, {})
    torch.testing.assert_close(got, getattr(torch, op)(x.double(), -1))
    (got,) = native(graph, {"a": x}, {})
    torch.testing.assert_close(got, getattr(torch, op)(x.float(), -1).half())


def test_where_the_order_of_a_product_decides() -> None:
    def scanned(a):
        return f.cumprod(a)

    (graph,) = graph_of(scanned, [Tensor[f32, M, N]], Tensor[f32, M, N]).graphs
    x = torch.ones(5, 4)
    x[0, 1:3] = 1e30
    x[1] = torch.tensor([0.0, 1e30, 1e30, 1.0])  # NaN, where the last two are multiplied first
    x[2] = torch.tensor([1e30, 1e30, 1e-30, 1.0])
    x[3] = torch.tensor([math.inf, 0.0, 2.0, 3.0])
    x[4] = torch.tensor([math.inf, 1e-30, 1e-30, 1.0])
    (ranged,), (doubtful,) = evaluate_ranged(graph, {"a": x}, {})
    assert ranged[0].tolist() == [1.0, float(torch.tensor(1e30)), math.inf, math.inf]
    assert doubtful.int().tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0], [0, 0, 1, 1]]


def test_where_a_product_beyond_float64_meets_an_infinity() -> None:
    def product(a, b):
        return a @ b

    (graph,) = graph_of(product, [Tensor[f64, M, K], Tensor[f64, K, N]], Tensor[f64, M, N]).graphs
    most = torch.finfo(torch.float64).max
    # Infinity beside a product that a fused multiply-add does not round to one; two infinities; a product alone.
    a = torch.tensor([[math.inf, -most, 1.0], [math.inf, -math.inf, 1.0], [1.0, -most, 1.0]], dtype=torch.float64)
    b = torch.tensor([[1.0], [2.0], [1.0]], dtype=torch.float64)
    (ranged,), (doubtful,) = evaluate_ranged(graph, {"a": a, "b": b}, {})
    assert ranged.isnan().int().tolist() == [[1], [1], [0]]
    assert doubtful.int().tolist() == [[1], [0], [0]]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64, tf32, i8, e4m3])
def test_products(dtype: DType, transposed: bool) -> None:
    def product(a, b):
        return a @ (b.T if transposed else b)

    result = i32 if dtype is i8 else f64 if dtype is f64 else f32
    b_type = Tensor[dtype, N, K] if transposed else Tensor[dtype, K, N]
    graph = graph_of(product, [Tensor[dtype, M, K], b_type], Tensor[result, M, N]).graphs[0]
    problem = Problem.dense(graph, {"M": 17, "N": 9, "K": 100})
    tensors = make_operands(problem)
    (got,) = evaluate(graph, tensors, {})
    b = tensors["b"].to(got.dtype)
    expected = tensors["a"].to(got.dtype) @ (b.mT if transposed else b)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)
    (own,) = native(graph, tensors, {})
    assert own.dtype is torch_dtype(result)
    error = (own.to(got.dtype) - got).abs().double().max() / got.abs().double().max()
    bounds = {f16: 1e-6, bf16: 1e-6, f32: 1e-6, f64: 1e-14, tf32: 2e-3, i8: 0.0, e4m3: 2e-3}
    assert error <= bounds[dtype]
    if dtype in (tf32, e4m3):  # rounded operands, and shortened sums: not as exact as f32
        assert error > 1e-5


def test_accumulation_in_half_is_coarser_than_in_single() -> None:
    def coarse(a, b):
        return matmul(a, b, accumulate=f16)

    def fine(a, b):
        return a @ b

    types = [Tensor[f16, M, K], Tensor[f16, K, N]]
    graphs = [graph_of(function, types, Tensor[f16, M, N]).graphs[0] for function in (coarse, fine)]
    tensors = make_operands(Problem.dense(graphs[0], {"M": 16, "N": 16, "K": 2048}))
    errors = [float((native(g, tensors, {})[0].double() - evaluate(g, tensors, {})[0]).abs().max()) for g in graphs]
    assert errors[0] > 3 * errors[1]


def test_integer_products_beyond_float64_are_exact() -> None:
    def product(a, b):
        return a @ b

    graph = graph_of(product, [Tensor[i64, M, K], Tensor[i64, K, N]], Tensor[i64, M, N]).graphs[0]
    a, b = torch.tensor([[2**31 + 1, 3]]), torch.tensor([[2**30 + 1], [1]])
    assert evaluate(graph, {"a": a, "b": b}, {})[0].item() == (2**31 + 1) * (2**30 + 1) + 3


@pytest.mark.parametrize(
    ("name", "sizes", "dtype", "exact"),
    [
        ("hgemm", {"M": 33, "N": 40, "K": 1000}, f16, True),
        ("hgemm", {"M": 33, "N": 40, "K": 1000}, bf16, True),
        ("hgemm_f16acc", {"M": 33, "N": 40, "K": 4096}, f16, True),
        ("sgemm", {"M": 33, "N": 40, "K": 64}, f32, True),
        ("igemm", {"M": 33, "N": 40, "K": 64}, i8, True),
        ("linear", {"M": 33, "N": 40, "K": 64}, f16, True),
        ("linear_gelu", {"M": 33, "N": 40, "K": 64}, f16, False),
        ("add", {"...": (100,)}, f32, True),
        ("gelu", {"...": (100,)}, f16, False),
    ],
)
def test_what_can_be_compared_bit_for_bit(name: str, sizes: dict[str, int], dtype: DType, exact: bool) -> None:
    first = "x" if name in ("linear", "linear_gelu", "gelu") else "a"
    problem = problem_of(name, sizes, **{first: dtype})
    tensors, scalars = make_operands(problem, "integers"), scalar_values(problem.graph, "integers")
    results = evaluate_exactly(problem.graph, tensors, scalars)
    assert (results is not None) == exact
    if results is not None:
        assert results[0].abs().max() > 3  # there is something to compare
        assert torch.equal(results[0], evaluate(problem.graph, tensors, scalars)[0])
    assert evaluate_exactly(problem.graph, make_operands(problem, "normal"), scalars) is None or dtype is i8


STRIDED = [
    Operand("x", f16, (5, 7), (7, 1)),
    Operand("x", f16, (5, 7), (1, 5)),
    Operand("x", f16, (5, 7), (16, 1), 2),
    Operand("x", f32, (5, 7), (8, 1), 4),
    Operand("x", f32, (5, 7), (8, 1), 8),
    Operand("x", i8, (5, 7), (9, 1), 1),
    Operand("x", f16, (5, 7), (0, 1)),
    Operand("x", f16, (5, 7), (1, 0)),
    Operand("x", f16, (3, 5, 7), (100, 2, 12), 2),
    Operand("x", f16, (5, 7), (1, 1)),
    Operand("x", e4m3, (5, 7), (7, 1)),
    Operand("x", bool_, (5, 7), (14, 2), 1),
    Operand("x", f16, (0, 7), (7, 1)),
]


def strided_problem(operand: Operand) -> Problem:
    shape = tuple(dims(" ".join("PQR"[: len(operand.shape)])))

    def same(x):
        return cast(x, operand.dtype)

    same.__annotations__ = {"x": Tensor[(operand.dtype, *shape)], "return": Tensor[(operand.dtype, *shape)]}
    graph = Operator(same).graphs[0]
    dense = Problem.dense(graph, dict(zip("PQR", operand.shape)))
    return Problem.bind(graph, [operand, dense.outputs[0]])


@pytest.mark.parametrize("operand", STRIDED, ids=str)
@pytest.mark.parametrize("kind", ["normal", "integers"])
def test_operands_are_exactly_as_described(operand: Operand, kind: str) -> None:
    made = make_operands(strided_problem(operand), kind)
    x = made["x"]
    assert tuple(x.shape) == operand.shape
    assert x.dtype is torch_dtype(operand.dtype)
    assert x.stride() == operand.strides or not x.numel()
    if x.numel():
        assert common_alignment(x.data_ptr()) == operand.align
        assert x.data_ptr() % (2 * operand.align) == operand.align  # and of nothing more
        values = x.to(torch.float64)
        assert values.isfinite().all()
        assert values.unique().numel() > 1
        if kind == "integers":
            assert torch.equal(values, values.round())
    again = make_operands(strided_problem(operand), kind)["x"]
    assert same_bits(x, again)
    assert not x.numel() or not same_bits(x, make_operands(strided_problem(operand), kind, seed=1)["x"])


@pytest.mark.parametrize("operand", [o for o in STRIDED if all(o.shape)], ids=str)
def test_guards_notice_every_stray_byte(operand: Operand) -> None:
    x = make_operands(strided_problem(operand))["x"]
    assert guards_intact(x)
    storage = torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage())
    size, start = x.element_size(), x.storage_offset() * x.element_size()
    own = set()
    for index in torch.cartesian_prod(*(torch.arange(n) for n in x.shape)).tolist():
        place = start + sum(i * s for i, s in zip(index, x.stride())) * size
        own |= set(range(place, place + size))
    for byte in [0, start - 1, *range(start, max(own) + 3), storage.numel() - 1]:
        before = int(storage[byte])
        storage[byte] = before ^ 1
        assert guards_intact(x) == (byte in own), byte
        storage[byte] = before


@pytest.mark.parametrize("dtype", [f16, f32, e5m2, i8, i32, bool_])
def test_poisoned_outputs_show(dtype: DType) -> None:
    out = make_operands(strided_problem(Operand("x", dtype, (4, 6), (6, 1))))["out"]
    if dtype.is_float:
        assert out.float().isnan().all()
    out.zero_()
    poison(out)
    if dtype.is_float:
        assert out.float().isnan().all()
    else:
        assert (out.view(torch.uint8) == 0xA5).all()
    assert guards_intact(out)


# Positions and indices.

V = dims("V")[0]
IDS = torch.tensor([2, 0, -1, 2, 7])


def run(function: Callable[..., Expr], inputs: list[object], output: object, *tensors: torch.Tensor) -> torch.Tensor:
    graph = graph_of(function, inputs, output).graphs[0]
    return evaluate(graph, dict(zip("abc", tensors)), {})[0]


def test_positions_and_sizes() -> None:
    x = torch.zeros(3, 4, dtype=torch.float32)
    got = run(lambda a: a + arange(M, 1) * size(N) + arange(N), [Tensor[f32, M, N]], Tensor[f32, M, N], x)
    assert got.tolist() == torch.arange(12.0).reshape(3, 4).tolist()
    swapped = run(lambda a: f.swap_pairs(f.swap_halves(a)), [Tensor[f32, M, N]], Tensor[f32, M, N], got.float())
    assert swapped[0].tolist() == [3.0, 2.0, 1.0, 0.0]
    digits = run(
        lambda a: a // 10 + a % 10, [Tensor[i32, N]], Tensor[i32, N], torch.tensor([7, 42, 130], dtype=torch.int32)
    )
    assert digits.tolist() == [7, 6, 13]


def test_repeat_is_repeat_interleave_cut_to_a_size() -> None:
    x = torch.randn(2, 3)
    got = run(lambda a, b: repeat(a, 4, K) + b, [Tensor[f32, M, ceil_div(K, 4)], Tensor[f32, K]], Tensor[f32, M, K],
              x, torch.zeros(9))  # fmt: skip
    assert torch.equal(got, x.double().repeat_interleave(4, 1)[:, :9])


SCALED = {"M": 33, "N": 140, "K": 400}


def test_scales_are_positive_and_powers_of_two_where_sums_are_exact() -> None:
    problem = problem_of("fp8gemm_blockwise", SCALED)
    given = make_operands(problem)
    assert 0.5 <= float(given["scale_b"].min()) < float(given["scale_b"].max()) <= 1.5
    whole = make_operands(problem, "integers")
    assert set(whole["scale_a"].unique().tolist()) == {1.0, 2.0, 4.0}
    assert evaluate_exactly(problem.graph, whole, {}) is not None


def test_sums_of_blocks_are_exact_only_within_the_digits_of_the_tensor_cores() -> None:
    problem = problem_of("fp8gemm_blockwise", SCALED)
    given = make_operands(problem, "integers")
    given["a"][:], given["b"][:] = torch.tensor(8.0).to(torch.float8_e4m3fn), torch.tensor(8.0).to(torch.float8_e4m3fn)
    given["scale_a"][:], given["scale_b"][:] = 1, 1
    assert evaluate_exactly(problem.graph, given, {}) is not None  # 128 * 8 * 8 = 2^13
    given["a"][3, 200] = 9
    assert evaluate_exactly(problem.graph, given, {}) is None


def test_blocks_are_summed_shortened_and_added_up_in_single() -> None:
    """Of two blocks of 2^k, one beside which the tensor cores lose the products of the other's size."""
    problem = problem_of("fp8gemm_blockwise", {"M": 1, "N": 1, "K": 256})
    given = make_operands(problem, "integers")
    given["a"].fill_(1)
    given["b"].fill_(1)
    given["scale_a"][:], given["scale_b"][:] = torch.tensor([[2.0**14, 1.0]]), 1
    assert native(problem.graph, given, {})[0].item() == 128 * 2**14  # in bf16
    single = problem_of("fp8gemm_blockwise", {"M": 1, "N": 1, "K": 256}, out=f32)
    given["out"] = torch.empty(1, 1)
    assert native(single.graph, given, {})[0].item() == 128 * 2**14 + 128


def test_take_gives_zero_outside_and_keeps_the_axes_of_the_ids() -> None:
    x = torch.randn(3, 4)
    got = run(lambda a, b: take(a, b), [Tensor[f32, M, N], Tensor[i64, K]], Tensor[f32, K, N], x, IDS)
    zero = torch.zeros(4)
    assert torch.equal(got.float(), torch.stack([x[2], x[0], zero, x[2], zero]))
    grid = torch.tensor([[0, 3], [1, 1]])
    last = run(lambda a, b: take(a, b, axis=-1), [Tensor[f32, M, N], Tensor[i64, K, V]], Tensor[f32, M, K, V], x, grid)
    assert torch.equal(last.float(), x[:, grid])


def test_scatter_add_is_index_add_without_what_lies_outside() -> None:
    x = torch.randn(5, 3)
    graph = graph_of(lambda a, b: scatter_add(V, b, a), [Tensor[f32, M, N], Tensor[i64, M]], Tensor[f32, V, N]).graphs[
        0
    ]
    out = torch.empty(3, 3)
    got = evaluate(graph, {"a": x, "b": IDS, "out": out}, {})[0]
    inside = torch.tensor([0, 1, 3])
    assert torch.equal(got, torch.zeros(3, 3, dtype=torch.float64).index_add_(0, IDS[inside], x[inside].double()))
    counts = graph_of(lambda a: scatter_add(V, a, 1), [Tensor[i64, M, N]], Tensor[i32, V]).graphs[0]
    many = torch.randint(0, 8, (20, 3))
    assert torch.equal(
        evaluate(counts, {"a": many, "out": torch.empty(8)}, {})[0], many.reshape(-1).bincount(minlength=8)
    )


def test_reductions_over_several_axes_and_argmax() -> None:
    x = torch.randn(2, 3, 5)
    got = run(lambda a: f.mean(a, axis=(-3, -1)), [Tensor[f32, K, M, N]], Tensor[f32, M], x)
    assert torch.allclose(got, x.double().mean((0, 2)))
    x = torch.tensor([[1.0, 5.0, 5.0], [2.0, math.nan, math.nan], [-math.inf] * 3])
    assert run(lambda a: f.argmax(a), [Tensor[f32, M, N]], Tensor[i64, M], x).tolist() == [1, 1, 0]
    assert run(lambda a: f.argmax(a, axis=None), [Tensor[f32, M, N]], Tensor[i64], x).tolist() == 4


def test_philox_is_the_published_generator() -> None:
    # The known answer for a counter and a key of zeros, from the authors' test vectors.
    words = philox(torch.zeros(1, dtype=torch.int64), 0)
    assert [int(w) for w in words] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_random_numbers_depend_on_seed_offset_and_place_alone() -> None:
    def noise(a: Expr) -> Expr:
        return a * 0 + random(a, 5, 3)

    flat = run(noise, [Tensor[f32, N]], Tensor[f32, N], torch.zeros(4000))
    grid = run(noise, [Tensor[f32, M, N]], Tensor[f32, M, N], torch.zeros(40, 100))
    assert torch.equal(flat, grid.reshape(-1))
    assert 0 <= float(flat.min()) < 0.01
    assert 0.99 < float(flat.max()) < 1
    assert abs(float(flat.mean()) - 0.5) < 0.02
    later = run(lambda a: a * 0 + random(a, 5, 4), [Tensor[f32, N]], Tensor[f32, N], torch.zeros(3996))
    assert torch.equal(flat[4:], later)
    kept = run(lambda a: f.dropout(a, 0.25, 1, 0), [Tensor[f32, N]], Tensor[f32, N], torch.ones(4000))
    assert kept.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert 0.22 < float((kept == 0).double().mean()) < 0.28


def twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (2 * x,)


def test_what_no_graph_expresses_is_its_reference() -> None:
    x = torch.randn(6)
    got = run(lambda a: external("twice", [(f32, (N,))], a, reference=twice)[0], [Tensor[f32, N]], Tensor[f32, N], x)
    assert torch.equal(got, 2 * x.double())


def test_operands_that_are_ids_lie_within_their_axis() -> None:
    lookup = graph_of(lambda a, b: take(a, b + 1), [Tensor[f32, V, N], Tensor[i64, M]], Tensor[f32, M, N])
    problem = Problem.dense(lookup.graphs[0], {"V": 7, "N": 3, "M": 500})
    ids = make_operands(problem)["b"]
    assert (int(ids.min()), int(ids.max())) == (0, 6)

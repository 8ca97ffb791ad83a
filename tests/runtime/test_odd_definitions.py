"""Definitions in which an input has several roles, or an axis a size of its own: as torch computes them. On the emulator."""

import pytest
import torch

import kgen
from kgen import Tensor, cumsum, dims, dtype_var, f16, f32, i8, i32, i64
from kgen.dsl.family import family_of, suites_of

B, M, N, K = dims("B M N K")
T, Ints = dtype_var("T", f16, f32), dtype_var("Ints", i8, i32, i64)


@kgen.operator
def square(x: Tensor[f32, B, M, M]) -> Tensor[f32, B, M, M]:
    return x @ x


@kgen.operator
def residual(x: Tensor[f32, B, M, K], w: Tensor[f32, K, K]) -> Tensor[f32, B, M, K]:
    return x @ w + x


@kgen.operator
def gated(x: Tensor[f32, B, M, M], w: Tensor[f32, M, N]) -> Tensor[f32, B, M, N]:
    return (x @ w) * w


def views(x):
    """As it lies, expanded along the batch, transposed."""
    return x, x[:1].expand(x.shape), x.mT.contiguous().mT


def test_a_factor_may_have_another_role():
    """Rows of a batch are folded into M where b alone has none, but not where b is a, or read by the epilogue, as well."""
    x, w = torch.randn(3, 8, 8), torch.randn(8, 8)
    for v in views(x):
        torch.testing.assert_close(square(v), v @ v)
        torch.testing.assert_close(residual(v, w), v @ w + v)
        torch.testing.assert_close(gated(v, w), (v @ w) * w)


def test_the_mean_of_a_vector():
    @kgen.operator
    def mean(x: Tensor[f32, N]) -> Tensor[f32, 1]:
        return kgen.mean(x)

    x = torch.randn(37)
    torch.testing.assert_close(mean(x), x.mean()[None])


def scaled(x: Tensor[f32, 1, M, N], y: Tensor[f32, M, 1]) -> Tensor[f32, M, N]:
    return x * y


def numbered(x: Tensor[f32, M, 1, N], y: Tensor[f32, 1, N]) -> Tensor[f32, M, N]:
    return x * y + kgen.cast(kgen.arange(M, 1, 1), f32)


def test_results_declared_without_their_axes_of_one_element():
    x, y, z = torch.randn(5, 7), torch.randn(5, 1), torch.randn(1, 7)
    for width in (7, 1):
        v, w = x[:, :width], z[:, :width]
        assert torch.equal(kgen.operator(scaled)(v[None], y), v * y)
        torch.testing.assert_close(kgen.operator(numbered)(v[:, None], w), v * w + torch.arange(5)[:, None])


def test_suites_of_products_of_batches():
    for op in (residual, square, gated):
        (sizes,) = suites_of(op.definition)["default"]
        assert min(sizes.values()) > 1


def test_rows_of_what_is_moved():
    """By two launches: a transposed matrix; then, or of it, a cumulative sum or rows."""

    @kgen.operator
    def down(x: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
        return cumsum(x.T).T

    @kgen.operator
    def chosen(x: Tensor[f32, M, N], ids: Tensor[i64, K]) -> tuple[Tensor[f32, K, N], Tensor[f32, N]]:
        rows = kgen.take(kgen.sin(x), ids)
        return cumsum(rows), kgen.amax(rows, -2)

    x, ids = torch.randn(5, 9), torch.tensor([4, 0, 4])
    torch.testing.assert_close(down(x), x.cumsum(0))
    torch.testing.assert_close(chosen(x, ids), (x.sin()[ids].cumsum(-1), x.sin()[ids].amax(0)))


def test_scans_of_other_rows_than_the_whole():
    @kgen.operator
    def of_factors(x: Tensor[f32, M, K], y: Tensor[f32, K, N]) -> Tensor[f32, M, N]:
        return cumsum(x) @ y

    x, y = torch.randn(5, 8), torch.randn(8, 9)
    torch.testing.assert_close(of_factors(x, y), x.cumsum(-1) @ y)

    def of_one_column(x: Tensor[f32, M, N], y: Tensor[f32, M, 1]) -> Tensor[f32, M, N]:
        return x + cumsum(y)

    with pytest.raises(kgen.DefinitionError, match="no family serves"):  # it was scanned along N
        family_of(kgen.operator(of_one_column).definition.graphs[0])


@kgen.operator
def masked(
    x: Tensor[T, M, K], w: Tensor[T, K, N], row: Tensor[Ints, M, 1], column: Tensor[Ints, 1, N], one: Tensor[Ints, 1, 1]
) -> Tensor[T, M, N]:
    return kgen.where(row + one >= column, x @ w, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("ints", [torch.int64, torch.int32, torch.int8])
def test_an_epilogue_may_read_integers_of_rows_of_columns_and_alone(dtype, ints):
    x, w = torch.randn(9, 16).to(dtype), torch.randn(16, 17).to(dtype)
    row, column, one = torch.arange(9)[:, None].to(ints), torch.arange(17)[None].to(ints), torch.ones(1, 1, dtype=ints)
    expected = (x.float() @ w.float()).tril(1)
    torch.testing.assert_close(masked(x, w, row, column, one).float(), expected, rtol=2**-10, atol=2**-10)
    vector = masked(x[4:5], w, row[4:5], column, one)
    torch.testing.assert_close(vector.float(), expected[4:5], rtol=2**-10, atol=2**-10)

"""The shipped reductions over leading axes: column sums, statistics of batch normalisation, gradients of weights and biases.

Each is its mathematics alone; sums are made and returned in f32. The column_stats family serves them. Strides are free: a
tensor that is stored channels last is passed as a view with its channels in the named place.
"""

from __future__ import annotations

from functools import partial

from kgen.dsl import functions as F
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.size import dims
from kgen.dsl.types import bf16, dtype_var, f16, f32, f64

M, N = dims("M N")
#: The batch, its channels, and the positions of a channel (height times width).
B, C, S = dims("B C S")
T = dtype_var("T", f16, bf16, f32, f64)
#: What mixed-precision layers hold their activations in.
H = dtype_var("H", f16, bf16, f32)
#: What a result is rounded to.
R = dtype_var("R", f32, f16, bf16, f64)

#: What the last, the third and the first stage of ResNet-50 make of 64 images.
STAGES = ({"B": 64, "C": 2048, "S": 49}, {"B": 64, "C": 1024, "S": 196}, {"B": 64, "C": 256, "S": 3136})


@Operator
def column_sum(x: Tensor[T, ..., M, N]) -> Tensor[R, ..., N]:
    """The sum of every column: over the rows M."""
    return F.sum(x, -2)


@Operator
def column_mean(x: Tensor[T, ..., M, N]) -> Tensor[R, ..., N]:
    """The mean of every column: over the rows M."""
    return F.mean(x, -2)


@Operator
def column_max(x: Tensor[T, ..., M, N]) -> Tensor[T, ..., N]:
    """The largest element of every column; NaN where there is one."""
    return F.amax(x, -2)


@Operator
def layer_norm_backward_weight(
    dy: Tensor[H, M, N], x: Tensor[H, M, N], mean: Tensor[f32, M, 1], rstd: Tensor[f32, M, 1]
) -> tuple[Tensor[f32, N], Tensor[f32, N]]:
    """The gradients of layer_norm's weight and bias, given the rows' means and reciprocal standard deviations."""
    return F.sum(dy * ((x - mean) * rstd), -2), F.sum(dy, -2)


@Operator
def rms_norm_backward_weight(dy: Tensor[H, M, N], x: Tensor[H, M, N], rstd: Tensor[f32, M, 1]) -> Tensor[f32, N]:
    """The gradient of rms_norm's weight, given the reciprocal roots of the rows' mean squares."""
    return F.sum(dy * (x * rstd), -2)


@partial(Operator, suites={"default": STAGES})
def batch_norm_stats(x: Tensor[H, B, C, S]) -> tuple[Tensor[f32, C], Tensor[f32, C]]:
    """Mean and biased variance of every channel, over the batch and the positions."""
    mean = F.mean(x, (-3, -1))
    difference = x - mean
    return mean, F.mean(difference * difference, (-3, -1))


@partial(Operator, suites={"default": STAGES})
def batch_norm_backward_sums(
    dy: Tensor[H, B, C, S], x: Tensor[H, B, C, S], mean: Tensor[f32, C, 1], rstd: Tensor[f32, C, 1]
) -> tuple[Tensor[f32, C], Tensor[f32, C]]:
    """The gradients of batch_norm's weight and bias, given the channels' means and reciprocal standard deviations."""
    return F.sum(dy * ((x - mean) * rstd), (-3, -1)), F.sum(dy, (-3, -1))


OPERATORS = (
    column_sum, column_mean, column_max, layer_norm_backward_weight, rms_norm_backward_weight, batch_norm_stats,
    batch_norm_backward_sums,
)  # fmt: skip

"""The shipped operators over rows: softmax, normalisations and their gradients, losses, sums. The rowwise family serves them.

Each is its mathematics alone, over the last axis. Arithmetic is done in f32 (f64 for f64) and rounded once, at the end.
Weights and biases have the dtype of what they are applied to; statistics that training keeps are f32. Names are those of
torch where it has one.
"""

from __future__ import annotations

import math
from functools import partial

from kgen.dsl import functions as F
from kgen.dsl.expr import Expr, where
from kgen.dsl.indexing import arange
from kgen.dsl.operator import Number, Operator, Tensor
from kgen.dsl.size import dims
from kgen.dsl.types import bf16, bool_, dtype_var, f16, f32, f64, i32, i64

M, N = dims("M N")
T = dtype_var("T", f16, bf16, f32, f64)
#: What mixed-precision layers hold their activations in.
H = dtype_var("H", f16, bf16, f32)
#: What class indices come in.
Ids = dtype_var("Ids", i64, i32)

# Softmax.


def _softmax(x: Expr) -> Expr:
    e = F.exp(x - F.amax(x))
    return e / F.sum(e)


def _logsumexp(x: Expr) -> Expr:
    top = F.amax(x)
    return top + F.log(F.sum(F.exp(x - top)))


@Operator
def softmax(x: Tensor[T, ..., N]) -> Tensor[T, ..., N]:
    """exp(x) over its sum along the last axis."""
    return _softmax(x)


@Operator
def log_softmax(x: Tensor[T, ..., N]) -> Tensor[T, ..., N]:
    """The logarithm of softmax."""
    top = F.amax(x)
    return x - top - F.log(F.sum(F.exp(x - top)))


@Operator
def softmax_backward(dy: Tensor[T, ..., N], y: Tensor[T, ..., N]) -> Tensor[T, ..., N]:
    """The gradient of softmax, given its result y."""
    return y * (dy - F.sum(dy * y))


@Operator
def log_softmax_backward(dy: Tensor[T, ..., N], y: Tensor[T, ..., N]) -> Tensor[T, ..., N]:
    """The gradient of log_softmax, given its result y."""
    return dy - F.exp(y) * F.sum(dy)


@Operator
def scale_mask_softmax(x: Tensor[T, ..., N], mask: Tensor[bool_, ..., N], scale: float = 1.0) -> Tensor[T, ..., N]:
    """softmax(x * scale) over the elements where the mask holds; the others are 0."""
    return _softmax(where(mask, x * scale, -math.inf))


@Operator
def scale_mask_softmax_dropout(
    x: Tensor[T, ..., N],
    mask: Tensor[bool_, ..., N],
    scale: float = 1.0,
    p: Number[float, 0, 1] = 0.1,
    seed: i64 = 0,
    offset: i64 = 0,
) -> Tensor[T, ..., N]:
    """dropout(softmax(x * scale)) over the elements where the mask holds."""
    return F.dropout(_softmax(where(mask, x * scale, -math.inf)), p, seed, offset)


@Operator
def logsumexp(x: Tensor[T, ..., N]) -> Tensor[T, ...]:
    """log(sum(exp(x))), of any range; where the largest is infinite, that is the result."""
    return where(abs(F.amax(x)) == math.inf, F.amax(x), _logsumexp(x))


#: The classes of images, and vocabularies of language models.
_CLASSES = ({"M": 65536, "N": 1000}, {"M": 4096, "N": 50257}, {"M": 8192, "N": 32000})


@partial(Operator, suites={"default": _CLASSES})
def cross_entropy(x: Tensor[T, M, N], target: Tensor[Ids, M, 1], ignore_index: int = -100) -> Tensor[T, M]:
    """The loss of each row of logits x for the class `target`: logsumexp(x) - x[target]; 0 where that is `ignore_index`."""
    chosen = F.sum(where(arange(N) == target, x, 0.0))
    return where(target == ignore_index, 0.0, _logsumexp(x) - chosen)


# Normalisations.


def _centred(x: Expr, eps: float) -> tuple[Expr, Expr, Expr]:
    """x less its mean, the mean, and the reciprocal of the standard deviation."""
    mean = F.mean(x)
    centred = x - mean
    return centred, mean, F.rsqrt(F.mean(centred * centred) + eps)


@Operator
def layer_norm(x: Tensor[T, ..., N], weight: Tensor[T, N], bias: Tensor[T, N], eps: float = 1e-5) -> Tensor[T, ..., N]:
    """(x - mean) / sqrt(var + eps) * weight + bias, over the last axis."""
    centred, _, rstd = _centred(x, eps)
    return centred * rstd * weight + bias


@Operator
def layer_norm_forward(
    x: Tensor[H, ..., N], weight: Tensor[H, N], bias: Tensor[H, N], eps: float = 1e-5
) -> tuple[Tensor[H, ..., N], Tensor[f32, ..., 1], Tensor[f32, ..., 1]]:
    """layer_norm with what its gradient needs: the mean, and 1 / sqrt(var + eps)."""
    centred, mean, rstd = _centred(x, eps)
    return centred * rstd * weight + bias, mean, rstd


@Operator
def layer_norm_backward(
    dy: Tensor[H, ..., N],
    x: Tensor[H, ..., N],
    weight: Tensor[H, N],
    mean: Tensor[f32, ..., 1],
    rstd: Tensor[f32, ..., 1],
) -> Tensor[H, ..., N]:
    """The gradient of layer_norm by x, given what layer_norm_forward kept."""
    normed, d = (x - mean) * rstd, dy * weight
    return (d - F.mean(d) - normed * F.mean(d * normed)) * rstd


@Operator
def rms_norm(x: Tensor[T, ..., N], weight: Tensor[T, N], eps: float = 1e-6) -> Tensor[T, ..., N]:
    """x / sqrt(mean(x * x) + eps) * weight, over the last axis."""
    return x * F.rsqrt(F.mean(x * x) + eps) * weight


@Operator
def rms_norm_forward(
    x: Tensor[H, ..., N], weight: Tensor[H, N], eps: float = 1e-6
) -> tuple[Tensor[H, ..., N], Tensor[f32, ..., 1]]:
    """rms_norm with what its gradient needs: 1 / sqrt(mean(x * x) + eps)."""
    rstd = F.rsqrt(F.mean(x * x) + eps)
    return x * rstd * weight, rstd


@Operator
def rms_norm_backward(
    dy: Tensor[H, ..., N], x: Tensor[H, ..., N], weight: Tensor[H, N], rstd: Tensor[f32, ..., 1]
) -> Tensor[H, ..., N]:
    """The gradient of rms_norm by x, given what rms_norm_forward kept."""
    normed, d = x * rstd, dy * weight
    return (d - normed * F.mean(d * normed)) * rstd


@Operator
def add_rms_norm(
    x: Tensor[T, ..., N], residual: Tensor[T, ..., N], weight: Tensor[T, N], eps: float = 1e-6
) -> tuple[Tensor[T, ..., N], Tensor[T, ..., N]]:
    """rms_norm(x + residual), and x + residual."""
    total = x + residual
    return total * F.rsqrt(F.mean(total * total) + eps) * weight, total


@Operator
def bias_residual_layer_norm(
    x: Tensor[T, ..., N],
    b: Tensor[T, N],
    residual: Tensor[T, ..., N],
    weight: Tensor[T, N],
    bias: Tensor[T, N],
    eps: float = 1e-5,
) -> Tensor[T, ..., N]:
    """layer_norm(x + b + residual), with b of a linear layer before it."""
    centred, _, rstd = _centred(x + b + residual, eps)
    return centred * rstd * weight + bias


@Operator
def layer_norm_residual_gelu(
    x: Tensor[T, ..., N], residual: Tensor[T, ..., N], weight: Tensor[T, N], bias: Tensor[T, N], eps: float = 1e-5
) -> Tensor[T, ..., N]:
    """gelu(layer_norm(x) + residual)."""
    centred, _, rstd = _centred(x, eps)
    return F.gelu(centred * rstd * weight + bias + residual)


@Operator
def layer_norm_residual_dropout_gelu(
    x: Tensor[T, ..., N],
    residual: Tensor[T, ..., N],
    weight: Tensor[T, N],
    bias: Tensor[T, N],
    eps: float = 1e-5,
    p: Number[float, 0, 1] = 0.1,
    seed: i64 = 0,
    offset: i64 = 0,
) -> Tensor[T, ..., N]:
    """dropout(gelu(layer_norm(x) + residual))."""
    centred, _, rstd = _centred(x, eps)
    return F.dropout(F.gelu(centred * rstd * weight + bias + residual), p, seed, offset)


# Sums.


@Operator
def row_sum(x: Tensor[T, ..., N]) -> Tensor[T, ...]:
    """The sum over the last axis."""
    return F.sum(x)


@Operator
def row_mean(x: Tensor[T, ..., N]) -> Tensor[T, ...]:
    """The mean over the last axis."""
    return F.mean(x)


@Operator
def row_max(x: Tensor[T, ..., N]) -> Tensor[T, ...]:
    """The maximum over the last axis; NaN where the row has one."""
    return F.amax(x)


@Operator
def row_argmax(x: Tensor[T, ..., N]) -> Tensor[i64, ...]:
    """The index of the first of the largest along the last axis; NaN counts as the largest."""
    return F.argmax(x)


def _all(members: dict[str, object]) -> tuple[Operator, ...]:
    return tuple(member for member in members.values() if isinstance(member, Operator))


OPERATORS: tuple[Operator, ...] = _all(dict(globals()))

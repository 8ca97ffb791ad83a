"""The shipped pointwise operators: arithmetic, activations and what models fuse with them. The elementwise family serves them.

Each is its mathematics alone. Operands of `[...]` broadcast to each other as in torch; arithmetic is done in f32 (f64 for
f64) and rounded once, at the end. Names are those of torch where it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kgen.dsl import functions as F
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Sizes
from kgen.dsl.size import dims
from kgen.dsl.types import bf16, dtype_var, e4m3, e5m2, f16, f32, f64

N, C = dims("N C")
T = dtype_var("T", f16, bf16, f32, f64)
#: What mixed-precision layers hold their activations in.
H = dtype_var("H", f16, bf16, f32)
#: What a quantised tensor is stored in.
Q = dtype_var("Q", e4m3, e5m2)

# Arithmetic of two tensors.


@Operator
def add(a: Tensor[T, ...], b: Tensor[T, ...]) -> Tensor[T, ...]:
    """a + b."""
    return a + b


@Operator
def sub(a: Tensor[T, ...], b: Tensor[T, ...]) -> Tensor[T, ...]:
    """a - b."""
    return a - b


@Operator
def mul(a: Tensor[T, ...], b: Tensor[T, ...]) -> Tensor[T, ...]:
    """a * b."""
    return a * b


@Operator
def div(a: Tensor[T, ...], b: Tensor[T, ...]) -> Tensor[T, ...]:
    """a / b."""
    return a / b


@Operator
def maximum(a: Tensor[T, ...], b: Tensor[T, ...]) -> Tensor[T, ...]:
    """The larger of two, element by element; NaN where either is NaN."""
    return F.maximum(a, b)


@Operator
def minimum(a: Tensor[T, ...], b: Tensor[T, ...]) -> Tensor[T, ...]:
    """The smaller of two, element by element; NaN where either is NaN."""
    return F.minimum(a, b)


@Operator
def weighted_sum(a: Tensor[T, ...], b: Tensor[T, ...], alpha: float = 1.0, beta: float = 1.0) -> Tensor[T, ...]:
    """alpha * a + beta * b."""
    return alpha * a + beta * b


# Activations.


@Operator
def sigmoid(x: Tensor[T, ...]) -> Tensor[T, ...]:
    """1 / (1 + exp(-x))."""
    return F.sigmoid(x)


@Operator
def tanh(x: Tensor[T, ...]) -> Tensor[T, ...]:
    """Hyperbolic tangent."""
    return F.tanh(x)


@Operator
def relu(x: Tensor[T, ...]) -> Tensor[T, ...]:
    """max(x, 0); NaN stays NaN."""
    return F.relu(x)


@Operator
def elu(x: Tensor[T, ...], alpha: float = 1.0) -> Tensor[T, ...]:
    """x where it is positive, else alpha * (exp(x) - 1)."""
    return F.elu(x, alpha)


@Operator
def gelu(x: Tensor[T, ...]) -> Tensor[T, ...]:
    """GELU by its tanh form, as torch's gelu(approximate="tanh"); exact in both tails."""
    return F.gelu(x)


@Operator
def gelu_erf(x: Tensor[T, ...]) -> Tensor[T, ...]:
    """GELU by the error function, as torch's gelu."""
    return F.gelu_erf(x)


@Operator
def quick_gelu(x: Tensor[T, ...]) -> Tensor[T, ...]:
    """x * sigmoid(1.702 x)."""
    return F.quick_gelu(x)


@Operator
def silu(x: Tensor[T, ...]) -> Tensor[T, ...]:
    """x * sigmoid(x), also called swish."""
    return F.silu(x)


@Operator
def hardswish(x: Tensor[T, ...]) -> Tensor[T, ...]:
    """x * clamp(x + 3, 0, 6) / 6."""
    return F.hardswish(x)


@Operator
def hardshrink(x: Tensor[T, ...], threshold: float = 0.5) -> Tensor[T, ...]:
    """0 where |x| <= threshold, else x; NaN stays NaN."""
    return F.hardshrink(x, threshold)


# Fused chains.


@Operator
def bias_gelu(x: Tensor[T, ..., N], b: Tensor[T, N]) -> Tensor[T, ..., N]:
    """gelu(x + b), with one bias for each column."""
    return F.gelu(x + b)


@Operator
def gelu_mul(x: Tensor[T, ...], gate: Tensor[T, ...]) -> Tensor[T, ...]:
    """gelu(x) * gate: the pointwise part of GEGLU."""
    return F.gelu(x) * gate


@Operator
def silu_mul(x: Tensor[T, ...], gate: Tensor[T, ...]) -> Tensor[T, ...]:
    """silu(x) * gate: the pointwise part of SwiGLU."""
    return F.silu(x) * gate


@Operator
def bias_residual(x: Tensor[T, ..., N], b: Tensor[T, N], residual: Tensor[T, ..., N]) -> Tensor[T, ..., N]:
    """x + b + residual, with one bias for each column."""
    return x + b + residual


@Operator
def add_relu(a: Tensor[T, ...], b: Tensor[T, ...]) -> Tensor[T, ...]:
    """relu(a + b)."""
    return F.relu(a + b)


#: Channels last, as the last, the third and the first stage of ResNet-50 make them of 64 images.
_STAGES: Sequence[Sizes] = ({"...": (64, 49), "C": 2048}, {"...": (64, 196), "C": 1024}, {"...": (64, 3136), "C": 256})


@partial(Operator, suites={"default": _STAGES})
def batch_norm(
    x: Tensor[H, ..., C],
    mean: Tensor[f32, C],
    var: Tensor[f32, C],
    weight: Tensor[f32, C],
    bias: Tensor[f32, C],
    eps: float = 1e-5,
) -> Tensor[H, ..., C]:
    """Batch normalisation at inference: (x - mean) / sqrt(var + eps) * weight + bias, channels last.

    A channels-first tensor is passed as a view, such as `x.movedim(1, -1)`: strides are free.
    """
    return (x - mean) * (weight * F.rsqrt(var + eps)) + bias


@Operator
def scale_cast(x: Tensor[H, ...], scale: float = 1.0) -> Tensor[Q, ...]:
    """x * scale rounded to fp8: e4m3, or e5m2 where `out` is one. Values beyond its range saturate."""
    return x * scale


def _all(members: dict[str, object]) -> tuple[Operator, ...]:
    return tuple(member for member in members.values() if isinstance(member, Operator))


OPERATORS: tuple[Operator, ...] = _all(dict(globals()))

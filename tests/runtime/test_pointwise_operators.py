"""Every shipped pointwise operator on the emulator, against torch's own function in float64, tails included."""

import math

import pytest
import torch
import torch.nn.functional as F

import kgen
from kgen.numerics.dtypes import torch_dtype
from kgen.ops.elementwise import pointwise


def hardshrink(x, threshold=0.5):
    return F.hardshrink(x, threshold)


def batch_norm(x, mean, var, weight, bias, eps=1e-5):
    return F.batch_norm(x.movedim(-1, 1), mean, var, weight, bias, eps=eps).movedim(1, -1)


def gelu(x):
    """torch's gelu(approximate="tanh"), without the cancellation in 1 + tanh."""
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


#: What each computes, by torch.
MEANING = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "weighted_sum": lambda a, b, alpha=1.0, beta=1.0: alpha * a + beta * b,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": F.elu,
    "gelu": gelu,
    "gelu_erf": lambda x: 0.5 * x * torch.special.erfc(x * -math.sqrt(0.5)),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "hardswish": F.hardswish,
    "hardshrink": hardshrink,
    "bias_gelu": lambda x, b: gelu(x + b),
    "gelu_mul": lambda x, gate: gelu(x) * gate,
    "silu_mul": lambda x, gate: F.silu(x) * gate,
    "bias_residual": lambda x, b, residual: x + b + residual,
    "add_relu": lambda a, b: torch.relu(a + b),
    "batch_norm": batch_norm,
    "scale_cast": lambda x, scale=1.0: x * scale,
}
SCALARS = {
    "weighted_sum": {"alpha": 0.75, "beta": -1.5},
    "elu": {"alpha": 0.5},
    "hardshrink": {"threshold": 0.25},
    "batch_norm": {"eps": 2**-10},
    "scale_cast": {"scale": 0.5},
}
#: Functions without a fixed number of correct digits: exp and its like in f32.
LOOSE = {torch.float32: 4e-6, torch.float64: 1e-13}
#: An absolute error that torch's own kernels share: where exp(-x) overflows f32, or is 2^126 and above.
UNDERFLOW = 2.0**-119
CASES = [
    pytest.param(op, graph, id="-".join([op.name, graph.inputs[0].dtype.name, graph.outputs[0].dtype.name]))
    for op in pointwise.OPERATORS
    for graph in op.graphs
]


def values(spec, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64) * 4
    if spec.name == "var":
        x = x.abs() + 0.1
    return x.to(torch_dtype(spec.dtype))


def operands(graph, rows, columns):
    """x [rows, columns]; what has one named dimension is a row."""
    made = []
    for seed, spec in enumerate(graph.inputs):
        is_row = len(spec.shape.dims) == 1 and not spec.shape.leading
        made.append(values(spec, (columns,) if is_row else (rows, columns), seed))
    return made


def allowed(expected, dtype, name):
    """One unit in the last place of 16-bit and narrower results; for wider ones the error of their functions."""
    info = torch.finfo(dtype)
    if dtype in LOOSE:
        return LOOSE[dtype] * expected.abs() + LOOSE[dtype]
    return info.eps * expected.abs() * 1.01 + max(info.tiny * info.eps, UNDERFLOW)


def check(name, got, expected):
    dtype = got.dtype
    got, info = got.to(torch.float64), torch.finfo(dtype)
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        expected = expected.clamp(-info.max, info.max)
    both_nan = got.isnan() & expected.isnan()
    same = (got == expected) | both_nan | (got - expected).abs().le(allowed(expected, dtype, name))
    assert same.all(), (got[~same][:3], expected[~same][:3])


def test_the_reference_for_gelu_is_torch_s():
    x = torch.linspace(-4, 4, 1001, dtype=torch.float64)
    torch.testing.assert_close(gelu(x), F.gelu(x, approximate="tanh"))


def test_all_operators_are_listed():
    assert {op.name for op in pointwise.OPERATORS} == set(MEANING)


@pytest.mark.parametrize(("op", "graph"), CASES)
def test_equals_torch(op, graph):
    run, scalars = getattr(kgen, op.name), SCALARS.get(op.name, {})
    for rows, columns in ((1, 1), (7, 37), (1, 1031)):
        x = operands(graph, rows, columns)
        out = torch.empty(rows, columns, dtype=torch_dtype(graph.outputs[0].dtype))
        assert run(*x, out=out, **scalars) is out
        check(op.name, out, MEANING[op.name](*(v.to(torch.float64) for v in x), **scalars))
        check(op.name, run(*x, out=torch.empty_like(out)), MEANING[op.name](*(v.to(torch.float64) for v in x)))


FINITE = [0.0, 1e-6, 0.5, 3.0, 4.03, 5.0, 10.1, 30.0, 88.8, 104.0, 1e4]
SPECIAL = [*FINITE, *(-x for x in FINITE), math.inf, -math.inf, math.nan]
GATED = ["gelu", "gelu_erf", "quick_gelu", "silu", "hardswish"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["sigmoid", "tanh", "relu", "elu", "hardshrink", *GATED])
def test_activations_have_exact_tails(name, dtype):
    x = torch.tensor(SPECIAL, dtype=dtype)
    expected = MEANING[name](x.to(torch.float64))
    if name in GATED:
        expected[x == -math.inf] = math.nan  # -inf * 0, as torch's f32 kernels have it too
    got = getattr(kgen, name)(x)
    finite = torch.isfinite(x)
    check(name, got[finite], expected[finite])
    assert got[x == math.inf].eq(expected[x == math.inf]).all()
    assert got[x.isnan()].isnan().all()


def test_swish_is_silu():
    x = torch.randn(100)
    assert torch.equal(kgen.swish(x), kgen.silu(x))


def test_fp8_values_beyond_the_range_saturate():
    x = torch.tensor([1e4, -1e4, 447.0, 449.0, 1.0])
    assert kgen.scale_cast(x).float().tolist() == [448.0, -448.0, 448.0, 448.0, 1.0]
    out = torch.empty(5, dtype=torch.float8_e5m2)
    assert kgen.scale_cast(x, 100.0, out=out).float().tolist() == [57344.0, -57344.0, 40960.0, 40960.0, 96.0]


def test_batch_norm_takes_channels_first_as_a_view():
    x = torch.randn(2, 6, 5, 3)
    mean, var, weight, bias = torch.randn(6), torch.rand(6) + 0.1, torch.randn(6), torch.randn(6)
    got = kgen.batch_norm(x.movedim(1, -1), mean, var, weight, bias).movedim(-1, 1)
    torch.testing.assert_close(got, F.batch_norm(x, mean, var, weight, bias))

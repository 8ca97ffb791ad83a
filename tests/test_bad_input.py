"""Bad input to kgen's Python interface: one clear KgenError that names operand, got and expected; what is legal computes.

Operators run on the emulator here. A refused case is a call, the error it must raise and what its message must say.
Definitions are in tests/runtime/test_bad_definitions.py.
"""

import math
import warnings

import pytest
import torch

import kgen
from kgen import (
    ArgumentError,
    ConfigError,
    DatabaseError,
    DeviceError,
    KgenError,
    Tensor,
    dims,
    f32,
)
from kgen.runtime import dispatch

M, N = dims("M N")


def f(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


def h(*shape):
    return torch.ones(shape, dtype=torch.float16)


def strided(*shape):
    """Half the columns of a larger matrix."""
    return torch.ones(*shape[:-1], 2 * shape[-1], dtype=torch.float16)[..., : shape[-1]]


def quantised():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(f(4), 0.1, 0, torch.qint8)


def nested():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([f(2), f(3)])


def csr():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.eye(3).to_sparse_csr()


def odd_address():
    return torch.frombuffer(bytearray(64), dtype=torch.uint8)[1:33].numpy().view("float32")


class Own(torch.Tensor):
    pass


@kgen.operator
def scaled(x: Tensor[f32, ...], factor: float, times: int = 1) -> Tensor[f32, ...]:
    return x * factor * times


@kgen.operator
def row(x: Tensor[f32, M, N], b: Tensor[f32, N]) -> Tensor[f32, M, N]:
    return x + b


@kgen.operator
def square(x: Tensor[f32, N, N]) -> Tensor[f32, N, N]:
    return x + 1


@kgen.operator
def fixed(x: Tensor[f32, ..., 4]) -> Tensor[f32, ..., 4]:
    return x + 1


@kgen.operator
def pair(x: Tensor[f32, ...]) -> tuple[Tensor[f32, ...], Tensor[f32, ...]]:
    return x + 1, x - 1


def shared_out():
    store = f(40)
    return kgen.relu(store[:8], out=store[4:12])


def no_derivative():
    a, b = h(4, 8), h(2, 8, 3).requires_grad_()
    return kgen.grouped_hgemm(a, b, torch.tensor([0, 1, 4], dtype=torch.int32))


def gemm_out_is_an_operand():
    a = h(8, 8)
    return kgen.hgemm(a, h(8, 8), out=a)


def in_place(x):
    assert kgen.relu(x, out=x) is x
    return x


#: The arguments of a call.
CALLS = [
    # How many, and by which name.
    ("no tensor", lambda: kgen.add(), ArgumentError, ["add", "2 tensors (a, b)", "missing a, b"]),
    ("one tensor of two", lambda: kgen.add(f(3)), ArgumentError, ["missing b"]),
    ("too many", lambda: kgen.add(f(3), f(3), f(3)), ArgumentError, ["takes 2 arguments (a, b), got 3"]),
    ("unknown name", lambda: kgen.gelu(f(3), approximate="tanh"), ArgumentError, ["gelu", "'approximate'", "none"]),
    ("unknown number", lambda: kgen.elu(f(3), beta=1.0), ArgumentError, ["elu", "'beta'", "alpha"]),
    ("twice", lambda: kgen.gelu(f(3), x=f(3)), ArgumentError, ["gelu got x twice"]),
    ("number twice", lambda: kgen.elu(f(3), 1.0, alpha=1.0), ArgumentError, ["elu got alpha twice"]),
    # What they are.
    ("a list", lambda: kgen.gelu([1.0, 2.0]), ArgumentError, ["gelu: x is a list", "expected a torch tensor"]),
    ("a number for a tensor", lambda: kgen.add(f(3), 2.0), ArgumentError, ["add: b is a float", "torch tensor"]),
    ("an array of numpy", lambda: kgen.gelu(f(3).numpy()[::-1]), ArgumentError, ["x is a ndarray", "strides"]),
    ("None", lambda: kgen.gelu(None), ArgumentError, ["x is a NoneType"]),
    ("a subclass", lambda: kgen.gelu(f(3).as_subclass(Own)), ArgumentError, ["x is a Own", "plain torch.Tensor"]),
    ("sparse", lambda: kgen.gelu(torch.eye(3).to_sparse()), ArgumentError, ["x is a sparse_coo tensor", "strided"]),
    ("sparse csr", lambda: kgen.gelu(csr()), ArgumentError, ["x is a sparse_csr tensor"]),
    ("nested", lambda: kgen.gelu(nested()), ArgumentError, ["x is a nested tensor"]),
    ("quantised", lambda: kgen.gelu(quantised()), ArgumentError, ["quantised", "dequantize()"]),
    ("address between elements", lambda: kgen.gelu(torch.from_numpy(odd_address())), ArgumentError, ["multiple", "4 bytes"]),
    ("two devices", lambda: kgen.add(f(3), f(3).to("meta")), ArgumentError, ["b is on the device meta"]),
    ("no derivative", no_derivative, kgen.DefinitionError, ["by b through grouped_matmul", "@grouped_hgemm.gradient"]),
    # Dtypes.
    ("integer for float", lambda: kgen.gelu(f(3, dtype=torch.int32)), ArgumentError, ["x int32", "float16", "bfloat16"]),
    ("complex", lambda: kgen.gelu(f(3, dtype=torch.complex64)), ArgumentError, ["x complex64", "expected x float16"]),
    ("bool", lambda: kgen.add(f(3) > 0, f(3) > 0), ArgumentError, ["a bool, b bool"]),
    ("two dtypes", lambda: kgen.add(f(3), h(3)), ArgumentError, ["a float32, b float16", "a float16, b float16"]),
    ("out of another dtype", lambda: kgen.gelu(f(3), out=h(3)), ArgumentError, ["x float32, out float16", "out float32"]),
    ("f32 for hgemm", lambda: kgen.hgemm(f(4, 4), f(4, 4)), ArgumentError, ["hgemm", "a float32", "float16", "bfloat16"]),
    ("half statistics", lambda: kgen.batch_norm(h(2, 3), *[h(3)] * 4), ArgumentError, ["mean float16", "mean float32"]),
    # Shapes.
    ("rank too low", lambda: row(f(3), f(3)), ArgumentError, ["row: x has 1 dimensions [3]", "expected 2", "f32[M, N]"]),
    ("rank too high", lambda: row(f(2, 2, 2), f(2)), ArgumentError, ["x has 3 dimensions [2, 2, 2]", "expected 2"]),
    ("vector for hgemm", lambda: kgen.hgemm(h(4), h(4, 4)), ArgumentError, ["a has 1 dimensions [4]", "at least 2"]),
    ("columns differ", lambda: row(f(3, 4), f(5)), ArgumentError, ["b has N=5 in [5]", "expected 4", "x has N=4"]),
    ("K differs", lambda: kgen.hgemm(h(3, 4), h(5, 6)), ArgumentError, ["b has K=5 in [5, 6]", "expected 4", "a has K=4"]),
    ("K differs, transposed", lambda: kgen.hgemm(h(3, 4), h(6, 5).T), ArgumentError, ["b has K=5", "expected 4"]),
    ("batches differ", lambda: kgen.hgemm(h(2, 3, 4), h(3, 4, 5)), ArgumentError, ["[2], [3]", "do not broadcast"]),
    ("no broadcast", lambda: kgen.add(f(3, 4), f(3)), ArgumentError, ["[3, 4], [3]", "do not broadcast"]),
    ("named dimensions do not broadcast", lambda: row(f(3, 4), f(1)), ArgumentError, ["b has N=1", "expected 4"]),
    ("not square", lambda: square(f(3, 4)), ArgumentError, ["x has N=4 in [3, 4]", "expected 3"]),
    ("not the fixed size", lambda: fixed(f(3, 5)), ArgumentError, ["x has 4=5 in [3, 5]", "expected 4"]),
    ("bias of another length", lambda: kgen.linear(h(2, 4), h(3, 4), h(4)), ArgumentError, ["bias has N=4", "w has N=3"]),
    # Outputs.
    ("out too large", lambda: kgen.add(f(3), f(3), out=f(4)), ArgumentError, ["out has shape [4]", "expected [3]"]),
    ("out not broadcast", lambda: kgen.add(f(3, 1), f(4), out=f(3, 1)), ArgumentError, ["out has shape [3, 1]", "[3, 4]"]),
    ("out of another rank", lambda: kgen.add(f(1, 3), f(3), out=f(3)), ArgumentError, ["out has shape [3]", "expected [1, 3]"]),
    ("out of hgemm transposed", lambda: kgen.hgemm(h(2, 4), h(4, 3), out=h(3, 2)), ArgumentError, ["[3, 2]", "expected [2, 3]"]),
    ("out is no tensor", lambda: kgen.gelu(f(3), out=[0.0]), ArgumentError, ["out is a float"]),
    ("too many outputs", lambda: kgen.gelu(f(3), out=(f(3), f(3))), ArgumentError, ["1 outputs", "out holds 2"]),
    ("too few outputs", lambda: pair(f(3), out=f(3)), ArgumentError, ["2 outputs", "out holds 1"]),
    ("expanded out", lambda: kgen.gelu(f(3, 4), out=f(1, 4).expand(3, 4)), ArgumentError, ["out share memory", "strides [0, 1]"]),
    ("out within itself", lambda: kgen.gelu(f(3, 4), out=f(9).as_strided((3, 4), (2, 1))), ArgumentError, ["out share memory"]),
    ("out shifted over x", shared_out, ArgumentError, ["out shares memory with x", "or exactly the tensor x"]),
    ("out of hgemm is a", gemm_out_is_an_operand, ArgumentError, ["out shares memory with a", "memory of its own"]),
    ("out requires a gradient", lambda: kgen.gelu(f(3), out=f(3).requires_grad_()), ArgumentError, ["out= was given"]),
    # Numbers.
    ("number missing", lambda: scaled(f(3)), ArgumentError, ["scaled needs factor, a float"]),
    ("number is text", lambda: scaled(f(3), "2"), ArgumentError, ["factor is str '2'", "expected a float"]),
    ("number is a tensor", lambda: scaled(f(3), f(1)), ArgumentError, ["factor is Tensor", "expected a float"]),
    ("number is complex", lambda: scaled(f(3), 1j), ArgumentError, ["factor is complex 1j"]),
    ("fraction for an int", lambda: scaled(f(3), 1.0, 2.5), ArgumentError, ["times is float 2.5", "expected an int"]),
    ("int beyond 32 bits", lambda: scaled(f(3), 1.0, 2**31), ArgumentError, ["times is 2147483648", "32 bits"]),
    ("float beyond f32", lambda: scaled(f(3), 1e39), ArgumentError, ["factor is 1e+39", "f32"]),
    ("bool for a number", lambda: scaled(f(3), True), ArgumentError, ["factor is bool True"]),
]  # fmt: skip

NAIVE = "Elementwise(pack=1, items=1, along='vectors', threads=128, blocks_per_sm=0, load='default', store='default')"


def product(**request):
    return lambda: kgen.hgemm.source(**{"M": 4, "N": 4, "K": 4, **request})


def elements(**request):
    return lambda: kgen.gelu.source(leading=4, **request)


def narrow(pack):
    """The plainest config with another pack."""
    return NAIVE.replace("pack=1", f"pack={pack}")


#: Names, sizes, configs, targets, budgets.
REQUESTS = [
    ("unknown operator", lambda: kgen.nosuch, KgenError, ["no operator 'nosuch'"]),
    ("misspelt operator", lambda: kgen.hgem, KgenError, ["'hgem'", "did you mean", "hgemm"]),
    ("unknown operator to tune", lambda: kgen.tune("gelo", leading=3), KgenError, ["'gelo'", "did you mean"]),
    ("unknown dimension", product(L=4), ArgumentError, ["unknown L", "expected M, K, N"]),
    ("missing dimension", lambda: kgen.hgemm.source(M=4, N=4), ArgumentError, ["missing K"]),
    ("negative size", product(M=-4), ArgumentError, ["M=-4", "not negative"]),
    ("fractional size", product(M=4.5), ArgumentError, ["M=4.5", "integers"]),
    ("size as text", product(M="4"), ArgumentError, ["M='4'", "integers"]),
    ("negative leading size", lambda: kgen.gelu.source(leading=-1), ArgumentError, ["(-1,)", "not negative"]),
    ("nothing to generate", product(M=0), ArgumentError, ["no element", "above 0"]),
    ("nothing to tune", lambda: kgen.gelu.tune(leading=0, gpu="H200"), ArgumentError, ["no element"]),
    ("unknown dtype", elements(dtype="f15"), KgenError, ["'f15'", "f16", "bf16"]),
    ("dtype it is not defined for", product(dtype="i8"), ArgumentError, ["i8", "f16", "bf16"]),
    ("layout of no operand", product(layouts={"w": "col"}), ArgumentError, ["'w'", "a, b, out"]),
    ("unknown layout", product(layouts={"b": "T"}), ArgumentError, ["'T'", "row or col"]),
    ("malformed config", elements(config="pack=1"), ConfigError, ["malformed", "'pack=1'", "Elementwise"]),
    ("config that is code", elements(config="__import__('os')"), ConfigError, ["malformed or unknown"]),
    ("unknown schedule", elements(config="Fast(pack=1)"), ConfigError, ["unknown", "Elementwise"]),
    ("unknown field", elements(config="Elementwise(pak=1)"), ConfigError, ["unknown field pak", "pack"]),
    ("missing field", elements(config="Elementwise(pack=1)"), ConfigError, ["missing field items"]),
    ("malformed value", elements(config="Elementwise(pack=1+1)"), ConfigError, ["'1+1'", "pack"]),
    ("outside its domain", elements(config=narrow(3)), ConfigError, ["pack=3", "1, 2, 4, 8, 16"]),
    ("against a rule", elements(dtype="f64", config=narrow(16)), ConfigError, ["moderate_vectors", "two accesses"]),
    ("of another family", product(config=NAIVE), ConfigError, ["does not serve hgemm", "MmaGemm"]),
    ("config of another type", lambda: kgen.gelu.using({"pack": 1}), ConfigError, ["dict", "Schedule"]),
    ("pinned against a rule", lambda: kgen.relu.using(narrow(4))(f(9)[1:]), ConfigError, ["aligned"]),
    ("unknown GPU", elements(target="H300"), DeviceError, ["'H300'", "H200"]),
    ("ambiguous GPU", elements(target="A100"), DeviceError, ["A100-SXM4-40GB", "A100-SXM4-80GB"]),
    ("unknown architecture", elements(target="sm_33"), DeviceError, ["sm_33", "sm_80"]),
    ("GPU that is not here", lambda: kgen.gelu.tune(leading=4, gpu=99), DeviceError, ["no GPU 99"]),
    ("too old a GPU", lambda: kgen.fp8gemm.source(M=64, N=64, K=64, target="T4"), ConfigError, ["no config serves fp8gemm"]),
    ("malformed budget", lambda: kgen.gelu.tune(leading=4, budget="1 day", gpu="H200"), ArgumentError, ["'1 day'", "60s"]),
    ("budget of nothing", lambda: kgen.gelu.tune(leading=4, budget="0s", gpu="H200"), ArgumentError, ["0", "more than 0"]),
]  # fmt: skip


@pytest.fixture(autouse=True)
def untouched(monkeypatch, tmp_path):
    """A database of its own, which no refused case may create."""
    path = tmp_path / "refused.sqlite"
    monkeypatch.setenv("KGEN_DATABASE", str(path))
    dispatch.forget()
    yield path
    dispatch.forget()


def refused(call, kind, words):
    with pytest.raises(KgenError) as caught:
        call()
    assert isinstance(caught.value, kind), caught.value
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message
    return message


@pytest.mark.parametrize(("call", "kind", "words"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS])
def test_a_call_is_refused(call, kind, words):
    first = refused(call, kind, words)
    assert refused(call, kind, words) == first  # and again, with whatever the first has left behind


@pytest.mark.parametrize(("call", "kind", "words"), [c[1:] for c in REQUESTS], ids=[c[0] for c in REQUESTS])
def test_a_request_is_refused(call, kind, words, untouched):
    refused(call, kind, words)
    assert not untouched.exists()


@pytest.mark.parametrize("kind", ["corrupt", "folder", "not kgen's", "no folder can be made", "no such driver"])
def test_a_database_that_cannot_be_used_is_refused_for_tuning(kind, monkeypatch, tmp_path):
    path = tmp_path / "tuning.sqlite"
    where = str(path)
    if kind == "corrupt":
        path.write_bytes(b"\x01garbage" * 1000)
    elif kind == "folder":
        path.mkdir()
    elif kind == "not kgen's":
        import sqlite3

        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE mine (a)")
    elif kind == "no folder can be made":
        (tmp_path / "file").write_text("")
        where = str(tmp_path / "file" / "tuning.sqlite")
    else:
        where = "nosuch://host/kgen"
    monkeypatch.setenv("KGEN_DATABASE", where)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    refused(lambda: kgen.gelu.tune(leading=64, budget="1", gpu="H200"), DatabaseError, ["database"])
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def gemm_cases():
    a, b = torch.randn(13, 10).half(), torch.randn(10, 11).half()
    wide = torch.randn(40, 40).half()
    return {
        "transposed": (a, torch.randn(11, 10).half().T),
        "both transposed": (torch.randn(10, 13).half().T, torch.randn(11, 10).half().T),
        "rows of a wider matrix": (wide[:13, :10], wide[20:30, 5:16]),
        "every other column": (wide[:13, :20:2], b),
        "misaligned": (torch.randn(131).half()[1:].view(13, 10), b),
        "expanded": (a[:1].expand(13, 10), b),
        "negative direction": (a.flip(0), b),
        "one row": (a[:1], b),
        "one column": (a, b[:, :1]),
        "K = 1": (a[:, :1], b[:1]),
        "K = 0": (a[:, :0], b[:0]),
        "M = 0": (a[:0], b),
        "batches": (torch.randn(2, 3, 13, 10).half(), b),
        "batches broadcast": (torch.randn(2, 1, 13, 10).half(), torch.randn(3, 10, 11).half()),
        "no batch": (torch.randn(0, 13, 10).half(), b),
    }


@pytest.mark.parametrize("case", gemm_cases())
def test_a_legal_product_computes(case):
    torch.manual_seed(0)
    a, b = gemm_cases()[case]
    expected = torch.matmul(a.double(), b.double())
    got = kgen.hgemm(a, b)
    assert got.shape == expected.shape
    torch.testing.assert_close(got.double(), expected, rtol=2e-3, atol=2e-3)
    out = torch.full((*expected.shape[:-1], 2 * expected.shape[-1]), math.nan).half()[..., ::2]
    assert kgen.hgemm(a, b, out=out) is out
    assert torch.equal(out, got)


LEGAL = {
    "a 0-dimensional tensor": lambda: (kgen.add(f(), f(3)), f(3) * 2),
    "both 0-dimensional": lambda: (kgen.add(f(), f()), f() * 2),
    "size 0": lambda: (kgen.add(f(0, 3), f(3)), f(0, 3)),
    "size 0 and out": lambda: (kgen.gelu(f(0), out=f(0)), f(0)),
    "not contiguous": lambda: (kgen.relu(strided(3, 5)), h(3, 5)),
    "transposed out": lambda: (kgen.relu(f(3, 4), out=f(4, 3).T), f(3, 4)),
    "expanded input": lambda: (kgen.add(f(1, 4).expand(3, 4), f(3, 1)), f(3, 4) * 2),
    "misaligned": lambda: (kgen.relu(h(100)[1:]), h(99)),
    "misaligned out": lambda: (kgen.relu(h(99), out=h(100)[1:]), h(99)),
    "in place": lambda: (in_place(-f(9)), f(9) * 0),
    "out as a list": lambda: (kgen.relu(f(3), out=[f(3)]), f(3)),
    "channels last": lambda: (kgen.relu(f(2, 3, 4, 5).to(memory_format=torch.channels_last)), f(2, 3, 4, 5)),
    "seven dimensions": lambda: (kgen.add(f(2, 1, 2, 1, 2, 1, 2), f(1, 3, 1, 3, 1, 3, 1)), f(2, 3, 2, 3, 2, 3, 2) * 2),
    "infinite number": lambda: (scaled(f(3), math.inf), f(3) * math.inf),
    "number of numpy": lambda: (scaled(f(3), torch.tensor(2.0).numpy()[()]), f(3) * 2),
    "int for a float": lambda: (scaled(f(3), 2), f(3) * 2),
    "a Parameter without gradients": lambda: (kgen.relu(torch.nn.Parameter(f(3), requires_grad=False)), f(3)),
}


@pytest.mark.parametrize("case", LEGAL)
def test_a_strange_but_legal_call_computes(case):
    got, expected = LEGAL[case]()
    assert torch.equal(got, expected)


def test_there_are_enough_cases():
    assert len(CALLS) + len(REQUESTS) > 90

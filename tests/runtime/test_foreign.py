"""Arrays of other libraries as operands: numpy's, what has DLPack or `__cuda_array_interface__` alone, JAX's where it is."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch.nn import functional as F

import kgen
from kgen import ArgumentError, Tensor, bf16, f32
from kgen.runtime import foreign


class Shown:
    """An array that has DLPack and nothing else; as of a library without `from_dlpack`."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **named):
        return self.tensor.__dlpack__(**named)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


class Standard(Shown):
    """One of a library that follows the array API standard."""

    def __array_namespace__(self):
        return SimpleNamespace(from_dlpack=lambda y: Standard(torch.from_dlpack(y)))


class OnDevice:
    """What numba's arrays show of themselves."""

    def __init__(self, stream=None, readonly=False):
        self.__cuda_array_interface__ = {
            "shape": (8,), "typestr": "<f4", "data": (4096, readonly), "version": 3, "strides": None, "stream": stream,
        }  # fmt: skip


@kgen.operator
def rounded(x: Tensor[f32, ...]) -> Tensor[bf16, ...]:
    return kgen.cast(x * 2, bf16)


def drawn(*shape):
    return numpy.random.default_rng(5).standard_normal(shape, dtype=numpy.float32)


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.T, lambda x: x[::2, 1:], lambda x: x[:, :0]])
def test_numpy_in_numpy_out(view):
    x = view(drawn(6, 9))
    y = kgen.softmax(x)
    assert type(y) is numpy.ndarray
    numpy.testing.assert_allclose(y, F.softmax(torch.tensor(x), -1).numpy(), rtol=1e-5)
    y += 1  # it is the caller's


def test_every_kind_of_number_that_numpy_has():
    for dtype in ("f2", "f4", "f8"):
        x = drawn(3, 4).astype(dtype)
        assert kgen.relu(x).dtype == x.dtype
    assert kgen.igemm(numpy.ones((4, 8), "i1"), numpy.ones((8, 4), "i1")).dtype == numpy.int32
    table, ids = drawn(5, 4), numpy.array([3, 0])
    numpy.testing.assert_array_equal(kgen.embedding(table, ids), table[ids])


def test_several_results_and_numbers():
    x, weight = drawn(4, 8), drawn(8)
    results = kgen.rms_norm_forward(x, weight, eps=1e-3)
    assert isinstance(results, tuple)
    assert {type(y) for y in results} == {numpy.ndarray}
    exact = kgen.rms_norm_forward(torch.tensor(x), torch.tensor(weight), eps=1e-3)
    for got, want in zip(results, exact):
        numpy.testing.assert_array_equal(got, want.numpy())
    numpy.testing.assert_array_equal(kgen.elu(x, 2.0), kgen.elu(torch.tensor(x), alpha=2.0).numpy())
    numpy.testing.assert_array_equal(kgen.add(a=x, b=x), x + x)


def test_outputs_of_the_callers_are_written():
    x, y = drawn(4, 8), numpy.empty((4, 8), "f4")
    assert kgen.relu(x, out=y) is y
    numpy.testing.assert_array_equal(y, numpy.maximum(x, 0))
    assert kgen.relu(torch.tensor(-x), out=y) is y
    numpy.testing.assert_array_equal(y, numpy.maximum(-x, 0))
    t = torch.empty(4, 8)
    assert kgen.relu(x, out=t) is t
    assert kgen.relu(x, out=x) is x  # in place
    assert (x >= 0).all()


def test_what_may_not_be_written():
    x, y = drawn(4), numpy.empty(4, "f4")
    y.flags.writeable = False
    assert (kgen.relu(y * 0) == 0).all()
    kgen.relu(y)  # it may be read
    with pytest.raises(ArgumentError, match="relu: out is a ndarray that may not be written"):
        kgen.relu(x, out=y)
    with pytest.raises(ArgumentError, match="relu: out is a Shown that may not be written"):
        kgen.relu(x, out=Shown(torch.empty(4)))


def test_dlpack_alone_gives_torch_tensors():
    x = torch.randn(4, 8)
    assert torch.equal(kgen.relu(Shown(x)), x.relu())


@pytest.mark.parametrize("kind", ["namespace", "module"])
def test_the_library_that_takes_dlpack_gets_it(kind, monkeypatch):
    x = torch.randn(4, 8)
    given = Standard(x)
    if kind == "module":
        monkeypatch.delattr(Standard, "__array_namespace__")
        monkeypatch.setattr(
            sys.modules[__name__], "from_dlpack", lambda y: Standard(torch.from_dlpack(y)), raising=False
        )
    y = kgen.relu(given)
    assert type(y) is Standard
    assert torch.equal(y.tensor, x.relu())


def test_a_torch_tensor_among_the_operands_gives_torch_tensors():
    x = torch.randn(4, 8, requires_grad=True)
    y = kgen.add(drawn(4, 8), x)
    assert type(y) is torch.Tensor
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones(4, 8))


@pytest.mark.parametrize(
    ("x", "told"),
    [
        (drawn(4, 8)[::-1], "relu: x is a ndarray with negative strides"),
        (drawn(4).astype(">f4"), "relu: x is a ndarray that torch cannot see"),
        (numpy.array(["a"]), "relu: x is a ndarray that torch cannot see"),
        (numpy.ones(3, "i4"), "relu got dtypes x int32"),
        (numpy.float32(3), "relu: x is a float32; expected a torch tensor or an array"),
    ],
)
def test_what_is_refused(x, told):
    with pytest.raises(ArgumentError) as caught:
        kgen.relu(x)
    assert told in str(caught.value)


def test_numpy_has_no_bf16():
    with pytest.raises(ArgumentError, match="numpy has no bfloat16"):
        rounded(drawn(4))
    assert rounded(Shown(torch.ones(4))).dtype is torch.bfloat16


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a torch without a GPU")
def test_memory_of_a_gpu_that_is_not_there():
    with pytest.raises(ArgumentError, match="relu: x is a OnDevice that torch cannot see"):
        kgen.relu(OnDevice())


@pytest.mark.parametrize("stream", [None, 1, 2, 77])
def test_a_cuda_array_interface_waits_for_its_stream(monkeypatch, stream):
    """On a GPU, of which torch's own functions are noted."""
    x, waits = torch.randn(8), []
    array = OnDevice(stream)
    monkeypatch.setattr(torch, "as_tensor", lambda given, device: x if (given, device) == (array, "cuda") else None)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: (handle, device))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(wait_stream=waits.append))
    assert torch.equal(kgen.relu(array), x.relu())  # numba takes no DLPack back
    assert waits == ([] if stream is None else [(stream, x.device)])
    assert kgen.relu(array, out=array) is array
    with pytest.raises(ArgumentError, match="may not be written"):
        foreign._check_writable("relu: out", OnDevice(readonly=True))


def test_a_warm_call_of_torch_tensors_does_not_look(monkeypatch):
    x = torch.randn(8)
    kgen.relu(x)
    monkeypatch.setattr(foreign, "is_foreign", None)
    kgen.relu(x)


def test_jax():
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray(drawn(4, 8))
    y = kgen.relu(x)
    assert isinstance(y, jax.Array)
    numpy.testing.assert_array_equal(numpy.asarray(y), numpy.maximum(numpy.asarray(x), 0))
    with pytest.raises(ArgumentError, match="may not be written"):
        kgen.relu(x, out=x)

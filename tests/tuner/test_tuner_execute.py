"""Runner: what each parameter of a kernel is given, on the emulator and on a GPU; the kernels here only note it."""

from dataclasses import dataclass

import pytest
import torch

from kgen import emulator
from kgen.codegen.source import Integer, Launch, Pointer, Scalar, Source, TensorMap
from kgen.dsl.errors import ArgumentError
from kgen.dsl.size import Dim
from kgen.dsl.target import sm
from kgen.dsl.types import f32, i32
from kgen.gpu.kernel import Kernel
from kgen.tuner.execute import Runner

N = Dim("N")
PARAMS = (
    TensorMap("map_x", f32, "x", "in", (N, 4), (N,), (4, 4)),
    Pointer("x", f32, "x", "in"),
    Pointer("partials", f32, "", "scratch", N * 2),
    Pointer("counters", i32, "", "counters", 3),
    TensorMap("map_partials", f32, "partials", "in", (N * 2,), (), (4,)),
    TensorMap("map_out", f32, "out", "out", (N, 4), (N,), (4, 4)),
    Integer("n", N),
    Scalar("alpha", f32),
)
SIZES = {"N": 8}


@dataclass
class Map:
    """The emulator's argument for a tensor map."""

    buffer: emulator.Buffer
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


class Emulated:
    """A kernel of the emulator."""

    def launch(self, arguments, grid, *, options, blocks):
        self.arguments, self.grid = arguments, grid


class Loaded(Kernel):
    """A kernel of a GPU."""

    def __init__(self):
        self.source, self.device = SOURCE, 0

    def prepare(self, arguments, grid, maps, early=True):
        return arguments, grid, maps


SOURCE = Source("", (), "", "", "noted", PARAMS, Launch((N, 1, 1), (32, 1, 1)), sm(90, "a"))


@pytest.fixture
def tensors():
    return {"x": torch.ones(4, 8), "out": torch.empty(4, 8)}


def test_maps_on_the_emulator_bring_the_memory_of_what_they_show(monkeypatch, tensors):
    monkeypatch.setattr(emulator, "Map", Map, raising=False)
    kernel = Emulated()
    runner = Runner(kernel, SOURCE, SIZES)
    runner.run(tensors, {"alpha": 2.0})
    shown_x, x, partials, counters, shown_partials, shown_out, n, alpha = kernel.arguments
    assert x == emulator.Buffer(tensors["x"].data_ptr(), 128, writable=False)
    assert shown_x == Map(x, (8, 4), (8,))
    assert (partials.bytes, partials.writable, partials.initialized) == (64, True, False)
    assert (counters.bytes, counters.writable, counters.initialized) == (12, True, True)
    # A map reads what the kernel has written there: at first, nothing is known.
    assert shown_partials == Map(partials, (16,), ())
    assert shown_out == Map(emulator.Buffer(tensors["out"].data_ptr(), 128, True, False), (8, 4), (8,))
    assert (n, alpha) == (8, 2.0)


def test_an_output_that_is_an_input_is_known(monkeypatch, tensors):
    monkeypatch.setattr(emulator, "Map", Map, raising=False)
    kernel = Emulated()
    Runner(kernel, SOURCE, SIZES).run({"x": tensors["x"], "out": tensors["x"]}, {"alpha": 2.0})
    assert kernel.arguments[5].buffer == emulator.Buffer(tensors["x"].data_ptr(), 128, True, True)


def test_maps_on_a_gpu_are_addresses_and_extents(tensors):
    runner = Runner(Loaded(), SOURCE, SIZES)
    arguments, grid, maps = runner.prepare(tensors, {"alpha": 2.0})
    x, out = (tensors[name].data_ptr() for name in ("x", "out"))
    assert arguments[:2] == [x, x]
    assert arguments[4] == arguments[2]
    assert len({*arguments[2:4], x, out}) == 4
    assert arguments[5:] == [out, 8, 2.0]
    assert grid == (8, 1, 1)
    assert {i: (e.sizes, e.strides) for i, e in maps.items()} == {0: ((8, 4), (8,)), 4: ((16,), ()), 5: ((8, 4), (8,))}


def test_an_operand_that_is_not_given(tensors):
    with pytest.raises(ArgumentError, match="noted needs the operand out; got x"):
        Runner(Loaded(), SOURCE, SIZES).prepare({"x": tensors["x"]}, {"alpha": 2.0})

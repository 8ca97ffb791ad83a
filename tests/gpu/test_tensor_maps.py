"""Tensor maps and cooperative launches on a real GPU: ragged tensors, addresses that change, other threads. No torch."""

import threading

import numpy as np
import pytest
from export_samples import problem, shifted, tma_shift

from kgen.gpu import driver
from kgen.gpu.compile import compile
from kgen.gpu.kernel import load
from kgen.gpu.memory import DeviceBuffer
from kgen.gpu.target import detect

TARGET = detect(0) if driver.device_count() else None
pytestmark = pytest.mark.skipif(TARGET is None or TARGET.arch.sm != 90, reason="needs a GPU of sm_90")

M, N, PITCH = 77, 132, 136
GUARD = np.float32(-1.0)


class Operands:
    """x and out with rows of PITCH floats, and b; what lies between the rows of out must stay as it is."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.x = rng.standard_normal((M, PITCH), np.float32)
        self.b = rng.standard_normal(N, np.float32)
        self.buffers = [DeviceBuffer.of(a.tobytes()) for a in (self.x, self.b, np.full((M, PITCH), GUARD))]

    @property
    def addresses(self):
        return [buffer.address for buffer in self.buffers]

    def check(self):
        out = np.frombuffer(self.buffers[2].read(), np.float32).reshape(M, PITCH)
        np.testing.assert_array_equal(out[:, :N], self.x[:, :N] + self.b)
        np.testing.assert_array_equal(out[:, N:], GUARD)


@pytest.fixture
def operands():
    made = [Operands(0), Operands(1)]
    yield made
    for buffer in (*made[0].buffers, *made[1].buffers):
        buffer.close()


def prepared(**changes):
    source = tma_shift(**changes).source(problem(shifted, {}, {"M": 64, "N": 128}))
    bound = source.bind({"n0": M, "n1": N, "x_s0": PITCH, "out_s0": PITCH})
    kernel = load(compile(source, TARGET.arch), source, 0)
    return kernel, kernel.prepare([0, 0, 0, N], bound.grid, bound.maps)


@pytest.mark.parametrize("cooperative", [False, True])
@pytest.mark.parametrize("cluster", [1, 2])
def test_maps_follow_the_addresses_of_each_call(operands, cooperative, cluster):
    kernel, launch = prepared(cooperative=cooperative, cluster=cluster)
    first, second = operands
    launch(*first.addresses)
    first.check()
    launch(*second.addresses)
    second.check()
    x, b, _ = second.addresses
    second.buffers[2].fill(0)
    second.buffers[2].write(np.full((M, PITCH), GUARD).tobytes())
    launch(x, b, second.addresses[2])
    second.check()
    kernel.close()


def test_a_thread_that_has_no_context(operands):
    kernel, launch = prepared()
    thread = threading.Thread(target=launch, args=operands[0].addresses)
    thread.start()
    thread.join()
    operands[0].check()
    kernel.close()

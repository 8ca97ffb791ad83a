"""The driver's side of kgen.gpu on a real GPU: loading, launching, timing, faults. No torch."""

import struct
import subprocess
import sys
import threading
import time

import pytest
import torch

from kgen.codegen.source import Integer, Launch, Pointer, Scalar, Source
from kgen.dsl.errors import DeviceError
from kgen.dsl.target import Arch
from kgen.dsl.types import f32, i32
from kgen.gpu import driver, telemetry
from kgen.gpu.compile import compile
from kgen.gpu.events import Event, Graph, Stream
from kgen.gpu.kernel import load
from kgen.gpu.memory import DeviceBuffer
from kgen.gpu.target import detect, resolve

pytestmark = pytest.mark.skipif(driver.device_count() == 0, reason="needs a GPU")

ADD = """\
extern "C" __global__ void __launch_bounds__(256) add(int n, const float* x, const float* y, float scale, float* z) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) z[i] = x[i] + scale * y[i];
}
"""

#: Reverses a block's values through `n` ints of dynamic shared memory.
REVERSE = """\
extern "C" __global__ void __launch_bounds__(256) reverse(int* z, int n) {
  extern __shared__ __align__(1024) unsigned char shared[];
  int* tile = reinterpret_cast<int*>(shared);
  for (int i = threadIdx.x; i < n; i += 256) tile[i] = i;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += 256) z[i] = tile[n - 1 - i];
}
"""

CLUSTER = """\
extern "C" __global__ void ranks(int* z) {
  unsigned rank, blocks;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
  if (threadIdx.x == 0) z[blockIdx.x] = 100 * blocks + rank;
}
"""

N = 1000


@pytest.fixture(scope="module")
def target():
    return detect(0)


def built(target, body, entry, params, arch=75, **launch):
    shape = {"grid": (1, 1, 1), "block": (256, 1, 1), **launch}
    source = Source("", (), "", body, entry, params, Launch(**shape), Arch(arch))
    return load(compile(source, target.arch), source, 0)


@pytest.fixture
def add(target):
    params = (
        Integer("n", N),
        Pointer("x", f32, "x", "in"),
        Pointer("y", f32, "y", "in"),
        Scalar("scale", f32),
        Pointer("z", f32, "z", "out"),
    )
    kernel = built(target, ADD, "add", params)
    yield kernel
    kernel.close()


@pytest.fixture
def operands():
    x = DeviceBuffer.of(struct.pack(f"<{N}f", *range(N)))
    y = DeviceBuffer.of(struct.pack(f"<{N}f", *(2 * i for i in range(N))))
    with x, y, DeviceBuffer(4 * N) as z:
        z.fill(0xFF)
        yield x, y, z


def floats(buffer):
    return struct.unpack(f"<{N}f", buffer.read())


SUM = tuple(i + 0.5 * 2 * i for i in range(N))


def test_launch(add, operands):
    x, y, z = operands
    add.launch([N, x.address, y.address, 0.5, z.address], (4,))
    assert floats(z) == SUM


def test_a_prepared_launch_takes_new_pointers(add, operands):
    x, y, z = operands
    launch = add.prepare([N, y.address, y.address, 0.5, y.address], (4, 1, 1))
    launch(x.address, y.address, z.address)
    assert floats(z) == SUM
    assert floats(y) == tuple(2.0 * i for i in range(N))


def test_a_thread_of_its_own(add, operands):
    x, y, z = operands
    launch = add.prepare([N, x.address, y.address, 0.5, z.address], (4,))
    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert floats(z) == SUM


def test_all_shared_memory_of_a_block(target):
    params = (Pointer("z", i32, "z", "out"), Integer("n", 1))
    kernel = built(target, REVERSE, "reverse", params, shared_bytes=target.smem_per_block)
    n = target.smem_per_block // 4
    with DeviceBuffer(4 * n) as z:
        kernel.launch([z.address, n], (1, 1, 1))
        assert struct.unpack(f"<{n}i", z.read()) == tuple(range(n - 1, -1, -1))
    kernel.close()


def test_too_much_shared_memory_is_refused(target):
    params = (Pointer("z", i32, "z", "out"), Integer("n", 1))
    with pytest.raises(DeviceError, match="shared memory a block") as caught:
        built(target, REVERSE, "reverse", params, shared_bytes=target.smem_per_block + 1024)
    assert caught.value.code == 1


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_clusters(target, size):
    if target.arch.sm not in (90, 100):
        pytest.skip("needs clusters of up to 16 blocks")
    kernel = built(target, CLUSTER, "ranks", (Pointer("z", i32, "z", "out"),), arch=90, cluster=(size, 1, 1))
    with DeviceBuffer(4 * 32) as z:
        kernel.launch([z.address], (32, 1, 1))
        assert struct.unpack("<32i", z.read()) == tuple(100 * size + i % size for i in range(32))
    kernel.close()


def test_a_cubin_for_another_architecture_is_refused(target):
    other = Arch(80) if target.arch.sm >= 90 else Arch(90)
    source = Source("", (), "", 'extern "C" __global__ void k() {}\n', "k", (), Launch((1, 1, 1), (1, 1, 1)), Arch(75))
    with pytest.raises(DeviceError, match="loading k"):
        load(compile(source, other), source, 0)


def test_events_and_graphs(add, operands):
    x, y, z = operands
    stream, start, end = Stream(), Event(), Event()
    launch = add.prepare([N, x.address, y.address, 0.5, z.address], (4,))
    graph = Graph.capture(stream, lambda: [launch(stream=stream.handle) for _ in range(100)])
    assert z.read() == b"\xff" * 4 * N  # a capture runs nothing
    start.record(stream.handle)
    graph.replay(stream.handle)
    end.record(stream.handle)
    end.synchronize()
    assert 0.01 < start.elapsed_ms(end) < 100
    assert floats(z) == SUM
    for thing in (graph, start, end, stream):
        thing.close()


def test_a_failing_capture_leaves_the_stream_usable(add, operands):
    x, y, z = operands
    stream = Stream()

    def fail():
        raise RuntimeError("while capturing")

    with pytest.raises(RuntimeError, match="while capturing"):
        Graph.capture(stream, fail)
    add.launch([N, x.address, y.address, 0.5, z.address], (4,), stream=stream.handle)
    stream.synchronize()
    assert floats(z) == SUM
    stream.close()


def test_host_time_of_a_prepared_launch(add, operands):
    addresses = [operand.address for operand in operands]
    launch = add.prepare([N, addresses[0], addresses[1], 0.5, addresses[2]], (4,))
    driver.activate(0)
    stream = Stream()
    x, y, z = (torch.ones(N, device="cuda") for _ in range(3))
    calls = {"kgen": lambda: launch(*addresses, stream=stream.handle), "torch": lambda: torch.add(x, y, out=z)}
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(50):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(100):
                call()
            best[name] = min(best[name], time.perf_counter() - start)
            torch.cuda.synchronize()
    stream.close()
    assert best["kgen"] < best["torch"]


#: A fault spoils the context, so it happens in a process of its own.
FAULT = """
import sys
from kgen.codegen.source import Launch, Pointer, Source
from kgen.dsl.errors import DeviceError
from kgen.dsl.target import Arch
from kgen.dsl.types import f32
from kgen.gpu.compile import compile
from kgen.gpu.events import Stream
from kgen.gpu.kernel import load
from kgen.gpu.target import detect
body = 'extern "C" __global__ void wild(float* z) { z[threadIdx.x] = 1.f; }\\n'
source = Source("", (), "", body, "wild", (Pointer("z", f32, "z", "out"),), Launch((1, 1, 1), (32, 1, 1)), Arch(75))
kernel, stream = load(compile(source, detect(0).arch), source, 0), Stream()
kernel.launch([0], (1, 1, 1), stream=stream.handle)
try:
    stream.synchronize()
except DeviceError as error:
    print(error.code, error)
"""


def test_a_fault_comes_up_with_its_code():
    told = subprocess.run([sys.executable, "-c", FAULT], capture_output=True, text=True, timeout=120)
    assert told.stdout.startswith("700 "), told
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in told.stdout


def test_facts_of_the_device(target):
    assert target == resolve("auto") == resolve("0")
    assert target.arch.sm >= 75
    assert target.sm_count > 1
    assert target.smem_per_block >= 64 * 1024
    assert target.bandwidth > 1e11
    assert target.driver
    assert detect(driver.device_count()) is None


def test_telemetry():
    sample = telemetry.sample(0)
    if telemetry.driver_version() is None:
        pytest.skip("needs NVML")
    assert sample.sm_clock is not None
    assert sample.sm_clock > 100
    assert sample.temperature is None or 0 < sample.temperature < 120
    assert sample.throttle is not None

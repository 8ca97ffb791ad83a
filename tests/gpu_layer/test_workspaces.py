"""Workspaces of streams and of CUDA graphs, and memory taken during a capture: by a driver that keeps memory of the host."""

import ctypes

import pytest
from cuda.bindings import driver as real

from kgen.dsl.errors import DeviceError
from kgen.gpu import driver, workspaces

RELAXED, GLOBAL = real.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED, real.CUstreamCaptureMode(0)
OK = real.CUresult.CUDA_SUCCESS


class Driver:
    """The bindings, over the host's memory. During a capture what is unsafe in the thread's mode is refused."""

    def __init__(self):
        self.mode, self.capture, self.graphs = GLOBAL, 0, {}
        self.memory, self.version, self.synchronized = [], 13000, []

    def __getattr__(self, name):
        found = getattr(real, name)
        if not name.startswith("cu"):
            return found
        return lambda *arguments: (OK, 1)  # contexts, devices

    def _unsafe(self):
        refused = self.capture and self.mode != RELAXED
        return real.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if refused else OK

    def cuThreadExchangeStreamCaptureMode(self, mode):
        before, self.mode = self.mode, mode
        return OK, before

    def cuMemAlloc(self, size):
        self.memory.append(ctypes.create_string_buffer(b"\xff" * size, size))
        return self._unsafe(), ctypes.addressof(self.memory[-1])

    def cuStreamCreate(self, flags):
        assert (
            flags == real.CUstream_flags.CU_STREAM_NON_BLOCKING.value
        )  # it must not wait for the stream that is captured
        return OK, 77

    def cuMemsetD8Async(self, address, byte, size, stream):
        assert stream == 77  # not the stream that is captured, nor the default one
        ctypes.memset(address, byte, size)
        return (OK,)

    def cuStreamSynchronize(self, stream):
        self.synchronized.append(stream)
        return (self._unsafe(),)

    def cuStreamDestroy(self, stream):
        return (OK,)

    def cuDriverGetVersion(self):
        return OK, self.version

    def cuStreamGetCaptureInfo(self, stream):
        status = real.CUstreamCaptureStatus
        if not self.capture:
            return OK, status.CU_STREAM_CAPTURE_STATUS_NONE, 0, None, (), (), 0
        return OK, status.CU_STREAM_CAPTURE_STATUS_ACTIVE, self.capture, f"graph {self.capture}", (), (), 0

    def cuUserObjectCreate(self, pointer, destructor, count, flags):
        assert (count, flags) == (1, 1)
        return OK, (pointer, int(destructor))

    def cuGraphRetainUserObject(self, graph, made, count, flags):
        assert (count, flags) == (1, 1)  # moved: the graph has the only reference
        self.graphs.setdefault(graph, []).append(made)
        return (OK,)

    def destroy(self, number):
        """What becomes of a graph's user objects."""
        for pointer, destructor in self.graphs.pop(f"graph {number}"):
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.cast(destructor, ctypes.c_void_p).value)(pointer)


@pytest.fixture
def fake(monkeypatch):
    made = Driver()
    monkeypatch.setattr(driver, "api", lambda: made)
    monkeypatch.setattr(driver, "device_count", lambda: 2)
    for name, empty in (("_of_streams", {}), ("_of_captures", {}), ("_lent", [])):
        monkeypatch.setattr(workspaces, name, empty)
    driver.primary_context.cache_clear()
    yield made
    driver.primary_context.cache_clear()


def filled(address, size):
    return ctypes.string_at(address, size)


def test_a_stream_has_one_buffer_a_use_that_grows(fake):
    first = workspaces.of_stream(0, 5, "scratch", 100)
    assert workspaces.of_stream(0, 5, "scratch", 4096) == first
    assert filled(first, 4096) == bytes(4096)
    larger = workspaces.of_stream(0, 5, "scratch", 4097)
    assert larger != first
    assert workspaces.of_stream(0, 5, "scratch", 8192) == larger  # it has at least doubled
    others = [workspaces.of_stream(*place, 100) for place in ((0, 6, "scratch"), (1, 5, "scratch"), (0, 5, "counters"))]
    assert len({first, larger, *others}) == 5
    assert len(fake.memory) == 5
    assert fake.synchronized  # the zeros are there before a launch on another stream reads them


def test_memory_may_be_taken_while_a_stream_is_captured(fake):
    fake.capture = 1
    assert workspaces.of_stream(0, 5, "scratch", 100)
    assert fake.mode == GLOBAL  # and then nothing else is allowed again
    with pytest.raises(DeviceError, match="STREAM_CAPTURE_UNSUPPORTED"):
        driver.check(fake.cuMemAlloc(8))
    with pytest.raises(ZeroDivisionError), driver.relaxed():
        1 / 0  # noqa: B018
    assert fake.mode == GLOBAL


def test_launches_of_a_graph_share_counters_that_are_its_own(fake):
    outside = workspaces.of_stream(0, 5, "counters", 64)
    fake.capture = 1
    first = workspaces.of_graph(0, 5, 64)
    assert workspaces.of_graph(0, 5, 4096) == first
    branch = workspaces.of_graph(0, 6, 64)  # it may run beside the other
    larger = workspaces.of_graph(0, 5, 5000)
    fake.capture = 2
    second = workspaces.of_graph(0, 5, 64)
    assert len({outside, first, branch, larger, second}) == 5
    assert [len(fake.graphs[f"graph {n}"]) for n in (1, 2)] == [3, 1]
    assert filled(larger, 8192) == bytes(8192)


def test_counters_come_back_when_their_graph_is_destroyed(fake):
    fake.capture = 1
    first = workspaces.of_graph(0, 5, 64)
    fake.capture = 2
    second = workspaces.of_graph(0, 5, 64)
    fake.destroy(1)
    fake.capture = 3
    assert workspaces.of_graph(1, 5, 64) not in (first, second)  # another GPU's
    assert workspaces.of_graph(0, 5, 64) == first
    assert workspaces.of_graph(0, 6, 64) not in (first, second)  # lent again, and the second graph is there
    fake.destroy(3)
    fake.capture = 4
    assert workspaces.of_graph(0, 5, 64) == first


def test_drivers_that_load_in_captures(fake):
    assert driver.loads_in_captures()
    fake.version = 12020
    assert not driver.loads_in_captures()


def test_what_a_stream_captures(fake):
    assert driver.capture(5) == (0, None, ())
    fake.capture = 3
    assert driver.capture(5)[:2] == (3, "graph 3")

"""Launches: packing of parameters and calls of the driver, seen by a driver that only records."""

import ctypes
import struct

import pytest
from kernels import add, source

from kgen.codegen.source import Integer, Pointer, Scalar
from kgen.dsl.errors import ArgumentError, DeviceError
from kgen.dsl.target import Arch
from kgen.dsl.types import f32, f64, i32
from kgen.gpu import driver, overlap
from kgen.gpu.compile import compile
from kgen.gpu.kernel import encode, load


class Recorder:
    """The driver's bindings, with every call that would need a GPU replaced by a record of it."""

    def __init__(self):
        from cuda.bindings import driver as real

        self.real = real
        self.calls, self.results = [], []

    def __getattr__(self, name):
        found = getattr(self.real, name)
        if not name.startswith("cu"):
            return found

        def call(*arguments):
            if name.startswith("cuLaunch"):
                parameters = arguments[2] if name == "cuLaunchKernelEx" else arguments[9]
                self.calls.append((name, arguments, read_parameters(parameters)))
                return (self.results.pop(0) if self.results else self.real.CUresult.CUDA_SUCCESS,)
            self.calls.append((name, arguments))
            captures_nothing = self.real.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
            told = {
                "cuGetErrorString": (b"text",),
                "cuGetProcAddress": (9, 0),
                "cuStreamIsCapturing": (captures_nothing,),
            }
            value = told.get(name, (7,))
            silent = ("cuFuncSetAttribute", "cuCtxPushCurrent", "cuModuleUnload")
            return (self.real.CUresult.CUDA_SUCCESS, *(() if name in silent else value))

        return call

    def named(self, name):
        return [call for call in self.calls if call[0] == name]


def read_parameters(address):
    """The five parameters of `add`, as a GPU would read them."""
    pointers = (ctypes.c_uint64 * 5).from_address(address)
    raw = [ctypes.string_at(pointer, 8) for pointer in pointers]
    return (
        *(struct.unpack("<Q", data)[0] for data in raw[:3]),
        *struct.unpack("<q", raw[3]),
        *struct.unpack("<f", raw[4][:4]),
    )


@pytest.fixture
def recorder(monkeypatch):
    made = Recorder()
    monkeypatch.setattr(driver, "api", lambda: made)
    monkeypatch.setattr(driver, "device_count", lambda: 2)
    driver.primary_context.cache_clear()
    yield made
    driver.primary_context.cache_clear()


def kernel(made=None):
    made = made or add()
    return load(compile(add(), Arch(80)), made, 0)


def test_launch_passes_grid_block_and_arguments(recorder):
    kernel().launch([0x10, 0x20, 2**64 - 16, 10**12, 0.5], (4, 2), stream=99)
    [(_, arguments, parameters)] = recorder.named("cuLaunchKernel")
    assert arguments[1:9] == (4, 2, 1, 256, 1, 1, 0, 99)
    assert parameters == (0x10, 0x20, 2**64 - 16, 10**12, 0.5)


def test_a_prepared_launch_is_repeated_with_new_pointers(recorder):
    launch = kernel().prepare([1, 2, 3, 64, 2.0], (1, 1, 1))
    launch()
    launch(4, 5, 6, stream=7)
    launch.set_pointer(1, 8)
    launch.set(4, -1.5)
    launch()
    seen = [(arguments[8], parameters) for _, arguments, parameters in recorder.named("cuLaunchKernel")]
    assert seen == [(0, (1, 2, 3, 64, 2.0)), (7, (4, 5, 6, 64, 2.0)), (0, (4, 8, 6, 64, -1.5))]


@pytest.mark.parametrize("cluster", [(1, 1, 1), (2, 1, 1)])
def test_a_raw_launch_is_the_same_in_memory(recorder, cluster):
    class Config(ctypes.Structure):  # CUlaunchConfig
        _fields_ = [(name, ctypes.c_uint * 3) for name in ("grid", "block")]
        _fields_ += [("shared", ctypes.c_uint), ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p)]
        _fields_ += [("count", ctypes.c_uint)]

    made = add()
    loaded = kernel(source(made.body, "add", made.params, made.ptx, shared_bytes=4096, cluster=cluster))
    first, again = (loaded.prepare([1, 2, 3, 64, 2.0], (4, 2)) for _ in range(2))
    raw = again.raw(first)
    config = Config.from_address(raw.config)
    assert (*config.grid, *config.block, config.shared) == (4, 2, 1, 256, 1, 1, 4096)
    assert config.count == (cluster != (1, 1, 1)) == bool(config.attributes)
    assert (raw.function, raw.launch, raw.maps) == (7, 9, ())
    slots = (ctypes.c_uint64 * 5).from_address(raw.slots)
    slots[again.slot(1)] = 77
    assert read_parameters(raw.parameters) == (1, 77, 3, 64, 2.0)
    first()
    assert [call[2] for call in recorder.calls if call[0].startswith("cuLaunch")] == [(1, 2, 3, 64, 2.0)]


def test_pointers_keep_their_place_among_other_parameters(recorder):
    x, y, z, n, scale = add().params
    mixed = (n, x, scale, y, z)
    launch = kernel(source(add().body, "add", mixed, add().ptx)).prepare([10, 1, 0.5, 2, 3], (1,))
    launch(4, 5, 6)
    launch.set_pointer(4, 7)
    launch.set(0, 11)
    launch()
    seen = [arguments[9] for _, arguments, _ in recorder.named("cuLaunchKernel")]
    assert seen[0] == seen[1]
    slots = [ctypes.c_uint64.from_address(address).value for address in (ctypes.c_uint64 * 5).from_address(seen[0])]
    assert slots == [11, 4, struct.unpack("<I", struct.pack("<f", 0.5))[0], 5, 7]


def test_wrong_numbers_of_arguments(recorder):
    with pytest.raises(ArgumentError, match=r"takes 5 arguments \(x, y, z, n, scale\), got 2"):
        kernel().prepare([1, 2], (1,))
    with pytest.raises(ArgumentError, match=r"takes 3 addresses, got \(1, 2\)"):
        kernel().prepare([1, 2, 3, 4, 5], (1,))(1, 2)


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 65536, 1), (1, 1, 65536), (2**31, 1, 1), (-1,)])
def test_grids_outside_the_limits(recorder, grid):
    with pytest.raises(ArgumentError, match="grid"):
        kernel().prepare([1, 2, 3, 4, 5], grid)


def test_shared_memory_beyond_the_default_is_asked_for(recorder):
    made = add()
    kernel(source(made.body, "add", made.params, made.ptx, shared_bytes=48 * 1024))
    assert not recorder.named("cuFuncSetAttribute")
    kernel(source(made.body, "add", made.params, made.ptx, shared_bytes=100_000))
    [(_, (_, attribute, value))] = recorder.named("cuFuncSetAttribute")
    assert attribute == recorder.real.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert value == 100_000


def test_clusters_go_through_the_extended_launch(recorder):
    made = add()
    wide = kernel(source(made.body, "add", made.params, made.ptx, cluster=(2, 1, 1), shared_bytes=1024))
    wide.launch([1, 2, 3, 4, 5.0], (6, 1, 1), stream=3)
    [(_, (config, _, _, _), parameters)] = recorder.named("cuLaunchKernelEx")
    assert parameters == (1, 2, 3, 4, 5.0)
    assert (config.gridDimX, config.blockDimX, config.sharedMemBytes, int(config.hStream)) == (6, 256, 1024, 3)
    [attribute] = config.attrs
    assert attribute.id == recorder.real.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    cluster = attribute.value.clusterDim
    assert (cluster.x, cluster.y, cluster.z) == (2, 1, 1)
    with pytest.raises(ArgumentError, match="does not divide into clusters of 2 x 1 x 1"):
        wide.prepare([1, 2, 3, 4, 5], (3, 1, 1))


@pytest.mark.parametrize("cluster", [(1, 1, 1), (2, 1, 1)])
def test_cooperative_launches_say_so(recorder, cluster):
    made = add()
    together = kernel(source(made.body, "add", made.params, made.ptx, cluster=cluster, cooperative=True))
    together.launch([1, 2, 3, 4, 5.0], (6, 1, 1), stream=3)
    [(_, (config, _, _, _), parameters)] = recorder.named("cuLaunchKernelEx")
    assert parameters == (1, 2, 3, 4, 5.0)
    ids = recorder.real.CUlaunchAttributeID
    found = {attribute.id: attribute.value for attribute in config.attrs}
    assert config.numAttrs == len(found) == (1 if cluster == (1, 1, 1) else 2)
    assert found[ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE].cooperative == 1
    if cluster != (1, 1, 1):
        assert found[ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION].clusterDim.x == 2


@pytest.mark.parametrize("cluster", [(1, 1, 1), (2, 1, 1)])
def test_overlapping_launches_say_so(recorder, cluster):
    made = add()
    early = kernel(source(made.body, "add", made.params, made.ptx, cluster=cluster, pdl=True))
    early.launch([1, 2, 3, 4, 5.0], (6, 1, 1), stream=3)
    [(_, (config, _, _, _), _)] = recorder.named("cuLaunchKernelEx")
    attribute = config.attrs[-1]
    assert config.numAttrs == (1 if cluster == (1, 1, 1) else 2)
    assert attribute.id == recorder.real.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert attribute.value.programmaticStreamSerializationAllowed == 1


def test_launches_start_early_where_they_may(recorder, monkeypatch):
    made, allowed = add(), [True, False, True]
    monkeypatch.setattr(overlap, "allowed", lambda stream: allowed.pop(0))
    early = kernel(source(made.body, "add", made.params, made.ptx, cluster=(2, 1, 1), pdl=True))
    launch, counts = early.prepare([1, 2, 3, 4, 5.0], (6, 1, 1)), []
    for _ in range(3):
        launch(stream=3)
        counts.append(recorder.named("cuLaunchKernelEx")[-1][1][0].numAttrs)
    assert counts == [2, 1, 2]


@pytest.mark.parametrize("cluster", [(1, 1, 1), (2, 1, 1)])
def test_none_starts_early_where_none_is_to(recorder, monkeypatch, cluster):
    made = add()
    monkeypatch.setattr(overlap, "allowed", lambda stream: True)
    early = kernel(source(made.body, "add", made.params, made.ptx, cluster=cluster, pdl=True))
    early.prepare([1, 2, 3, 4, 5.0], (6, 1, 1), early=False)(stream=3)
    [(_, (config, *_), _)] = recorder.named("cuLaunchKernelEx")
    assert config.numAttrs == (cluster != (1, 1, 1))


def test_looping_launches_get_no_more_clusters_than_fit(recorder):
    made = add()
    persistent = kernel(source(made.body, "add", made.params, made.ptx, cluster=(2, 1, 1), persistent=True))
    for given, launched in ((100, 14), (14, 14), (6, 6)):
        persistent.launch([1, 2, 3, 4, 5.0], (given, 1, 1))
        _, (config, *_), _ = recorder.named("cuLaunchKernelEx")[-1]
        assert config.gridDimX == launched  # the recorder says 7 to every question
    [(_, (_, asked))] = recorder.named("cuOccupancyMaxActiveClusters")
    assert (asked.gridDimX, asked.blockDimX, asked.numAttrs) == (2, 256, 1)


def test_a_cluster_of_sixteen_is_asked_for(recorder):
    made = add()
    kernel(source(made.body, "add", made.params, made.ptx, cluster=(16, 1, 1)))
    [(_, (_, attribute, value))] = recorder.named("cuFuncSetAttribute")
    assert attribute == recorder.real.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    assert value == 1


def test_a_thread_without_a_context_is_given_one(recorder):
    launch = kernel().prepare([1, 2, 3, 4, 5], (1,))
    recorder.calls.clear()
    recorder.results = [recorder.real.CUresult.CUDA_ERROR_INVALID_CONTEXT]
    launch()
    assert [call[0] for call in recorder.calls] == [
        "cuLaunchKernel", "cuCtxPushCurrent", "cuLaunchKernel", "cuCtxPopCurrent",
    ]  # fmt: skip


def test_errors_carry_name_number_and_text(recorder):
    launch = kernel().prepare([1, 2, 3, 4, 5], (1,))
    recorder.results = [recorder.real.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS]
    with pytest.raises(DeviceError, match=r"launching add on GPU 0: CUDA_ERROR_ILLEGAL_ADDRESS \(text\)") as caught:
        launch()
    assert caught.value.code == 700


def test_close_unloads_once(recorder):
    loaded = kernel()
    loaded.close()
    loaded.close()
    assert len(recorder.named("cuModuleUnload")) == 1


def test_no_such_device(recorder):
    with pytest.raises(DeviceError, match="no GPU 5: this process sees 2"):
        load(compile(add(), Arch(80)), add(), 5)


@pytest.mark.parametrize(
    ("param", "value", "data"),
    [
        (Pointer("p", f32, "x", "in"), 2**64 - 1, b"\xff" * 8),
        (Integer("n", 1), -2, b"\xfe\xff\xff\xff"),
        (Integer("n", 1, bits=64), -2, b"\xfe" + b"\xff" * 7),
        (Scalar("a", f32), 1.5, struct.pack("<f", 1.5)),
        (Scalar("a", f32), 3, struct.pack("<f", 3.0)),
        (Scalar("a", f64), 0.1, struct.pack("<d", 0.1)),
        (Scalar("a", f64), float("inf"), struct.pack("<d", float("inf"))),
        (Scalar("a", i32), -7, struct.pack("<i", -7)),
    ],
)
def test_encode(param, value, data):
    assert encode(param, value) == int.from_bytes(data, "little")


@pytest.mark.parametrize(
    ("param", "value"),
    [
        (Pointer("p", f32, "x", "in"), -1),
        (Integer("n", 1), 2**31),
        (Integer("n", 1, bits=64), 2**63),
        (Integer("n", 1), 2.0),
        (Scalar("a", f32), "x"),
        (Scalar("a", f32), 1e39),
        (Scalar("a", i32), None),
    ],
)
def test_values_out_of_range(param, value):
    with pytest.raises(ArgumentError, match=f"parameter {param.name} takes a"):
        encode(param, value)

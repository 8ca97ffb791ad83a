"""Tensor maps: what is asked of the driver, what is refused before, and when a launch renews them."""

import ctypes
from dataclasses import replace

import pytest
from kernels import source

from kgen.codegen.source import Extent, Integer, Pointer, TensorMap
from kgen.dsl.errors import ArgumentError, DeviceError
from kgen.dsl.types import DTYPES, bf16, e4m3, f16, f32, f64, tf32
from kgen.gpu import driver, tensor_map
from kgen.gpu.kernel import PreparedLaunch
from kgen.gpu.tensor_map import EncodedMap, check

MAP = TensorMap("map_a", f16, "a", "in", (1000, 77), (1024,), (64, 128), 128)
EXTENT = Extent((1000, 77), (1024,))


class Door:
    """The driver's two functions, by real addresses; `calls` holds what they were called with, `result` what they say."""

    def __init__(self, api):
        self.calls, self.result = [], 0
        number, word, pointer = ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p
        words, longs = ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint64)

        def encode(location, dtype, rank, address, sizes, strides, box, steps, *options):
            ctypes.memset(location, 0x5A, 128)
            lists = (sizes[:rank], strides[: rank - 1], box[:rank], steps[:rank])
            self.calls.append(("encode", location, dtype, address, *lists, options))
            return self.result

        def renew(location, address):
            self.calls.append(("replace", location, address))
            return self.result

        kept = (
            ctypes.CFUNCTYPE(
                number, pointer, number, word, pointer, longs, longs, words, words, number, number, number, number
            )(encode),
            ctypes.CFUNCTYPE(number, pointer, pointer)(renew),
        )
        self.kept = dict(zip((b"cuTensorMapEncodeTiled", b"cuTensorMapReplaceAddress"), kept))
        self.api = api

    def __getattr__(self, name):
        if name == "cuGetProcAddress":
            return self.find
        if name == "cuGetErrorString":
            return lambda result: (0, b"text")
        return getattr(self.api, name)

    def find(self, name, version, flags):
        assert (version, flags) == (12000, 0)
        return 0, ctypes.cast(self.kept[name], ctypes.c_void_p).value, None


@pytest.fixture
def door(monkeypatch):
    made = Door(driver.api())
    monkeypatch.setattr(driver, "api", lambda: made)
    tensor_map.functions.cache_clear()
    yield made
    tensor_map.functions.cache_clear()


def test_the_driver_is_given_bytes_and_elements(door):
    view = EncodedMap(MAP, EXTENT)
    assert door.calls == []
    view.show(0x7000)
    api = door.api
    assert door.calls == [
        (
            "encode",
            view.location,
            int(api.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16),
            0x7000,
            [1000, 77],
            [2048],
            [64, 128],
            [1, 1],
            (
                int(api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
                int(api.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B),
                int(api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B),
                int(api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
            ),
        )
    ]
    assert view.location % 128 == 0
    assert ctypes.string_at(view.location, 128) == b"\x5a" * 128


@pytest.mark.parametrize("swizzle", [0, 32, 64])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_dtype_has_one_of_its_width(door, dtype, swizzle):
    box = (32 // dtype.bytes, 2, 1, 1, 256)
    made = TensorMap("m", dtype, "a", "in", (9,) * 5, (16, 32, 64, 0), box, swizzle)
    EncodedMap(made, Extent((9,) * 5, (16, 32, 64, 0))).show(0x10)
    [(_, _, kind, _, sizes, strides, *_, options)] = door.calls
    name = door.api.CUtensorMapDataType(kind).name.removeprefix("CU_TENSOR_MAP_DATA_TYPE_")
    widths = {
        "UINT8": 1,
        "FLOAT16": 2,
        "BFLOAT16": 2,
        "FLOAT32": 4,
        "TFLOAT32": 4,
        "INT32": 4,
        "FLOAT64": 8,
        "INT64": 8,
    }
    assert widths[name] == dtype.bytes
    assert ("FLOAT" in name) == (dtype.is_float and dtype.bytes > 1)
    assert (sizes, strides) == ([9] * 5, [16 * dtype.bytes, 32 * dtype.bytes, 64 * dtype.bytes, 0])
    swizzles = door.api.CUtensorMapSwizzle
    assert swizzles(options[1]).name == f"CU_TENSOR_MAP_SWIZZLE_{f'{swizzle}B' if swizzle else 'NONE'}"


def test_a_map_of_one_axis(door):
    EncodedMap(replace(MAP, sizes=(7,), strides=(), box=(64,)), Extent((7,), ())).show(0x40)
    assert door.calls[0][4:8] == ([7], [], [64], [1])


@pytest.mark.parametrize(
    ("changes", "extent", "told"),
    [
        ({"box": ()}, Extent((), ()), "expected 1 to 5 axes, got 0"),
        ({"box": (8,) * 6}, Extent((8,) * 6, (8,) * 5), "expected 1 to 5 axes, got 6"),
        ({}, Extent((1000,), ()), r"expected 2 sizes and 1 strides for its box \(64, 128\)"),
        ({}, Extent((1000, 77), (1024, 2)), "expected 2 sizes and 1 strides"),
        ({"box": (64, 257)}, EXTENT, r"1 to 256 elements along each axis, got \(64, 257\)"),
        ({"box": (64, 0)}, EXTENT, "1 to 256 elements"),
        ({"box": (12, 8)}, EXTENT, "rows are multiples of 16 bytes, got 12 elements of f16"),
        ({"box": (72, 8)}, EXTENT, "within the 128 bytes of its swizzle, got 144 bytes"),
        ({"box": (32, 8), "swizzle": 32}, EXTENT, "within the 32 bytes of its swizzle, got 64 bytes"),
        ({}, Extent((0, 77), (1024,)), r"sizes of 1 to 2\^32, got \(0, 77\)"),
        ({}, Extent((1000, 2**32 + 1), (1024,)), r"sizes of 1 to 2\^32"),
        ({}, Extent((1000, 77), (1001,)), r"multiples of 16 bytes below 2\^40, got \(1001,\) elements of f16"),
        ({}, Extent((1000, 77), (2**39,)), r"below 2\^40"),
        ({}, Extent((1000, 77), (-8,)), r"multiples of 16 bytes"),
    ],
)
def test_what_no_accelerator_takes(changes, extent, told):
    with pytest.raises(ArgumentError, match=told):
        check(replace(MAP, **changes), extent)


@pytest.mark.parametrize(
    ("map", "extent"),
    [
        (MAP, EXTENT),
        (replace(MAP, dtype=e4m3, box=(128, 256)), Extent((2**32, 1), (16,))),
        (replace(MAP, dtype=tf32, box=(32, 1)), Extent((1, 2**32), (4,))),
        (replace(MAP, dtype=f64, box=(2, 1), swizzle=32), Extent((1, 1), (2,))),
        (replace(MAP, dtype=bf16, box=(256, 1), swizzle=0), Extent((1, 1), (0,))),
    ],
)
def test_what_just_fits(map, extent):
    check(map, extent)


def test_what_the_driver_refuses(door):
    view = EncodedMap(MAP, EXTENT)
    door.result = 1
    assert (view.show(0x80), view.address) == (1, 0)
    door.result = 0
    assert (view.show(0x80), view.address) == (0, 0x80)
    assert [call[0] for call in door.calls] == ["encode", "encode"]


def test_a_driver_without_tensor_maps(door):
    door.find = lambda name, version, flags: (0, 0, None)
    with pytest.raises(DeviceError, match=r"driver has no cuTensorMapEncodeTiled; .* needs a driver for CUDA 12"):
        EncodedMap(MAP, EXTENT)


@pytest.mark.parametrize("address", [0, 8, 0x1001])
def test_addresses_are_multiples_of_sixteen(door, address):
    view = EncodedMap(MAP, EXTENT)
    with pytest.raises(ArgumentError, match=f"map_a: expected an address that is a multiple of 16, got {address:#x}"):
        view.show(address)
    assert (door.calls, view.address) == ([], 0)


class Noted:
    """A kernel that notes what a GPU would read at each launch: maps by their place, numbers by their value."""

    def __init__(self, made):
        self.source, self.seen = made, []

    def submitter(self, geometry, parameters, early):
        places = (ctypes.c_uint64 * len(self.source.params)).from_address(parameters)

        def submit(stream):
            kinds = self.source.params
            read = [
                p if isinstance(k, TensorMap) else ctypes.c_uint64.from_address(p).value for k, p in zip(kinds, places)
            ]
            self.seen.append((stream, read))
            return 0

        return submit


def test_a_launch_renews_the_maps_whose_address_changed(door):
    other = replace(MAP, name="map_out", operand="out", access="out")
    params = (MAP, Integer("n", 1), Pointer("bias", f32, "bias", "in"), other)
    kernel = Noted(source("", "k", params))
    launch = PreparedLaunch(kernel, [0, 5, 0, 0], (1,), {0: EXTENT, 3: EXTENT})
    assert door.calls == []
    launch(0x100, 0x201, 0x300)
    launch(0x100, 0x204, 0x300, stream=3)
    launch(0x100, 0x204, 0x400)
    launch.set_pointer(0, 0x500)
    launch()
    first, second = (call[1] for call in door.calls[:2])
    assert [(call[0], call[1], call[3] if call[0] == "encode" else call[2]) for call in door.calls] == [
        ("encode", first, 0x100),
        ("encode", second, 0x300),
        ("replace", second, 0x400),
        ("replace", first, 0x500),
    ]
    assert kernel.seen == [
        (0, [first, 5, 0x201, second]),
        (3, [first, 5, 0x204, second]),
        (0, [first, 5, 0x204, second]),
        (0, [first, 5, 0x204, second]),
    ]


def test_a_misaligned_address_launches_nothing(door):
    kernel = Noted(source("", "k", (MAP,)))
    launch = PreparedLaunch(kernel, [0x100], (1,), {0: EXTENT})
    with pytest.raises(ArgumentError, match="map_a: expected an address that is a multiple of 16, got 0x108"):
        launch(0x108)
    launch(0x110)
    assert len(kernel.seen) == 1


def test_a_map_needs_its_extent(door):
    with pytest.raises(
        ArgumentError, match=r"kernel k: the tensor map map_a needs its sizes and strides; pass Bound\.maps"
    ):
        PreparedLaunch(Noted(source("", "k", (MAP,))), [0x100], (1,))

"""EncodedMap: a tensor as the tensor memory accelerator sees it, in the driver's 128 bytes.

The driver's two functions are called by their addresses, not through cuda.bindings: those keep the 128 bytes inside a
Python object, which lies at a multiple of 16 bytes where the driver asks for 64.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from kgen.codegen.source import Extent, TensorMap
from kgen.dsl.errors import ArgumentError
from kgen.dsl.types import DType, bf16, bool_, e4m3, e5m2, f16, f32, f64, i8, i32, i64, tf32
from kgen.gpu import driver

#: The accelerator's dtypes, as the names of the driver's constants end. What it only copies may go by its width; f32 that is
#: to be multiplied as tf32 is rounded on the way to shared memory (wgmma itself would cut it).
DATA_TYPES: dict[DType, str] = {
    f16: "FLOAT16",
    bf16: "BFLOAT16",
    f32: "FLOAT32",
    tf32: "TFLOAT32",
    f64: "FLOAT64",
    i32: "INT32",
    i64: "INT64",
    i8: "UINT8",
    e4m3: "UINT8",
    e5m2: "UINT8",
    bool_: "UINT8",
}

#: Bytes that addresses, strides and the rows of a box are multiples of.
UNIT = 16
_SIZE = 128
_SIZE_LIMIT, _STRIDE_LIMIT = 2**32, 2**40
#: The driver's functions.
ENCODE, REPLACE = "cuTensorMapEncodeTiled", "cuTensorMapReplaceAddress"

_Encode = Callable[..., int]
_Replace = Callable[[int, int], int]


def check(map: TensorMap, extent: Extent) -> None:
    """Raises ArgumentError, with the limit and what is beyond it, where no accelerator takes such a map."""

    def refuse(expected: str, got: object) -> ArgumentError:
        return ArgumentError(f"tensor map {map.name} of {map.operand}: expected {expected}, got {got}")

    rank, width = len(map.box), map.dtype.bytes
    if not 1 <= rank <= 5:
        raise refuse("1 to 5 axes", rank)
    if (len(extent.sizes), len(extent.strides)) != (rank, rank - 1):
        raise refuse(f"{rank} sizes and {rank - 1} strides for its box {map.box}", extent)
    if min(map.box) < 1 or max(map.box) > 256:
        raise refuse("a box of 1 to 256 elements along each axis", map.box)
    row = map.box[0] * width
    if row % UNIT:
        raise refuse(f"a box whose rows are multiples of {UNIT} bytes", f"{map.box[0]} elements of {map.dtype}")
    if map.swizzle and row > map.swizzle:
        raise refuse(f"rows of a box within the {map.swizzle} bytes of its swizzle", f"{row} bytes")
    if min(extent.sizes) < 1 or max(extent.sizes) > _SIZE_LIMIT:
        raise refuse("sizes of 1 to 2^32", extent.sizes)
    if map.access == "out" and extent.sizes[0] * width % UNIT:
        raise refuse(
            f"rows of multiples of {UNIT} bytes where it stores: it writes no less", f"{extent.sizes[0]} elements"
        )
    for stride in extent.strides:
        if stride * width % UNIT or not 0 <= stride * width < _STRIDE_LIMIT:
            raise refuse(
                f"strides that are multiples of {UNIT} bytes below 2^40", f"{extent.strides} elements of {map.dtype}"
            )


class EncodedMap:
    """A tensor map in memory of its own, `location`, for one tensor after another of the same sizes and strides.

    `address` is that of the tensor shown, in bytes; 0 before the first. Raises ArgumentError for what `check` refuses.
    """

    def __init__(self, map: TensorMap, extent: Extent) -> None:
        check(map, extent)
        self.name = map.name
        self.address = 0
        self._memory = (ctypes.c_char * (2 * _SIZE))()
        self.location = -(-ctypes.addressof(self._memory) // _SIZE) * _SIZE
        encode, self._replace = functions()
        width, rank = map.dtype.bytes, len(map.box)
        wide, ones, box = _arrays(map.box)
        # The stride of the contiguous axis is not among those that the driver takes; a map of one axis has no other.
        sizes, strides = wide(*extent.sizes), wide(*[s * width for s in extent.strides])
        dtype, *options = _constants(map.dtype, map.swizzle)
        self._encode: Callable[[int], int] = lambda address: encode(
            self.location, dtype, rank, address, sizes, strides, box, ones, *options
        )

    def show(self, address: int) -> int:
        """Makes it the map of the tensor at `address`, and returns the driver's CUresult as a number. Raises ArgumentError."""
        if address % UNIT or not address:
            raise ArgumentError(
                f"tensor map {self.name}: expected an address that is a multiple of {UNIT}, got {address:#x}"
            )
        result = self._replace(self.location, address) if self.address else self._encode(address)
        if not result:
            self.address = address
        return result


@functools.cache
def _arrays(box: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """The type of sizes and strides, and what does not change with them: that all elements are taken, and the box."""
    rank = len(box)
    narrow = ctypes.c_uint32 * rank
    return ctypes.c_uint64 * rank, narrow(*[1] * rank), narrow(*box)


@functools.cache
def _constants(dtype: DType, swizzle: int) -> tuple[int, ...]:
    """The driver's numbers of a map's dtype, and of how it lies and is read."""
    api, width = driver.api(), f"{swizzle}B" if swizzle else "NONE"
    return (
        int(getattr(api.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{DATA_TYPES[dtype]}")),
        int(api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        int(getattr(api.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{width}")),
        int(api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B),
        int(api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
    )


@functools.lru_cache(maxsize=1)
def functions() -> tuple[_Encode, _Replace]:
    """The driver's cuTensorMapEncodeTiled and cuTensorMapReplaceAddress. Raises DeviceError where it has none."""
    pointer, number, word = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32
    encode: Any = ctypes.CFUNCTYPE(
        number, pointer, number, word, pointer, pointer, pointer, pointer, pointer, number, number, number, number
    )
    replace: Any = ctypes.CFUNCTYPE(number, pointer, pointer)
    return encode(driver.function(ENCODE)), replace(driver.function(REPLACE))

"""Map: a tensor that TMA copies from or to, as the argument of a TensorMap parameter; and its 128 bytes here."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass

from kgen.codegen.source import Extent, TensorMap
from kgen.dsl.errors import ArgumentError
from kgen.dsl.types import tf32
from kgen.emulator.buffer import Buffer
from kgen.gpu.tensor_map import UNIT, check

#: As in cpp/machine.h: keep both in step.
_LAYOUT = struct.Struct("<Q4I5Q4Q6I8x")
_MAGIC = 0x6D616D74
_ALIGNMENT = 64


@dataclass(frozen=True)
class Map:
    """A tensor in a buffer: `sizes` in elements, the contiguous axis first; `strides`, in elements, of the other axes."""

    buffer: Buffer
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def encode(param: TensorMap, map: Map) -> ctypes.Array[ctypes.c_char]:
    """The parameter's bytes, aligned as a kernel wants them. Raises ArgumentError for what no GPU would take."""
    check(param, Extent(map.sizes, map.strides))
    buffer, width = map.buffer, param.dtype.bytes
    if buffer.address % UNIT:
        raise ArgumentError(
            f"tensor map {param.name}: expected an address that is a multiple of {UNIT}, got {buffer.address:#x}"
        )
    steps = (1, *map.strides)
    shown = (1 + sum((size - 1) * step for size, step in zip(map.sizes, steps))) * width
    if shown > buffer.bytes:
        raise ArgumentError(
            f"tensor map {param.name}: sizes {map.sizes} and strides {map.strides} reach over {shown} bytes, "
            f"its buffer has {buffer.bytes}"
        )
    rank = len(map.sizes)

    def padded(values: tuple[int, ...], count: int) -> tuple[int, ...]:
        return (*values, *(0,) * (count - len(values)))

    data = _LAYOUT.pack(
        buffer.address,
        _MAGIC,
        width,
        rank,
        param.swizzle,
        *padded(map.sizes, 5),
        *padded(tuple(stride * width for stride in map.strides), 4),
        *padded(param.box, 5),
        param.dtype is tf32,
    )
    room = ctypes.create_string_buffer(len(data) + _ALIGNMENT)
    aligned = (ctypes.c_char * len(data)).from_buffer(room, -ctypes.addressof(room) % _ALIGNMENT)
    aligned.raw = data
    return aligned

"""DeviceBuffer: a piece of GPU memory, for what needs no torch."""

from __future__ import annotations

from typing import Any

from kgen.dsl.errors import ArgumentError
from kgen.gpu import driver
from kgen.gpu.events import Stream


class DeviceBuffer:
    """`size` bytes of GPU memory at `address`, not initialised. Freed by `close` or at the end of a `with` block."""

    def __init__(self, size: int, device: int = 0) -> None:
        if size <= 0:
            raise ArgumentError(f"a device buffer needs at least one byte, got {size}")
        self.size, self.device = size, device
        with driver.current(device):
            self.address = int(driver.check(driver.api().cuMemAlloc(size), f"allocating {size} bytes on GPU {device}"))

    @classmethod
    def of(cls, data: bytes | bytearray | memoryview, device: int = 0) -> DeviceBuffer:
        """A buffer that holds a copy of `data`."""
        buffer = cls(memoryview(data).nbytes, device)
        buffer.write(data)
        return buffer

    @classmethod
    def zeroed(cls, size: int, device: int = 0) -> DeviceBuffer:
        """A buffer of zeros. It may be made while streams are captured: it is part of no graph."""
        with driver.relaxed():
            buffer, stream = cls(size, device), Stream(device)
            with driver.current(device):
                driver.check(driver.api().cuMemsetD8Async(buffer.address, 0, size, stream.handle))
            stream.synchronize()
            stream.close()
        return buffer

    def fill(self, byte: int) -> None:
        """Sets every byte; returns when it is done."""
        with driver.current(self.device):
            driver.check(driver.api().cuMemsetD8(self.address, byte, self.size))
            driver.check(driver.api().cuCtxSynchronize())

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Copies `data`, of exactly `size` bytes, to the GPU."""
        content = bytes(data)
        if len(content) != self.size:
            raise ArgumentError(f"the buffer has {self.size} bytes, the data {len(content)}")
        with driver.current(self.device):
            driver.check(driver.api().cuMemcpyHtoD(self.address, content, self.size))

    def read(self) -> bytes:
        """The content, after all work of the GPU on the default stream."""
        content = bytearray(self.size)
        with driver.current(self.device):
            driver.check(driver.api().cuMemcpyDtoH(content, self.address, self.size))
        return bytes(content)

    def close(self) -> None:
        """Frees the memory; the second time does nothing."""
        if self.address:
            with driver.current(self.device):
                driver.check(driver.api().cuMemFree(self.address))
            self.address = 0

    def __enter__(self) -> DeviceBuffer:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

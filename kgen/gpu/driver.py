"""The CUDA driver: checked calls, devices, and the primary context that kgen shares with torch."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from kgen.dsl.errors import DeviceError

#: Results of cuInit that mean "no GPU here" and not "something is broken".
_NO_DEVICE = ("CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_STUB_LIBRARY")
#: The CUDA whose forms of the driver's functions are called by their addresses.
_CUDA = 12000


def api() -> Any:
    """The driver's bindings, cuda.bindings.driver."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(f"cuda-python cannot be imported ({error}); pip install cuda-python") from error
    return driver


def failure(result: Any, what: str = "") -> DeviceError:
    """The error for a CUresult that is not success: its name, its meaning and its number."""
    try:
        text = api().cuGetErrorString(result)[1]
    except RuntimeError:
        text = None
    meaning = text.decode() if isinstance(text, bytes) else "unknown error"
    return DeviceError(f"{what}{': ' if what else ''}{result.name} ({meaning})", int(result))


def check(returned: tuple[Any, ...], what: str = "") -> Any:
    """The value or values that a driver call returned beside its CUresult. Raises DeviceError when it failed."""
    result, *values = returned
    if result != 0:
        raise failure(result, what)
    return values[0] if len(values) == 1 else tuple(values)


class Capture(NamedTuple):
    """What a stream captures: its number, unique in this process, the graph, and the nodes that the next one follows."""

    number: int
    graph: Any
    last: Sequence[Any]


def capture(stream: int) -> Capture:
    """The capture that a stream is part of; of number 0 where there is none."""
    status, number, graph, last, *_ = check(api().cuStreamGetCaptureInfo(stream), "asking what a stream captures")
    active = status == api().CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    return Capture(int(number), graph, last) if active else Capture(0, None, ())


@contextmanager
def relaxed() -> Iterator[None]:
    """Within it this thread may load modules and allocate memory while streams are captured, here or in other threads.

    Nothing of that becomes part of a graph. Modules take a driver that `loads_in_captures`.
    """
    exchange, modes = api().cuThreadExchangeStreamCaptureMode, api().CUstreamCaptureMode
    before = check(exchange(modes.CU_STREAM_CAPTURE_MODE_RELAXED))
    try:
        yield
    finally:
        check(exchange(before))


def loads_in_captures() -> bool:
    """Whether the driver can load modules while a stream is captured, as those of CUDA 12.3 and newer."""
    return _version() >= 12030


@functools.lru_cache(maxsize=1)
def device_count() -> int:
    """The number of GPUs this process may use, 0 without a driver. Raises DeviceError when the driver is broken."""
    driver = api()
    try:
        (result,) = driver.cuInit(0)
    except RuntimeError:  # the driver's library is absent
        return 0
    if result.name in _NO_DEVICE:
        return 0
    if result != 0:
        raise failure(result, "the CUDA driver does not start")
    return int(check(driver.cuDeviceGetCount()))


def device(index: int) -> Any:
    """The CUdevice of GPU `index`. Raises DeviceError when there is none."""
    if not 0 <= index < device_count():
        raise DeviceError(f"no GPU {index}: this process sees {device_count()}")
    return check(api().cuDeviceGet(index))


def name(index: int) -> str:
    """The name of a GPU, such as NVIDIA H200."""
    return str(check(api().cuDeviceGetName(128, device(index))).split(b"\0")[0].decode())


def pci_bus_id(index: int) -> str:
    """The PCI address of a GPU: the name by which NVML knows it, whatever the order of devices here."""
    return str(check(api().cuDeviceGetPCIBusId(32, device(index))).split(b"\0")[0].decode())


def attribute(index: int, attribute_name: str) -> int:
    """A CU_DEVICE_ATTRIBUTE_... of a GPU, by the end of its name."""
    driver = api()
    wanted = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{attribute_name}")
    return int(check(driver.cuDeviceGetAttribute(wanted, device(index))))


def version() -> str:
    """The newest CUDA the driver supports, such as CUDA 13.0."""
    number = _version()
    return f"CUDA {number // 1000}.{number % 1000 // 10}"


def _version() -> int:
    return int(check(api().cuDriverGetVersion()))


@functools.cache
def primary_context(index: int) -> Any:
    """The primary context of a GPU, the one torch uses; kept for the life of the process."""
    return check(api().cuDevicePrimaryCtxRetain(device(index)), f"GPU {index} gives no context")


def activate(index: int) -> None:
    """Makes a GPU the current one of this thread, as torch.cuda.set_device does."""
    check(api().cuCtxSetCurrent(primary_context(index)))


@contextmanager
def current(index: int) -> Iterator[None]:
    """A GPU as the current one of this thread, and then the one before again."""
    check(api().cuCtxPushCurrent(primary_context(index)))
    try:
        yield
    finally:
        api().cuCtxPopCurrent()


def function(name: str) -> int:
    """The address of a function of the driver's, one that CUDA 12 or an older one has. Raises DeviceError where it has none."""
    address: Any = check(api().cuGetProcAddress(name.encode(), _CUDA, 0), f"looking for {name}")[0]
    if not address:
        raise DeviceError(f"this GPU's driver has no {name}; kgen needs a driver for CUDA 12 or newer")
    return int(address)

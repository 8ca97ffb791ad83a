"""Clocks, power, temperature and throttling of a GPU, by NVML. Everything is None where NVML is missing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from kgen.gpu import driver

#: Bits of NVML's clocks event reasons, in its order.
_REASONS = (
    (0x001, "idle"),
    (0x002, "applications_clocks_setting"),
    (0x004, "sw_power_cap"),
    (0x008, "hw_slowdown"),
    (0x010, "sync_boost"),
    (0x020, "sw_thermal_slowdown"),
    (0x040, "hw_thermal_slowdown"),
    (0x080, "hw_power_brake_slowdown"),
    (0x100, "display_clock_setting"),
    (0x200, "board_limit"),
    (0x400, "reliability"),
)


@dataclass(frozen=True)
class Sample:
    """The state of a GPU at one moment. Clocks in MHz, power in watts, temperature in degrees Celsius.

    `throttle` names what holds the clocks down now, such as sw_power_cap or hw_thermal_slowdown; empty if nothing does.
    """

    sm_clock: int | None
    memory_clock: int | None
    power: float | None
    temperature: int | None
    throttle: tuple[str, ...] | None

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        values = asdict(self)
        return {**values, "throttle": None if self.throttle is None else list(self.throttle)}


@functools.lru_cache(maxsize=1)
def _nvml() -> Any:
    """The pynvml module, initialised; None when the package or the library is missing."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


@functools.cache
def _handle(index: int) -> Any:
    """NVML's handle of CUDA device `index`, found by PCI address; None without NVML or the device."""
    nvml = _nvml()
    if nvml is None or not 0 <= index < driver.device_count():
        return None
    try:
        return nvml.nvmlDeviceGetHandleByPciBusId(driver.pci_bus_id(index).encode())
    except nvml.NVMLError:
        return None


def _ask(index: int, query: Callable[[Any, Any], Any]) -> Any:
    """The answer of `query(nvml, handle)`; None where NVML or this GPU cannot give one."""
    nvml, handle = _nvml(), _handle(index)
    if handle is None:
        return None
    try:
        return query(nvml, handle)
    except nvml.NVMLError:
        return None


def sample(index: int = 0) -> Sample:
    """The state of GPU `index` now."""
    power = _ask(index, lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu))
    bits = _ask(index, lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))
    return Sample(
        sm_clock=_ask(index, lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
        memory_clock=_ask(index, lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)),
        power=None if power is None else power / 1000,
        temperature=_ask(index, lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
        throttle=None if bits is None else reason_names(bits),
    )


def reason_names(bits: int) -> tuple[str, ...]:
    """The names of the set bits of NVML's clocks event reasons; a bit without a name is given in hexadecimal."""
    named = tuple(name for bit, name in _REASONS if bits & bit)
    rest = bits & ~sum(bit for bit, _ in _REASONS)
    return (*named, hex(rest)) if rest else named


def power_limit(index: int = 0) -> float | None:
    """The enforced power limit of a GPU in watts."""
    limit = _ask(index, lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu))
    return None if limit is None else limit / 1000


def driver_version() -> str | None:
    """The version of the GPU driver, such as 580.159.03."""
    nvml = _nvml()
    if nvml is None:
        return None
    version = nvml.nvmlSystemGetDriverVersion()
    return version.decode() if isinstance(version, bytes) else str(version)

"""Which GPU is meant: a Target by a name, from the table, or read from the device by its driver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kgen.dsl.errors import DeviceError
from kgen.dsl.target import GENERIC, TARGETS, Arch, Target

#: What drivers call the GPUs that the table calls otherwise, without the vendor's name and the family's.
_DRIVER_NAMES = {"H100 80GB HBM3": "H100 SXM", "GH200 480GB": "GH200", "GH200 120GB": "GH200"}


def resolve(text: str) -> Target:
    """The GPU that `text` means: "auto" (device 0), an index, a name or a unique part of one, or an architecture.

    Raises DeviceError when there is no such device, or when the name is unknown or fits several.
    """
    given = text.strip()
    if given == "auto" or re.fullmatch(r"-?\d{1,2}", given):  # 4090 is a name
        found = detect(0 if given == "auto" else int(given))
        if found is None:
            count = device_count()
            there = f"this machine has {count}" if count else "this machine has none, or no driver for it"
            raise DeviceError(f"no GPU {0 if given == 'auto' else given}: {there}; name one, such as H200 or sm_90")
        return found
    sm = re.fullmatch(r"sm_?(\d+)(a?)", given, re.I)
    if sm:
        name = f"sm_{sm[1]}"
        generic = GENERIC.get(name + sm[2].lower()) or GENERIC.get(name + "a")
        if generic is None:
            raise DeviceError(f"unknown architecture {text!r}; expected one of {', '.join(GENERIC)}")
        return generic
    wanted = _plain(given)
    fits = [target for name, target in TARGETS.items() if wanted and wanted in _plain(name)]
    exact = [target for target in fits if _plain(target.name) == wanted]
    if len(exact or fits) == 1:
        return (exact or fits)[0]
    if fits:
        raise DeviceError(f"the GPU name {text!r} fits {', '.join(t.name for t in fits)}; give one of them in full")
    raise DeviceError(
        f"unknown GPU {text!r}; expected auto, an index, an architecture ({', '.join(GENERIC)}) or one of "
        f"{', '.join(TARGETS)}"
    )


def _plain(name: str) -> str:
    """A GPU's name in lower case, without vendor, family, blanks and dashes."""
    return re.sub(r"\b(nvidia|tesla|geforce)\b|[\s_-]", "", name.lower())


def device_count() -> int:
    """The number of GPUs this process may use; 0 without a driver."""
    from kgen.gpu import driver

    return driver.device_count()


def detect(index: int = 0) -> Target | None:
    """The facts of GPU `index` by its driver and NVML, with the table's rates; None when there is no such GPU."""
    from kgen.gpu import driver, telemetry

    if not 0 <= index < driver.device_count():
        return None
    major = driver.attribute(index, "COMPUTE_CAPABILITY_MAJOR")
    minor = driver.attribute(index, "COMPUTE_CAPABILITY_MINOR")
    facts = {
        "sm_count": driver.attribute(index, "MULTIPROCESSOR_COUNT"),
        "shared_per_block": driver.attribute(index, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        "shared_per_sm": driver.attribute(index, "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        "registers_per_sm": driver.attribute(index, "MAX_REGISTERS_PER_MULTIPROCESSOR"),
        "max_threads_per_sm": driver.attribute(index, "MAX_THREADS_PER_MULTIPROCESSOR"),
        "max_blocks_per_sm": driver.attribute(index, "MAX_BLOCKS_PER_MULTIPROCESSOR"),
        "l2_bytes": driver.attribute(index, "L2_CACHE_SIZE"),
        "clock_hz": driver.attribute(index, "CLOCK_RATE") * 1e3,
    }
    # Two transfers a clock of the memory interface.
    memory_hz = driver.attribute(index, "MEMORY_CLOCK_RATE") * 1e3
    bandwidth = 2 * memory_hz * driver.attribute(index, "GLOBAL_MEMORY_BUS_WIDTH") / 8
    target = from_facts(driver.name(index), 10 * major + minor, facts, bandwidth)
    return replace(
        target,
        power_watts=telemetry.power_limit(index) or target.power_watts,
        driver=telemetry.driver_version() or driver.version(),
    )


def from_facts(name: str, sm: int, facts: Mapping[str, Any], bandwidth: float) -> Target:
    """A Target from what a driver reports: `facts` replaces the table's fields.

    A GPU the table lacks gets the rates of the nearest architecture below its own, scaled by SMs and clock, and
    `bandwidth`, where the driver gives one.
    """
    plain = re.sub(r"\b(NVIDIA|Tesla|GeForce)\b\s*", "", name).strip()
    known = TARGETS.get(_DRIVER_NAMES.get(plain, plain))
    if known and known.arch.sm == sm:
        return replace(known, **facts)
    below = [target for target in GENERIC.values() if target.arch.sm <= sm]
    if not below:
        raise DeviceError(f"{name} is an sm_{sm}; kgen needs an sm_75 or newer")
    like = below[-1]
    scale = facts["sm_count"] * facts["clock_hz"] / (like.sm_count * like.clock_hz)
    return replace(
        like,
        name=plain,
        arch=Arch(sm, "a" if 90 <= sm < 120 else ""),
        bandwidth=bandwidth or like.bandwidth,
        f32_flops=like.f32_flops * scale,
        tensor_flops={kind: rate * scale for kind, rate in like.tensor_flops.items()},
        **facts,
    )

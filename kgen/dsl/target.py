"""Target: the facts of one GPU that rules and cost models ask for, and the table of well-known ones.

The table lets every part of kgen but the launch work for a GPU that is not there. Its figures are those of the vendor's
data sheets and architecture white papers: dense rates, boost clocks, bandwidth of the memory interface. Limits of an
architecture are those of the table of compute capabilities in the CUDA programming guide. Nothing here asks a device:
`kgen.gpu.target` does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from kgen.dsl.errors import ConfigError
from kgen.dsl.machine import Machine
from kgen.dsl.vector import Vector, ceil_div, maximum, minimum

#: Bytes of shared memory that a block takes beside its own.
RESERVED_SHARED = 1024


@dataclass(frozen=True, order=True)
class Arch:
    """A GPU architecture: `sm` as in 80 or 90, `variant` "a" for features that only this very architecture has."""

    sm: int
    variant: str = ""

    def runs_on(self, other: Arch) -> bool:
        """Whether code that needs this architecture runs on `other`."""
        return other.sm == self.sm and self.variant == other.variant if self.variant else other.sm >= self.sm

    def __str__(self) -> str:
        return f"sm_{self.sm}{self.variant}"

    @classmethod
    def parse(cls, text: str) -> Arch:
        """The architecture written as `sm_90a`."""
        match = re.fullmatch(r"sm_(\d{2,3})(a?)", text)
        if not match:
            raise ConfigError(f"malformed architecture {text!r}; expected for example sm_80, sm_90a or sm_120")
        return cls(int(match[1]), match[2])


def sm(number: int, variant: str = "") -> Arch:
    """`sm(80)`: that architecture and above. `sm(90, "a")`: exactly that one."""
    return Arch(number, variant)


#: SMs of a GPC of Hopper's at most. Of clusters of 3 to 16 blocks as many run at once on an H200 as if all its GPCs had so many
#: (benchmarks/results/h200: decode.json, linear_attention.json); by what fits, they have 10 to 18.
_GPC = 18


def clusters(sm_count: Any, blocks: Any) -> Any:
    """Clusters of so many blocks, at most 16, that as many SMs have at once, a block each: numbers, arrays or a `Size`."""
    return sm_count * _in_a_gpc(blocks) // (_GPC * blocks)


def _in_a_gpc(blocks: Any) -> Any:
    """SMs of a GPC that clusters of so many blocks reach."""
    return _GPC // blocks * blocks


@dataclass(frozen=True)
class Target:
    """One GPU. Sizes in bytes, `bandwidth` in bytes/s of device memory, `clock_hz` the boost clock, rates in FLOP/s.

    `shared_per_block` is the most a block may have after opting in. `tensor_flops` has the dense rates of the tensor
    cores by dtype class: f16_f32acc (bf16 too), f16_f16acc, tf32, i8, fp8; a class the GPU lacks is absent. `driver` is
    the driver's version when the facts were read from a device. `machine` are constants of cost models for this target alone, in
    place of those that `kgen.tuning_db.machines` knows.
    """

    name: str
    arch: Arch
    sm_count: int
    shared_per_block: int
    shared_per_sm: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    l2_bytes: int
    bandwidth: float
    clock_hz: float
    f32_flops: float
    tensor_flops: Mapping[str, float]
    power_watts: float | None = None
    registers_per_sm: int = 65536
    driver: str | None = None
    machine: Machine | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensor_flops", MappingProxyType(dict(self.tensor_flops)))

    def __str__(self) -> str:
        return self.name if self.name == str(self.arch) else f"{self.name} ({self.arch})"

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        # Much of what a first call looks up is of a target: hashed once.
        return hash((self.name, self.arch, self.sm_count, self.driver, self.machine))

    def __reduce__(self) -> Any:
        # A mapping proxy does not travel to worker processes by itself.
        values = {one.name: getattr(self, one.name) for one in fields(self)} | {"tensor_flops": dict(self.tensor_flops)}
        return _rebuild, (values,)

    @property
    def smem_per_block(self) -> int:
        """Shared memory a block may have, in bytes: the name rules use."""
        return self.shared_per_block

    @property
    def reserved_shared(self) -> int:
        """Shared memory of an SM that each block takes beside its own, from sm_80 on."""
        return RESERVED_SHARED if self.arch.sm >= 80 else 0

    def resident_blocks(self, threads: Vector, registers: Vector = 0, shared: Vector = 0) -> Vector:
        """Blocks that an SM has at once, of so many threads, registers a thread, and bytes of shared memory; 0 where none fits.

        Takes numbers or arrays of them. Registers need not be whole: an estimate.
        """
        found = minimum(self.max_threads_per_sm // threads, self.max_blocks_per_sm)
        found = minimum(found, self.shared_per_sm // maximum(shared + self.reserved_shared, 1))
        return minimum(found, self.registers_per_sm // (maximum(registers, 1) * threads))

    def sms_in_clusters(self, blocks: Vector) -> Vector:
        """How many SMs clusters of so many blocks, at most 16, reach: a cluster lies within a GPC."""
        return self.sm_count * _in_a_gpc(blocks) / _GPC

    def waves(self, blocks: Vector, resident: Vector = 1) -> Vector:
        """Rounds in which so many blocks come, of which an SM has `resident` at once."""
        return ceil_div(blocks, self.sm_count * resident)


def _rebuild(values: dict[str, Any]) -> Target:
    return Target(**values)


KB, MB = 1024, 1024 * 1024

#: By architecture: shared memory of a block and of an SM, threads and blocks an SM.
_LIMITS = {
    "sm_75": (64 * KB, 64 * KB, 1024, 16),
    "sm_80": (163 * KB, 164 * KB, 2048, 32),
    "sm_86": (99 * KB, 100 * KB, 1536, 16),
    "sm_89": (99 * KB, 100 * KB, 1536, 24),
    "sm_90a": (227 * KB, 228 * KB, 2048, 32),
    "sm_100a": (227 * KB, 228 * KB, 2048, 32),
    "sm_120": (99 * KB, 100 * KB, 1536, 24),
}


# fmt: off
def _gpu(name: str, arch: str, sms: int, l2_mb: float, gb_s: float, mhz: float, watts: float, f32: float, f16: float,
         tf32: float | None, i8: float, fp8: float | None = None, f16_f16acc: float | None = None) -> Target:
    """A row of the table: L2 in MiB, bandwidth in GB/s, clock in MHz, rates in TFLOP/s; f16 with f32 accumulation."""
    shared_per_block, shared_per_sm, threads, blocks = _LIMITS[arch]
    tensor = {"f16_f32acc": f16, "f16_f16acc": f16_f16acc or f16, "tf32": tf32, "i8": i8, "fp8": fp8}
    return Target(
        name=name, arch=Arch.parse(arch), sm_count=sms, shared_per_block=shared_per_block, shared_per_sm=shared_per_sm,
        max_threads_per_sm=threads, max_blocks_per_sm=blocks, l2_bytes=int(l2_mb * MB), bandwidth=gb_s * 1e9,
        clock_hz=mhz * 1e6, f32_flops=f32 * 1e12, power_watts=watts,
        tensor_flops={kind: rate * 1e12 for kind, rate in tensor.items() if rate is not None},
    )


_TABLE = (
    #                                SMs  L2   GB/s  MHz   W     f32   f16    tf32   i8    fp8
    # Turing white paper and T4 data sheet.
    _gpu("T4", "sm_75",              40,  4,   320,  1590, 70,   8.1,  65,    None,  130),
    # A100 data sheet, GA100 white paper.
    _gpu("A100-SXM4-40GB", "sm_80",  108, 40,  1555, 1410, 400,  19.5, 312,   156,   624),
    _gpu("A100-SXM4-80GB", "sm_80",  108, 40,  2039, 1410, 400,  19.5, 312,   156,   624),
    # A10 data sheet; GA102 white paper (GeForce accumulates in f32 at half the rate).
    _gpu("A10", "sm_86",             72,  6,   600,  1695, 150,  31.2, 125,   62.5,  250),
    _gpu("RTX 3090", "sm_86",        82,  6,   936,  1695, 350,  35.6, 71,    35.6,  284,  f16_f16acc=142),
    # L4 and L40S data sheets; Ada white paper (GeForce: fp8 with f32 accumulation).
    _gpu("L4", "sm_89",              58,  48,  300,  2040, 72,   30.3, 121,   60,    242,  242),
    _gpu("L40S", "sm_89",            142, 96,  864,  2520, 350,  91.6, 362,   183,   733,  733),
    _gpu("RTX 4090", "sm_89",        128, 72,  1008, 2520, 450,  82.6, 165,   82.6,  661,  330, f16_f16acc=330),
    # H100, H200 and GH200 data sheets, GH100 white paper; clock and L2 as drivers report them.
    _gpu("H100 SXM", "sm_90a",       132, 50,  3352, 1980, 700,  66.9, 989,   495,   1979, 1979),
    _gpu("H100 PCIe", "sm_90a",      114, 50,  2039, 1755, 350,  51.2, 756,   378,   1513, 1513),
    _gpu("H200", "sm_90a",           132, 60,  4800, 1980, 700,  66.9, 989,   495,   1979, 1979),
    _gpu("GH200", "sm_90a",          132, 60,  4000, 1980, 700,  66.9, 989,   495,   1979, 1979),
    # Blackwell data sheets (an eighth of an HGX B200); RTX Blackwell white paper.
    _gpu("B200", "sm_100a",          148, 126, 8000, 1965, 1000, 75,   2250,  1125,  4500, 4500),
    _gpu("RTX 5090", "sm_120",       170, 96,  1792, 2407, 575,  104.8, 209.5, 104.8, 838, 419, f16_f16acc=419),
)
# fmt: on

#: Well-known GPUs by name.
TARGETS: dict[str, Target] = {target.name: target for target in _TABLE}

#: One GPU to stand for each architecture when only that is named.
_TYPICAL = {
    "sm_75": "T4",
    "sm_80": "A100-SXM4-80GB",
    "sm_86": "A10",
    "sm_89": "L40S",
    "sm_90a": "H100 SXM",
    "sm_100a": "B200",
    "sm_120": "RTX 5090",
}

#: Architectures by name. sm_90 and sm_100 mean the variant with every feature: it is what such a GPU has.
GENERIC: dict[str, Target] = {sm: replace(TARGETS[name], name=sm, power_watts=None) for sm, name in _TYPICAL.items()}

#: The architectures that CUDA compiles for from sm_75 on; those from sm_90 also with the features of just one, as sm_90a.
_SMS = (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
ARCHS = (*(Arch(sm) for sm in _SMS), *(Arch(sm, "a") for sm in _SMS if sm >= 90))


def architecture(text: str) -> Arch:
    """The architecture written as `sm_90a`. ConfigError where there is none of that name."""
    found = Arch.parse(text)
    if found not in ARCHS:
        raise ConfigError(f"unknown architecture {text!r}; expected one of {', '.join(map(str, ARCHS))}")
    return found

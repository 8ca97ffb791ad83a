"""What the tuner and its worker process say to each other. Plain data only: no callable crosses the pipe.

The worker is told one problem (`Open`); then it loads kernels for it, each verified before anything else (`Load`), and times
those it holds against each other (`Measure`). Every request has one reply. A kernel's fault comes back as `Failed`; after one
that leaves the GPU's context unusable, and after silence, the process is ended and another started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from kgen.codegen.source import Source
from kgen.dsl.problem import NormalProblem
from kgen.gpu.binary import Binary
from kgen.tuner.race import Policy, Timing

#: The name under which torch's own kernel is timed, where the worker has one for the problem.
OPPONENT = "torch"


@dataclass(frozen=True)
class Case:
    """A problem that a kernel is run on: the normalised problem, and the symbols of its launch."""

    problem: NormalProblem
    symbols: Mapping[str, int] = field(hash=False)


@dataclass(frozen=True)
class Job:
    """A compiled config. The first case is the problem that is tuned; the others are only verified. `name` is its own."""

    name: str
    source: Source
    binary: Binary
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class Open:
    """Prepare for a problem on a GPU: references, and operands for timing that exceed the L2 of `l2_bytes` three times."""

    problem: NormalProblem
    device: int
    l2_bytes: int
    seed: int


@dataclass(frozen=True)
class Load:
    """Load a kernel and, unless it was before, verify it. It stays loaded where it is right.

    One run of the problem that takes longer than `patience` seconds ends the verification: the check "slow". `briefly`: the
    problem is run as often as a variant of it is; of a kernel that was verified at other sizes.
    """

    job: Job
    verify: bool = True
    patience: float | None = None
    briefly: bool = False


@dataclass(frozen=True)
class Measure:
    """Time loaded kernels against each other; `early`: each launch may start before the one before it, of its like, has ended."""

    names: tuple[str, ...]
    policy: Policy
    floor_seconds: float
    keep: tuple[str, ...] = ()
    race: bool = True
    early: bool = False


@dataclass(frozen=True)
class Unload:
    """Forget kernels."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Close:
    """Free what the problem takes: another may come."""


Request = Union[Open, Load, Measure, Unload, Close]


@dataclass(frozen=True)
class Done:
    """Nothing else to say; `opponent` after Open: whether OPPONENT can be timed."""

    opponent: bool = False


@dataclass(frozen=True)
class Verified:
    """The verdict on a kernel."""

    ok: bool
    evidence: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Measured:
    """The timings by name."""

    timings: Mapping[str, Timing] = field(hash=False)


@dataclass(frozen=True)
class Failed:
    """A request that raised. `code` is the CUresult, where the GPU's driver gave one."""

    message: str
    code: int | None = None

    @property
    def poisoned(self) -> bool:
        """Whether nothing more can be done in the process."""
        return self.code in STICKY


Reply = Union[Done, Verified, Measured, Failed]

#: CUresults after which a context is lost. Others, such as 701 (too many resources asked for), leave it as it was.
STICKY = {
    700: "illegal address",
    702: "launch timeout",
    709: "context destroyed",
    710: "device-side assert",
    713: "host memory already registered",
    714: "hardware stack error",
    715: "illegal instruction",
    716: "misaligned address",
    717: "invalid address space",
    718: "invalid program counter",
    719: "launch failed",
    999: "unknown error",
}

"""Which GPU is meant: one of this machine, or one known by its name alone."""

from __future__ import annotations

from dataclasses import dataclass

from kgen.dsl.errors import ArgumentError
from kgen.dsl.target import Target
from kgen.gpu.target import detect, device_count, resolve
from kgen.runtime import dispatch


@dataclass(frozen=True)
class Machine:
    """The GPU meant: its facts, and its index where it is in this machine. `found` is False for auto without a GPU."""

    target: Target
    device: int | None
    found: bool = True


def find_gpu(wanted: int | str | Target) -> Machine:
    """The GPU that is named: "auto", an index, a name or an architecture; or a target, which this machine's GPU may be.

    A name means this machine's GPU of that name where there is one, sm_XX never does. "auto" without a GPU is the
    architecture that `kgen` takes for the most likely one. DeviceError where there is no such GPU.
    """
    if isinstance(wanted, Target):
        return Machine(wanted, next((index for index in range(device_count()) if detect(index) == wanted), None))
    given = str(wanted).strip()
    if given == "auto":
        first = detect(0)
        return Machine(dispatch.EMULATED, None, found=False) if first is None else Machine(first, 0)
    target = resolve(given)
    if target.driver is not None:
        return Machine(target, int(given))
    for index in range(device_count()):
        here = detect(index)
        if here is not None and here.name == target.name:
            return Machine(here, index)
    return Machine(target, None)


def target_of(target: Target | str | None) -> Target:
    """A target as it is given, by name, or of this machine's first GPU; without one that of sm_90a."""
    if target is None:
        return detect(0) or dispatch.EMULATED
    if not isinstance(target, (str, Target)):
        raise ArgumentError(f"a target is the name of a GPU, such as 'H200' or 'sm_90a', or a Target, got {target!r}")
    return resolve(target) if isinstance(target, str) else target

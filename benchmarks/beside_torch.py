"""An operator of kgen in turns with torch's, with that compiled for the shape, and with a copy (anyrows.py, anymemory.py)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kgen.gpu.target import resolve
from kgen.tuner.race import Policy
from kgen.tuner.timer import CudaClock, interleaved, is_warm, rotation


def sets_of(moved: int) -> int:
    """How many sets of operands it takes for them to be cold, where a call moves so many bytes."""
    return rotation(moved, resolve("auto").l2_bytes, torch.cuda.mem_get_info()[0])


def times(
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    sets: Sequence[tuple[torch.Tensor, ...]],
    copy: Callable[[int], object],
    moved: int,
    policy: Policy,
) -> dict[str, float]:
    """Seconds of kgen, torch, torch compiled (max-autotune-no-cudagraphs) and a copy, which is called with a set's number."""
    torch.compiler.reset()
    compiled = torch.compile(theirs, dynamic=False, mode="max-autotune-no-cudagraphs")
    compiled(*sets[0])
    candidates: dict[str, Callable[[int], object]] = {
        "kgen": lambda i: ours(*sets[i]),
        "torch": lambda i: theirs(*sets[i]),
        "compiled": lambda i: compiled(*sets[i]),
        "copy": copy,
    }
    found = interleaved(
        candidates,
        sets=len(sets),
        policy=policy,
        race=False,
        warm_l2=is_warm(len(sets), moved, resolve("auto").l2_bytes),
        clock=CudaClock(0, len(sets)),
    )
    return {way: timing.seconds for way, timing in found.items()}


def of_torch(seconds: dict[str, float]) -> float:
    """The faster of torch's two times over kgen's."""
    return min(seconds["torch"], seconds["compiled"]) / seconds["kgen"]


def of_copy(seconds: dict[str, float]) -> float:
    """The copy's time over kgen's."""
    return seconds["copy"] / seconds["kgen"]


def told(where: str, entry: dict[str, Any]) -> str:
    """A measured entry as a line."""
    seconds = entry["seconds"]
    each = " ".join(f"{way} {t * 1e6:.1f}" for way, t in seconds.items())
    close = "" if entry["close"] else " NOT CLOSE"
    return f"{where}: {of_torch(seconds):.3f}, of a copy {of_copy(seconds):.3f} ({each}){close}"


def summary(kinds: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Geometric mean and worst of each kind that has any."""
    return {
        kind: {"mean": statistics.geometric_mean(ratios), "worst": min(ratios), "of": len(ratios)}
        for kind, ratios in kinds.items()
        if ratios
    }

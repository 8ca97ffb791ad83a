"""Environment: where and with what a benchmark ran, as plain values for its JSON."""

from __future__ import annotations

import platform
import subprocess
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from kgen.dsl.target import Target
from kgen.dsl.version import VERSION
from kgen.gpu import driver, telemetry
from kgen.gpu.toolchain import toolchain


def environment(device: int | None, target: Target) -> dict[str, Any]:
    """Date (UTC), commit, GPU and versions. `device` None is a run without a GPU: there is no driver to ask."""
    import torch

    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "host": {"system": platform.system(), "machine": platform.machine(), "python": platform.python_version()},
        "gpu": {
            "name": target.name if device is None else driver.name(device),
            "arch": str(target.arch),
            "sm_count": target.sm_count,
            "l2_bytes": target.l2_bytes,
            "bandwidth": target.bandwidth,
            "power_limit": None if device is None else telemetry.power_limit(device),
        },
        "versions": {
            "kgen": VERSION,
            "torch": torch.__version__,
            "torch_cuda": torch.version.cuda,
            "cublas": _version("nvidia-cublas", f"nvidia-cublas-cu{(torch.version.cuda or '').split('.')[0]}"),
            "driver": None if device is None else telemetry.driver_version() or driver.version(),
            "nvrtc": toolchain().version,
            "triton": _version("triton"),
        },
    }


def commit() -> str | None:
    """The commit of the source tree kgen runs from, with + where files differ from it; None outside a repository."""
    here = Path(__file__).resolve().parent
    try:
        name = _git(here, "rev-parse", "HEAD")
        return name + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()


def _version(*distributions: str) -> str | None:
    """The installed version of the first of these distributions that is there."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None

"""kgen doctor: whether all that kgen needs is here, and what to do where it is not."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import typer

from kgen.cli import options
from kgen.cli.output import plain, print_json, print_table
from kgen.codegen.settings import shown_database
from kgen.dsl.errors import KgenError


@dataclass(frozen=True)
class Finding:
    """`status` is ok, absent (kgen does without) or problem; `remedy` says what to do unless it is ok."""

    name: str
    status: str
    found: str
    remedy: str = ""


def run(db: options.Database = None, json: options.Json = False) -> None:
    """Check that all kgen needs is here.

    Python, torch, driver, GPUs, NVRTC, the host compiler, the cache folder and the database. The exit code is 1 where
    something is a problem. What is absent kgen can do without: the remedy says what that costs.
    """
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("python", _python),
        ("torch", _torch),
        ("CUDA driver", _driver),
        ("GPUs", _gpus),
        ("NVRTC and headers", _nvrtc),
        ("host compiler", _compiler),
        ("nvcc", _nvcc),
        ("cache folder", _cache),
        ("database", lambda: _database(db)),
    ]
    findings = []
    for name, look in checks:
        try:
            findings.append(look())
        except (KgenError, ImportError, OSError, RuntimeError) as error:
            findings.append(Finding(name, "problem", " ".join(str(error).split()), "see the message"))
    if json:
        print_json({"ok": all(f.status != "problem" for f in findings), "checks": [plain(f) for f in findings]})
    else:
        print_table(("check", "status", "found", "remedy"), [(f.name, f.status, f.found, f.remedy) for f in findings])
    if any(f.status == "problem" for f in findings):
        raise typer.Exit(1)


def _python() -> Finding:
    return Finding("python", "ok", f"{platform.python_version()} ({sys.executable}), {platform.machine()}")


def _torch() -> Finding:
    version, cuda, count = _ask_torch()
    return Finding("torch", "ok", f"{version}, CUDA {cuda}, {count} GPUs")


def _ask_torch() -> list[str]:
    """What torch says of itself: its version, its CUDA's, and how many GPUs it sees. In a process that it may take along."""
    program = "import torch; print(torch.__version__, torch.version.cuda or 'absent', torch.cuda.device_count())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.returncode}"]
        raise KgenError(f"torch cannot be imported: {last[0]}; pip install torch")
    return done.stdout.split()


def _driver() -> Finding:
    from kgen.gpu import driver, telemetry

    if driver.device_count() == 0:
        without = "install NVIDIA's driver to measure and run on a GPU; without it kgen models and emulates"
        return Finding("CUDA driver", "absent", "no driver, or no GPU for it", without)
    return Finding("CUDA driver", "ok", f"{telemetry.driver_version() or 'unknown version'}, {driver.version()}")


def _gpus() -> Finding:
    from kgen.gpu.target import detect, device_count

    found = [str(target) for i in range(device_count()) if (target := detect(i)) is not None]
    if not found:
        return Finding(
            "GPUs", "absent", "none", "kgen tune and kgen verify take the cost model and the emulator instead"
        )
    told = ", ".join(f"{i}: {name}" for i, name in enumerate(found))
    seen = int(_ask_torch()[2])
    if seen < len(found):
        return Finding(
            "GPUs", "problem", f"{told}; torch sees {seen}", "install a torch built with CUDA for these GPUs"
        )
    return Finding("GPUs", "ok", told)


def _nvrtc() -> Finding:
    from kgen.gpu.toolchain import load_nvrtc

    tools = load_nvrtc()  # its errors say what to install
    return Finding("NVRTC and headers", "ok", f"{tools.version}, {', '.join(tools.includes)}")


def _compiler() -> Finding:
    from kgen.codegen.host_compiler import toolchain

    try:
        tools = toolchain()
    except KgenError as error:
        return Finding("host compiler", "absent", str(error), "install g++ 12 or later; without it nothing is emulated")
    return Finding("host compiler", "ok", f"{tools.version} ({tools.path})")


def _nvcc() -> Finding:
    found = shutil.which("nvcc")
    if found is None:
        return Finding("nvcc", "absent", "not on PATH", "only what kgen export writes needs it, where it is built")
    return Finding("nvcc", "ok", found)


def _cache() -> Finding:
    from kgen.codegen.settings import cache_dir

    folder = cache_dir().absolute()
    there = folder if folder.exists() else next(p for p in folder.parents if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Finding(
            "cache folder", "problem", f"{folder} cannot be written", "set KGEN_CACHE_DIR to a folder that can"
        )
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.exists() else 0
    return Finding("cache folder", "ok", f"{folder}, {size / 2**20:.1f} MiB")


def _database(url: str | None) -> Finding:
    from kgen.cli import machine
    from kgen.tuning_db import is_there

    given = machine.database(url)
    where = shown_database(given)
    if not is_there(given):
        return Finding("database", "absent", f"none yet at {where}", "kgen tune makes it")
    with machine.reading(given) as store:
        assert store is not None, "it is there"
        damage = store.check()
        if damage:
            return Finding("database", "problem", f"{where}: {damage[0]}", "begin anew with another --db")
        found = store.statistics()
    return Finding("database", "ok", f"{where}, {sum(found.operators.values())} trials of {found.problems} problems")

"""The host's C++ compiler: finding it, and building files with it that are known to be whole.

A file appears by renaming, so two processes at once do no harm. Beside each lie the SHA-256 of its builds, one a line (the same
build twice differs in bytes): what has none of them was damaged since, and is built anew.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kgen.codegen.cache_folder import TEMPORARY, open_folder, using
from kgen.codegen.settings import cache_dir
from kgen.dsl.errors import CompileError, ToolchainError


@dataclass(frozen=True)
class Toolchain:
    """The host's C++ compiler: its `path`, what it says of its version, and the flags for this CPU."""

    path: str
    version: str
    cpu_flags: tuple[str, ...]

    @property
    def is_clang(self) -> bool:
        return "clang" in self.version


@cache
def toolchain() -> Toolchain:
    """The compiler to use: g++ or else clang++ (ToolchainError if there is neither)."""
    path = shutil.which("g++") or shutil.which("clang++")
    if path is None:
        raise ToolchainError(
            "the emulator needs a C++ compiler: neither g++ (12 or later) nor clang++ is on PATH; install one"
        )
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    return Toolchain(path, version, cpu_flags())


@cache
def cpu_flags() -> tuple[str, ...]:
    """The compiler's flags for this CPU."""
    cpu = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not cpu.exists():
        return ()
    known = re.search(r"^flags\s*:(.*)$", cpu.read_text(), re.M)
    has = set(known.group(1).split()) if known else set()
    return tuple(f"-m{name}" for name in ("avx2", "fma", "f16c") if name in has)


#: What a compiler says when the machine failed it; a kernel's text is not to blame then.
_MACHINES_FAULT = re.compile(
    "No space left|quota exceeded|Killed signal|[Cc]annot allocate|out of memory|Cannot create temporary|cannot execute"
)


def _run(command: Sequence[str], what: str, folder: str | None) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=folder)
    except OSError as error:
        raise ToolchainError(f"cannot run the host compiler {command[0]}: {error.strerror}; see kgen doctor") from error
    if done.returncode != 0:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:300])
        if done.returncode < 0 or _MACHINES_FAULT.search(done.stderr):
            told = first or f"it ended by signal {-done.returncode}"
            raise ToolchainError(f"the host compiler could not build {what}: {told}")
        raise CompileError(f"the host compiler rejected {what}: {first}", done.stderr)


def produce(target: Path, command: Sequence[str], what: str, folder: str | None = None) -> None:
    """Runs `command` in `folder` with `-o` a temporary file, which then becomes `target`, with its digest beside it."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=TEMPORARY, suffix=target.suffix)
    os.close(handle)
    try:
        _run([*command, "-o", name], what, folder)
        with _digests(target).open("a") as file:
            file.write(hashlib.sha256(Path(name).read_bytes()).hexdigest() + "\n")
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)


def shared_object(folder: str, name: str, sources: Sequence[Path], parts: Iterable[str]) -> Path:
    """Where a shared object of these sources is kept: in a folder named by them and by the other `parts` that it follows from."""
    content = hashlib.sha256(b"".join(source.read_bytes() for source in sources))
    for part in parts:
        content.update(part.encode() + b"\0")
    return (cache_dir() / folder / content.hexdigest()[:16]).absolute() / f"{name}.so"


def build(target: Path, command: Callable[[], Sequence[str]], what: str) -> None:
    """Has a file in a folder of the user's alone, by `command` where it is not there yet. CacheError where it cannot be kept."""
    open_folder(target.parent)
    if not is_built(target):
        with using(target.parent):
            produce(target, command(), what)


def _digests(target: Path) -> Path:
    return target.with_name(f"{target.name}.sha256")


def is_built(target: Path) -> bool:
    """Whether a file is there and as some build of it left it."""
    try:
        facts, known = target.stat(), _digests(target).read_bytes().split()
        return _digest(target, facts.st_ino, facts.st_size, facts.st_mtime_ns).encode() in known
    except OSError:
        return False


@cache
def _digest(path: Path, inode: int, size: int, modified: int) -> str:
    """SHA-256 of a file, read once while it is the same: a precompiled header has 17 MB."""
    return hashlib.sha256(path.read_bytes()).hexdigest()

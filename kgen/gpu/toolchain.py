"""toolchain: which NVRTC is in use and where its headers are, remembered on disk: what is compiled already needs no NVRTC loaded.

NVRTC and the headers come from the pip packages nvidia-cuda-nvrtc, -runtime and -crt, or from a toolkit; the headers
that lie beside the NVRTC in use come first, so that the two are of one release.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kgen.codegen.cache_folder import open_folder, read_whole, write_whole
from kgen.codegen.settings import cache_dir, cuda_homes, library_folders
from kgen.dsl.errors import CacheError, ToolchainError

#: Where a toolkit lies when nothing says otherwise.
_TOOLKIT = Path("/usr/local/cuda")
#: The header that says of which release the headers are.
_RELEASE = "cuda_runtime_api.h"


@dataclass(frozen=True)
class Toolchain:
    """An NVRTC: its version, and all that tells one installation from another in a cache key; and the folders of its headers.

    `loaded` says whether NVRTC itself was asked, or a file that remembers it.
    """

    version: str
    identity: str
    includes: tuple[str, ...]
    loaded: bool = field(default=True, compare=False)


@functools.lru_cache(maxsize=1)
def toolchain() -> Toolchain:
    """The NVRTC in use: as remembered while its files are what they were, else as `load_nvrtc` finds it, with its errors.

    To load NVRTC takes 15 to 30 ms of a process's first call (docs/notes/search.md), which mostly finds its kernel compiled.
    """
    return _remembered() or load_nvrtc()


@functools.lru_cache(maxsize=1)
def load_nvrtc() -> Toolchain:
    """The NVRTC that is found now, loaded, and the folders of its headers. Raises ToolchainError when either is missing."""
    nvrtc = bindings()
    major, minor = check(nvrtc.nvrtcVersion())
    from cuda import pathfinder

    path = pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path
    library = Path(path).resolve() if path else None
    includes = _header_folders(library)
    version = f"{major}.{minor}"
    # Two builds of one release share a version; the size of the library and the release of the headers tell them apart.
    size = library.stat().st_size if library else 0
    found = Toolchain(version, f"nvrtc {version} size {size} headers {_header_release(includes)}", includes)
    if library:
        _remember(found, library)
    toolchain.cache_clear()
    return found


def bindings() -> Any:
    """cuda.bindings.nvrtc with its library loaded."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
        return nvrtc
    except (ImportError, RuntimeError) as error:
        raise ToolchainError(
            f"NVRTC cannot be loaded ({error}); pip install nvidia-cuda-nvrtc, or install a CUDA toolkit"
        ) from error


def check(returned: tuple[Any, ...]) -> Any:
    """The value of a call into NVRTC, or its values as a list; raises ToolchainError when it failed."""
    result, *values = returned
    if result != 0:
        raise ToolchainError(f"NVRTC failed with {result.name}; see kgen doctor")
    return values[0] if len(values) == 1 else values


def _remember(found: Toolchain, library: Path) -> None:
    """Has the next process know it without loading it. What cannot be written is found again."""
    facts = {"version": found.version, "identity": found.identity, "includes": found.includes}
    headers = [Path(folder) / _RELEASE for folder in found.includes]
    told = json.dumps({**facts, "files": [*map(_state, (library, *headers))]}).encode()
    with contextlib.suppress(OSError, CacheError):
        open_folder(_place().parent)
        write_whole(_place(), told)


def _remembered() -> Toolchain | None:
    """What `_remember` wrote, if its files are as they were."""
    try:
        open_folder(_place().parent)
        told = json.loads(read_whole(_place()) or b"null")
        if told and all(_state(Path(path)) == [path, *facts] for path, *facts in told["files"]):
            return Toolchain(told["version"], told["identity"], tuple(told["includes"]), loaded=False)
    except (OSError, CacheError, ValueError, KeyError, TypeError):
        pass
    return None


def _state(path: Path) -> list[Any]:
    """A file's path, size and time; without these where there is none."""
    if not path.is_file():
        return [str(path)]
    facts = path.stat()
    return [str(path), facts.st_size, facts.st_mtime_ns]


def _place() -> Path:
    """The file that remembers the NVRTC found from where this process looks for it."""
    packages = [entry for entry in sys.path if (Path(entry or ".") / "nvidia").is_dir()]
    searched = "\n".join((sys.prefix, *library_folders(), *map(str, cuda_homes()), *packages))
    return cache_dir() / "toolchains" / hashlib.sha256(searched.encode()).hexdigest()


def _header_folders(library: Path | None) -> tuple[str, ...]:
    """The first folder that holds every header kernels include, else the first for each; nearest the library first."""
    candidates = [library.parent.parent / "include", library.parent.parent.parent / "include"] if library else []
    candidates += [home / "include" for home in cuda_homes()]
    for entry in sys.path:
        candidates += sorted(Path(entry or ".").glob("nvidia/*/include"), reverse=True)
    candidates.append(_TOOLKIT / "include")
    needed = ("cuda_fp16.h", "mma.h", "crt/mma.h")
    for folder in candidates:
        if all((folder / header).is_file() for header in needed):
            return (str(folder),)
    found: dict[str, None] = {}
    for header in needed:
        first = next((folder for folder in candidates if (folder / header).is_file()), None)
        if first is None:
            raise ToolchainError(
                f"the CUDA header {header} was not found; pip install nvidia-cuda-runtime nvidia-cuda-crt, "
                "or set CUDA_HOME to a toolkit"
            )
        found[str(first)] = None
    return tuple(found)


def _header_release(includes: tuple[str, ...]) -> str:
    """CUDART_VERSION of the headers, such as 13050."""
    for folder in includes:
        header = Path(folder) / _RELEASE
        if header.is_file():
            match = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", header.read_text(errors="replace"))
            if match:
                return match[1]
    return "unknown"

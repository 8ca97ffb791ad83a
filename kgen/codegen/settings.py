"""Settings from the environment: the one place where kgen reads environment variables.

- `KGEN_CACHE_DIR`: folder for everything kgen may throw away and rebuild, and for the default database.
- `KGEN_DATABASE`: SQLAlchemy URL of the tuning database, in place of the file in that folder.
- `KGEN_WARM_CALLS`: "python", where C++ is not to make warm calls.
- `CUDA_HOME`, `CUDA_PATH`: a CUDA toolkit, for its headers when pip has brought none.
- `LD_LIBRARY_PATH`, `CONDA_PREFIX`: where others look for CUDA's libraries; read to see whether they changed.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

from kgen.dsl.errors import ArgumentError


def cache_dir() -> Path:
    """The cache folder: KGEN_CACHE_DIR, else the user's own cache folder. It need not exist yet."""
    return _cache_dir(*map(os.environ.get, _CACHE))


#: What the cache folder follows from.
_CACHE = "KGEN_CACHE_DIR", "XDG_CACHE_HOME", "HOME"


@functools.lru_cache(maxsize=8)
def _cache_dir(given: str | None, *_of_user: str | None) -> Path:
    if given:
        return user_path(given)
    import platformdirs  # here, because most commands end before they need it

    return Path(platformdirs.user_cache_dir("kgen", appauthor=False))


def database() -> str:
    """The tuning database: the URL in KGEN_DATABASE, else the path of a file in the cache folder, which need not exist yet."""
    return os.environ.get("KGEN_DATABASE") or _database(*map(os.environ.get, _CACHE))


@functools.lru_cache(maxsize=8)
def _database(*of_cache: str | None) -> str:
    return os.path.join(_cache_dir(*of_cache), "tuning.sqlite")


def warm_calls() -> str:
    """What makes warm calls: "native", or "python" as KGEN_WARM_CALLS says."""
    return "python" if os.environ.get("KGEN_WARM_CALLS") == "python" else "native"


def user_path(text: str) -> Path:
    """The path that a user wrote, with `~` expanded. ArgumentError where there is no such user, or no home."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ArgumentError(f"malformed path {text!r}: {error}; write the folder in full") from error


def shown_database(where: str) -> str:
    """A database as messages name it: a URL without what stands for user and password, also one that is malformed."""
    if "://" not in where or re.match(r"sqlite[^:]*:///", where):
        return where
    hidden = re.sub(r"^(\w[\w+.-]*://)?.*@", r"\1***@", where, flags=re.DOTALL)
    return re.sub(r"(?i)([?&][^=&]*(?:pass|pwd|secret|token)[^=&]*=)[^&]*", r"\1***", hidden)


def cuda_homes() -> tuple[Path, ...]:
    """The CUDA toolkits that CUDA_HOME and CUDA_PATH name, in this order."""
    return tuple(Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name))


def library_folders() -> tuple[str, ...]:
    """What else than Python's own packages decides which of CUDA's libraries are found."""
    return tuple(os.environ.get(name, "") for name in ("LD_LIBRARY_PATH", "CONDA_PREFIX"))

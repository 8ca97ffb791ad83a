"""Settings from the environment: the one place where kgen reads environment variables.

- `KGEN_CACHE_DIR`: folder for everything kgen may throw away and rebuild, and for the default database.
- `KGEN_DATABASE`: SQLAlchemy URL of the tuning database, in place of the file in that folder.
- `CUDA_HOME`, `CUDA_PATH`: a CUDA toolkit, for its headers when pip has brought none.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """The cache folder: KGEN_CACHE_DIR, else the user's own cache folder. It need not exist yet."""
    given = os.environ.get("KGEN_CACHE_DIR")
    if given:
        return Path(given).expanduser()
    import platformdirs  # here, because most commands end before they need it

    return Path(platformdirs.user_cache_dir("kgen", appauthor=False))


def database() -> str:
    """The tuning database: the URL in KGEN_DATABASE, else the path of a file in the cache folder, which need not exist yet."""
    return os.environ.get("KGEN_DATABASE") or str(cache_dir() / "tuning.sqlite")


def cuda_homes() -> tuple[Path, ...]:
    """The CUDA toolkits that CUDA_HOME and CUDA_PATH name, in this order."""
    return tuple(Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name))

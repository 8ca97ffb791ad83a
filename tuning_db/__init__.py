"""The tuning database: what was tried on which GPU, what became of it, and which config won.

`open_store` gives a `Store`; everything that goes in or comes out is a frozen value of `records`. SQLAlchemy and
alembic are loaded by the first use of `open_store`, `Store` or the packs, not by this import.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kgen.tuning_db.records import (
    MEASURED,
    MODELLED,
    BestRecord,
    BucketRecord,
    ConfigText,
    DeferredRecord,
    GpuFacts,
    ProblemKey,
    Statistics,
    Toolchain,
    TrialRecord,
    distance,
    nearest,
)

if TYPE_CHECKING:
    from kgen.tuning_db.buckets import NewBucket, all_buckets, buckets_of, set_buckets
    from kgen.tuning_db.packs import export_pack, import_pack, shipped, shipped_buckets
    from kgen.tuning_db.store import Store, open_store

__all__ = [
    "MEASURED",
    "MODELLED",
    "BestRecord",
    "BucketRecord",
    "ConfigText",
    "DeferredRecord",
    "GpuFacts",
    "NewBucket",
    "ProblemKey",
    "Statistics",
    "Store",
    "Toolchain",
    "TrialRecord",
    "all_buckets",
    "buckets_of",
    "distance",
    "export_pack",
    "import_pack",
    "is_there",
    "nearest",
    "open_store",
    "set_buckets",
    "shipped",
    "shipped_buckets",
]

_LAZY = {
    **dict.fromkeys(("Store", "open_store"), "store"),
    **dict.fromkeys(("NewBucket", "all_buckets", "buckets_of", "set_buckets"), "buckets"),
    **dict.fromkeys(("export_pack", "import_pack", "shipped", "shipped_buckets"), "packs"),
}


def is_there(url: str | os.PathLike[str]) -> bool:
    """Whether there is a database to open: a file, or whatever a server's URL names. Plain paths load no SQLAlchemy."""
    given = os.fspath(url)
    if "://" not in given and not given.startswith("~"):  # as every first call asks
        return os.path.exists(given)
    from kgen.codegen.settings import user_path
    from kgen.dsl.errors import DatabaseError

    try:
        if "://" not in given:
            return os.path.exists(user_path(given))
        from kgen.tuning_db.engine import parse_url, sqlite_path

        try:
            parsed = parse_url(given)
        except DatabaseError:
            return True  # opening it says what is wrong with it
        path = sqlite_path(parsed)
        return bool(path.exists() if path else parsed.get_backend_name() != "sqlite")
    except (OSError, ValueError) as error:
        told = getattr(error, "strerror", None) or error
        raise DatabaseError(f"cannot open the tuning database {given}: {told}; give another path") from error


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)

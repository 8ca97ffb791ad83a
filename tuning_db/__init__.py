"""The tuning database: what was tried on which GPU, what became of it, and which config won.

`open_store` gives a `Store`; everything that goes in or comes out is a frozen value of `records`. SQLAlchemy and
alembic are loaded by the first use of `open_store`, `Store` or the packs, not by this import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kgen.tuning_db.records import (
    MEASURED,
    MODELLED,
    BestRecord,
    ConfigText,
    GpuFacts,
    ProblemKey,
    Statistics,
    Toolchain,
    TrialRecord,
    nearest,
)

if TYPE_CHECKING:
    from kgen.tuning_db.packs import export_pack, import_pack, shipped
    from kgen.tuning_db.store import Store, open_store

__all__ = [
    "MEASURED",
    "MODELLED",
    "BestRecord",
    "ConfigText",
    "GpuFacts",
    "ProblemKey",
    "Statistics",
    "Store",
    "Toolchain",
    "TrialRecord",
    "export_pack",
    "import_pack",
    "nearest",
    "open_store",
    "shipped",
]

_LAZY = {"Store": "store", "open_store": "store", "export_pack": "packs", "import_pack": "packs", "shipped": "packs"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)

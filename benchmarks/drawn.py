"""What the benchmarks of drawn shapes print and write at their end: a table, and a JSON with all behind it."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from kgen.bench.environment import commit as commit_of_tree


def tell(rows: dict[str, dict[str, Any]], out: Path | None, commit: str | None, /, **data: Any) -> None:
    """Prints the table; with `out` writes it and `data`. `commit` is for a tree that stands without its repository."""
    for name, row in rows.items():
        print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in row.items()))
    if out:
        told = {
            "gpu": torch.cuda.get_device_name(),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "commit": commit or commit_of_tree(),
            "torch": torch.__version__,
            "table": rows,
            **data,
        }
        out.write_text(json.dumps(told, indent=1) + "\n")

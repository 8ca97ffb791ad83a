"""Bench: kgen measured beside its opponents, in one process, on the same operands. What every claim of speed rests on.

    result = run(operator, problems, ("cublas", "torch", "compile", "triton", "copy"), device=0)
    print(comparison_table(result)); path.write_text(result.to_json())

`overhead` measures the host's time for a warm call. torch is loaded by the first use of either, not by this import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgen.bench.compare import Settings, run
    from kgen.bench.host import Overhead, overhead
    from kgen.bench.opponents import names as opponent_names
    from kgen.bench.result import Result
    from kgen.bench.table import comparison_table

__all__ = ["Overhead", "Result", "Settings", "comparison_table", "opponent_names", "overhead", "run"]

_LAZY = {
    "Overhead": ("host", "Overhead"),
    "Result": ("result", "Result"),
    "Settings": ("compare", "Settings"),
    "comparison_table": ("table", "comparison_table"),
    "opponent_names": ("opponents", "names"),
    "overhead": ("host", "overhead"),
    "run": ("compare", "run"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    return getattr(import_module(f"{__name__}.{module}"), attribute)

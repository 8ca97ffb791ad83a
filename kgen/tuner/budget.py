"""Budget: how long a search may take at most, in seconds or in trials."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kgen.dsl.errors import ArgumentError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Budget:
    """At most `seconds` of search and at most `trials` new configs; None is no limit. Without either: 60 seconds."""

    seconds: float | None = None
    trials: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is None and self.trials is None:
            object.__setattr__(self, "seconds", 60.0)
        for name, value in (("seconds", self.seconds), ("trials", self.trials)):
            if value is not None and not 0 < value < 1e9:
                raise ArgumentError(f"a budget of {value} {name}; expected more than 0 and less than 1e9")

    @classmethod
    def parse(cls, text: str) -> Budget:
        """ "60s", "2m" or "1h" of search, or "200" trials."""
        match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([smh]?)", text.strip())
        if not match or (not match[2] and "." in match[1]):
            raise ArgumentError(
                f"malformed budget {text!r}; expected a time such as 60s, 2m or 1h, or a number of trials"
            )
        return cls(seconds=float(match[1]) * _UNITS[match[2]]) if match[2] else cls(trials=int(match[1]))

    def __str__(self) -> str:
        parts = [f"{self.seconds:g} s"] if self.seconds is not None else []
        return ", ".join(parts + ([f"{self.trials} trials"] if self.trials is not None else []))

    def covered_by(self, spent: Mapping[str, Any]) -> bool:
        """Whether searches that spent this much (`seconds`, `trials`; `exhausted`, `settled`) leave nothing to do."""
        if spent.get("exhausted") or spent.get("settled"):
            return True
        enough = [(self.seconds, spent.get("seconds", 0.0)), (self.trials, spent.get("trials", 0))]
        return any(wanted is not None and had >= wanted for wanted, had in enough)

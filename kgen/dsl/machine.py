"""Machine: what was measured of a GPU, as the constants that cost models are written in. The data sheet's facts are Target's.

A model declares its constants as a frozen dataclass of floats, in units that hold for any GPU wherever they can: shares of a
rate, clocks, bytes a clock and SM, seconds of a latency. A constant that does not is `scaled_by` the fact of the GPU it goes
with. The values are data of a GPU: `kgen.tuning_db.machines` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeVar

from kgen.dsl.errors import ConfigError, DefinitionError

C = TypeVar("C", bound="Constants")


class Constants:
    """Base of the constants of models: `class GemvConstants(Constants, model="gemv")`, a frozen dataclass of floats."""

    model: ClassVar[str]
    known: ClassVar[dict[str, type[Constants]]] = {}

    def __init_subclass__(cls, /, model: str, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if model in Constants.known:
            raise DefinitionError(f"two models are called {model}")
        cls.model = model
        Constants.known[model] = cls


def scaled_by(fact: str) -> Any:
    """A constant that goes with a fact of the GPU: `kept: float = scaled_by("l2_bytes")`, the name of a field of Target."""
    return field(metadata={"scaled_by": fact})


def scales(kind: type[Constants]) -> dict[str, str | None]:
    """The names of a model's constants, each with the fact that it goes with, if any."""
    return {f.name: f.metadata.get("scaled_by") for f in fields(kind)}  # type: ignore[arg-type]


@dataclass(frozen=True)
class Fitted:
    """The constants of one model on one GPU, and where they are from.

    `fitted` to times, or `counted`: worked out by hand from a few. `evidence` says from which.
    """

    origin: Literal["fitted", "counted"]
    evidence: str
    constants: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Machine:
    """What was measured of the GPU of that name: constants by the models' names."""

    gpu: str
    models: Mapping[str, Fitted]

    def of(self, kind: type[C]) -> C:
        """The constants of a model. ConfigError where there are none, or others than it has."""
        fitted = self.models.get(kind.model)
        wanted = scales(kind)
        if fitted is None or fitted.constants.keys() != wanted.keys():
            there = "no constants" if fitted is None else f"the constants {', '.join(fitted.constants)}"
            raise ConfigError(f"{self.gpu} has {there} of {kind.model}; expected {', '.join(wanted)}")
        return kind(**fitted.constants)

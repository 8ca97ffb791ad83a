"""The text of a config, as `repr` prints it, read as data: nothing is evaluated."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kgen.dsl.choice import Value
from kgen.dsl.errors import ConfigError
from kgen.dsl.schedule import Schedule

_CONFIG = re.compile(r"\s*(\w+)\((.*)\)\s*", re.DOTALL)


def parse_config(text: str, schedules: Mapping[str, type[Schedule]]) -> Schedule:
    """The config that `repr` printed as `text`, read as data (nothing is evaluated)."""
    match = _CONFIG.fullmatch(text)
    if not match or match[1] not in schedules:
        raise ConfigError(f"malformed or unknown config {_brief(text)}; expected Name(field=value, ...) with Name one of "
                          f"{', '.join(sorted(schedules))}")  # fmt: skip
    return schedules[match[1]](**parse_fields(text)[1])


def parse_fields(text: str) -> tuple[str, dict[str, Value]]:
    """The schedule's name and the fields in the text of a config, whether there is such a schedule or not."""
    match = _CONFIG.fullmatch(text)
    if not match:
        raise ConfigError(f"malformed config {_brief(text)}; expected Name(field=value, ...)")
    values: dict[str, Value] = {}
    for item in filter(None, (part.strip() for part in match[2].split(","))):
        name, _, value = (part.strip() for part in item.partition("="))
        if re.fullmatch(r"-?[0-9]{1,18}", value):
            values[name] = int(value)
        elif value in ("True", "False"):
            values[name] = value == "True"
        elif re.fullmatch(r"'[^']*'|\"[^\"]*\"", value):
            values[name] = value[1:-1]
        else:
            raise ConfigError(f"malformed value {_brief(value)} of {_brief(name)} in config {_brief(text)}")
    return match[1], values


def _brief(text: str) -> str:
    """A text as a message quotes it, cut short."""
    return repr(text) if len(text) <= 200 else f"{text[:200]!r}..."

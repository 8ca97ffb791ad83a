"""rowwise: every value of every field for every dtype, at ragged lengths and with all kinds of operands."""

import pytest
from suite import cases_of, compile_some, emulate_all, names

from kgen.ops.rowwise import Rowwise

NAMES = names("Rowwise")


@pytest.mark.parametrize("name", NAMES)
def test_on_the_emulator(name: str) -> None:
    emulate_all(name)


@pytest.mark.parametrize("name", NAMES)
def test_compiles(name: str) -> None:
    compile_some(name)


def test_every_value_of_every_field() -> None:
    seen = {item for name in NAMES for case in cases_of(name) for item in case.config.values.items()}
    assert seen == {(name, value) for name, field in Rowwise.fields.items() for value in field.values}

"""reduce: every value of every field for every dtype, at ragged sizes and with all kinds of operands."""

import pytest
from suite import compile_some, emulate_all, names

NAMES = names("Reduce")


@pytest.mark.parametrize("name", NAMES)
def test_on_the_emulator(name: str) -> None:
    emulate_all(name)


@pytest.mark.parametrize("name", NAMES)
def test_compiles(name: str) -> None:
    compile_some(name)

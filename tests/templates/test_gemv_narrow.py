"""gemv in i8 and fp8: every value of every field for every layout, at ragged shapes."""

import pytest
from suite import compile_some, emulate_all, names

NAMES = names("Gemv", "i8", "e4m3", "e5m2")


@pytest.mark.parametrize("name", NAMES)
def test_on_the_emulator(name: str) -> None:
    emulate_all(name)


@pytest.mark.parametrize("name", NAMES)
def test_compiles(name: str) -> None:
    compile_some(name)

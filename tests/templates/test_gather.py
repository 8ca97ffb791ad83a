"""gather: every value of every field over ragged shapes, layouts, and kinds of ids."""

import pytest
from suite import compile_some, emulate_all, names

NAMES = [*names("Gather"), *names("GatherSum")]


@pytest.mark.parametrize("name", NAMES)
def test_on_the_emulator(name: str) -> None:
    emulate_all(name)


@pytest.mark.parametrize("name", NAMES)
def test_compiles(name: str) -> None:
    compile_some(name)

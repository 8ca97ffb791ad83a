"""scatter_add: every value of every field over ragged shapes, layouts, and kinds of sums."""

import pytest
from suite import compile_some, emulate_all, names

NAMES = [*names("ScatterAdd"), *names("ScatterBins")]


@pytest.mark.parametrize("name", NAMES)
def test_on_the_emulator(name: str) -> None:
    emulate_all(name)


@pytest.mark.parametrize("name", NAMES)
def test_compiles(name: str) -> None:
    compile_some(name)

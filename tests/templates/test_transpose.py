"""transpose: every value of every field for every dtype, tiles cut anywhere, lines of any alignment."""

import pytest
from suite import names, run_and_compile

NAMES = names("Transpose")


@pytest.mark.parametrize("name", NAMES)
def test_cases(name: str) -> None:
    run_and_compile(name)


@pytest.mark.parametrize("name", names("TransposeNarrow"))
def test_cases_of_few_columns(name: str) -> None:
    run_and_compile(name)

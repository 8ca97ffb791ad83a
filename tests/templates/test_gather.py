"""gather: every value of every field over ragged shapes, layouts, and kinds of ids."""

import pytest
from suite import names, run_and_compile

NAMES = [*names("Gather"), *names("GatherSum")]


@pytest.mark.parametrize("name", NAMES)
def test_cases(name: str) -> None:
    run_and_compile(name)

"""scatter_add: every value of every field over ragged shapes, layouts, and kinds of sums."""

import pytest
from suite import names, run_and_compile

NAMES = [*names("ScatterAdd"), *names("ScatterBins"), *names("ScatterRows")]


@pytest.mark.parametrize("name", NAMES)
def test_cases(name: str) -> None:
    run_and_compile(name)

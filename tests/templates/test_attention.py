"""attention: every value of every field of both schedules over masks, scores, shared heads, ragged lengths and layouts."""

import pytest
from suite import names, run_and_compile


@pytest.mark.parametrize("name", [*names("AttentionMma"), *names("AttentionWgmma")])
def test_cases(name: str) -> None:
    run_and_compile(name)

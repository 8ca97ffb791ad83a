"""column_stats: every value of every field of both schedules, memory contiguous along kept and along reduced axes."""

import pytest
from suite import names, run_and_compile

NAMES = [*names("ColumnStats"), *names("ChannelStats")]


@pytest.mark.parametrize("name", NAMES)
def test_cases(name: str) -> None:
    run_and_compile(name)

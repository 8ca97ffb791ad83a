"""column_stats: every value of every field of both schedules, memory contiguous along kept and along reduced axes."""

import pytest
from suite import compile_some, emulate_all, names

NAMES = [*names("ColumnStats"), *names("ChannelStats")]


@pytest.mark.parametrize("name", NAMES)
def test_on_the_emulator(name: str) -> None:
    emulate_all(name)


@pytest.mark.parametrize("name", NAMES)
def test_compiles(name: str) -> None:
    compile_some(name)

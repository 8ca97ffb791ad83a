"""rowwise: every value of every field for every dtype, at ragged lengths and with all kinds of operands."""

import pytest
from suite import GROUPS, cases_of, names, run_and_compile

SCHEDULES = ["Rowwise", "RowwiseCluster", "RowwiseSpan"]
NAMES = [name for schedule in SCHEDULES for name in names(schedule)]


@pytest.mark.parametrize("name", NAMES)
def test_cases(name: str) -> None:
    run_and_compile(name)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_value_of_every_field(schedule: str) -> None:
    groups = names(schedule)
    seen = {item for name in groups for case in cases_of(name) for item in case.config.values.items()}
    fields = GROUPS[groups[0]].schedule.fields
    assert seen == {(name, value) for name, field in fields.items() for value in field.values}

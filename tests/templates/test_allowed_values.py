"""Numbers that a field takes beside its domain, for who asks for them: kernels with them are right, for every dtype and layout.

Values with a name are few, and the suite's cases have all of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from suite import GROUPS, names, run_case

from kgen.dsl.choice import Value
from kgen.dsl.family import schedules
from kgen.dsl.schedule import Schedule
from kgen.tuner.space import Space

EXTENDED = {
    (schedule.__name__, name): [v for v in field.allows if v not in field.values]
    for schedule in schedules().values()
    if schedule.__module__.startswith("kgen.ops.")
    for name, field in schedule.fields.items()
    if isinstance(field.allows, range) and set(field.allows) - set(field.values)
}
#: Groups (a dtype and a layout each) in which a field's other values are tried: others of them for each field.
TRIED = 2


def cases(schedule: str, field: str) -> Iterator[tuple[str, object]]:
    """One valid config with another value of the field in each of some groups, for the first of its problems that has one."""
    source = random.Random(f"{schedule}.{field}")
    kind: type[Schedule] = schedules()[schedule]
    groups = source.sample(names(schedule), len(names(schedule)))
    tried = 0
    for name in groups:
        for case in GROUPS[name].cases()[:: 1 + tried]:
            values: list[Value] = source.sample(EXTENDED[schedule, field], len(EXTENDED[schedule, field]))
            others = {n: v for n, v in case.config.values.items() if n != field}
            loose = source.sample(sorted(others), len(others) // 2)
            space = kind.where(**{field: values}, **{n: v for n, v in others.items() if n not in loose})
            found = Space.valid(space, case.problem, case.target)
            if found.count:
                config = found.draw(source)
                if GROUPS[name].cost(config, case.problem) <= 1:
                    yield name, replace(case, config=config)
                    break
        else:
            continue
        tried += 1
        if tried == TRIED:
            return


@pytest.mark.parametrize(("schedule", "field"), EXTENDED)
def test_a_value_beside_the_domain_is_right(schedule: str, field: str) -> None:
    torch.set_num_threads(1)
    found = list(cases(schedule, field))
    assert len(found) == TRIED
    for name, case in found:
        assert case.config.values[field] in EXTENDED[schedule, field]
        run_case(name, case)

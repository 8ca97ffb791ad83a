"""Warm-up: what a model's operators meet is recorded, compiled side by side, and tuned where asked, before it counts.

    report = kgen.warm(model, x)  # calls model(x)

    with kgen.warming(budget="10m") as report:
        loss(model(x)).backward()
    print(report)

Within it torch's own ops compute what calls of new kinds give: see `kgen.runtime.first`. This module itself needs no torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kgen.dsl.errors import ArgumentError, told_of

if TYPE_CHECKING:
    from kgen.runtime.report import Report
    from kgen.tuner.budget import Budget


def warm(model_fn: Callable[..., Any], *examples: Any, budget: str | Budget | None = None, **named: Any) -> Report:
    """Calls `model_fn(*examples, **named)` once, as `warming` does, and returns the report. A backward pass counts where it
    runs one. `budget` is `warming`'s, never the model's.
    """
    if not callable(model_fn):
        raise ArgumentError(f"warm: {told_of(model_fn)} is no function; expected one to call with the examples")
    with warming(budget) as report:
        model_fn(*examples, **named)
    return report


@contextlib.contextmanager
def warming(budget: str | Budget | None = None) -> Iterator[Report]:
    """Within it all problems that operators meet for the first time are recorded and compiled; at its end they are loaded.

    With a `budget` those that are not tuned for this GPU are tuned then: "10m" is the time for all of them together, "50" the
    number of trials for each launch. The report is complete at the end. Raises what a kernel's compilation raised.
    """
    from kgen.runtime.first import WarmUp, opened
    from kgen.tuner.budget import Budget

    if not (budget is None or isinstance(budget, (str, Budget))):
        raise ArgumentError(f'warming: budget {told_of(budget)}; expected for example "10m", or None')
    spent = Budget.parse(budget) if isinstance(budget, str) else budget
    made = WarmUp()
    opened.append(made)
    try:
        yield made.report
    except BaseException:
        made.abandon()
        raise
    finally:
        opened.remove(made)
    made.load()
    if spent is not None:
        made.tune(spent)

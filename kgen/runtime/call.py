"""A call of an operator on torch tensors: one dictionary look-up leads to its plan, which is made at the first call.

The key holds all that a kernel may depend on and nothing else: class, shape, strides, dtype, device and alignment of every
operand. Numbers are no part of it, they are arguments of the launch.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from kgen.codegen.source import Source
from kgen.dsl.errors import DeviceError
from kgen.dsl.family import family_of
from kgen.dsl.operator import Operator
from kgen.dsl.schedule import Schedule
from kgen.gpu.target import Target, detect
from kgen.runtime import dispatch, emulation
from kgen.runtime.operands import outputs_given, problem_of, split
from kgen.runtime.plan import EmulatedPlan, GpuPlan, Plan

#: Plans an operator keeps: beyond it all are dropped, and made anew as they are needed.
_LIMIT = 4096


class Caller:
    """Runs one operator on tensors. `config` pins what else dispatch chooses."""

    def __init__(self, definition: Operator, config: Schedule | None = None) -> None:
        self.definition, self.config = definition, config
        self._count = len(definition.tensors)
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._lock = threading.Lock()

    def __call__(self, given: tuple[Any, ...], out: Any, scalars: Mapping[str, Any]) -> Any:
        """`given` are the arguments by position, `out` the outputs or None, `scalars` the arguments by name."""
        if len(given) != self._count:
            given, scalars = split(self.definition, given, scalars)
        if out is not None:
            given = (*given, *outputs_given(self.definition, out)) if type(out) is not torch.Tensor else (*given, out)
        key: list[Any] = []
        addresses: list[int] = []
        try:
            for x in given:
                address = x.data_ptr()
                addresses.append(address)
                key += (x.__class__, x.shape, x.stride(), x.dtype, x.device, address & 15)
            plan = self._plans[tuple(key)]
        except (KeyError, AttributeError, RuntimeError, TypeError):
            plan = self._plan(given, tuple(key))
        return plan(given, addresses, scalars)

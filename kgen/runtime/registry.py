"""Operators by the keys that torch knows them by, and what is asked of one there. Without torch, as is defining an operator."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kgen.dsl.operator import Operator


class Launchable(Protocol):
    """What autograd and torch's dispatcher take of an operator: kgen.runtime.operator.KernelOperator has it."""

    definition: Operator
    key: str

    @property
    def __name__(self) -> str: ...
    @property
    def own_gradient(self) -> Launchable | None: ...
    @property
    def training(self) -> Launchable: ...
    def derived(self, definition: Operator) -> Launchable: ...
    def launch(
        self,
        tensors: Sequence[Any],
        numbers: Mapping[str, Any],
        sizes: Mapping[str, int],
        outputs: Sequence[Any] = (),
    ) -> tuple[Any, ...]: ...


class Quiet:
    """What `torch.autograd.forward_ad` is while nothing is differentiated forward."""

    _current_level = -1


#: Two of one key compute the same.
BY_KEY: weakref.WeakValueDictionary[str, Launchable] = weakref.WeakValueDictionary()

"""Operators by the keys that torch knows them by, and what is asked of one there. Without torch, as is defining an operator."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from kgen.dsl.operator import Graph, Operator
from kgen.dsl.restriction import Restriction
from kgen.dsl.schedule import Schedule


class Launchable(Protocol):
    """What autograd and torch's dispatcher take of an operator: kgen.runtime.operator.KernelOperator has it."""

    definition: Operator
    root: Operator
    pinned: Schedule | None
    restriction: Restriction
    key: str
    #: What calls of each kind keep for their gradients: kgen.runtime.autograd.Step.
    steps: dict[tuple[Any, ...], Any]

    @property
    def __name__(self) -> str: ...
    @property
    def own_gradient(self) -> Launchable | None: ...
    @property
    def training(self) -> Launchable: ...
    def derived(self, graphs: Sequence[Graph], summary: str) -> Launchable: ...
    def forget(self) -> None: ...
    def keep(self, key: tuple[Any, ...], plan: Any) -> None: ...
    def extended(self) -> Any: ...
    def keep_step(self, tensors: tuple[Any, ...], step: Any) -> None: ...
    def repeated(self, tensors: tuple[Any, ...], numbers: Mapping[str, Any]) -> Any: ...
    def launch(
        self,
        tensors: Sequence[Any],
        numbers: Mapping[str, Any],
        sizes: Mapping[str, int],
        outputs: Sequence[Any] = (),
    ) -> tuple[Any, ...]: ...


#: The extension that makes warm calls, once kgen.runtime.native has loaded it.
extension: Any = None


def constant_to_dynamo(function: Callable[..., str]) -> Callable[..., str]:
    """Has Dynamo call a function of constants where it meets it, and go on with the text: without importing torch."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result does
    return function


class Quiet:
    """What `torch.autograd.forward_ad` is while nothing is differentiated forward."""

    _current_level = -1


#: Operators by key: two of one key compute the same, and each may outlive the other.
_by_key: defaultdict[str, weakref.WeakSet[Launchable]] = defaultdict(weakref.WeakSet)


def enter(operator: Launchable) -> None:
    """Has `of_key` find the operator as long as it lives and has this key."""
    _by_key[operator.key].add(operator)


def of_key(key: str) -> Launchable:
    """An operator of that key, which is in use."""
    return next(operator for operator in _by_key[key] if operator.key == key)

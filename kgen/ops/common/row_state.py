"""The size of a RowState (templates/common/row_state.cuh)."""

from __future__ import annotations

from collections.abc import Sequence


def state_bytes(states: Sequence[Sequence[int]]) -> int:
    """Bytes of a RowState, of the bytes of every state's members: each state is behind those that come after it."""
    size, widest = 0, 1
    for members in reversed(states):
        align = max(members)
        size = -(-size // align) * align + _laid(members, align)
        widest = max(widest, align)
    return -(-size // widest) * widest


def _laid(members: Sequence[int], align: int) -> int:
    """Bytes of a struct of such members."""
    size = 0
    for member in members:
        size = -(-size // member) * member + member
    return -(-size // align) * align

"""Buffer: memory of the caller that a kernel may touch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Buffer:
    """`bytes` of the caller's memory from `address`, which the caller keeps alive during the launch.

    A kernel that stores to it without `writable`, or loads bytes it has not stored without `initialized`, is at fault.
    """

    address: int
    bytes: int
    writable: bool
    initialized: bool = True

"""Gather: what is read by index."""

from kgen.ops.gather.gather import Gather, family
from kgen.ops.gather.gather_sum import GatherSum

__all__ = ["Gather", "GatherSum", "family"]

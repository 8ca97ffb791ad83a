"""Reductions over all axes (the family `reduce`), and over leading or several ones (`column_stats`)."""

from kgen.ops.reduction.column_stats import ChannelStats, ColumnStats
from kgen.ops.reduction.reduce import Reduce

__all__ = ["ChannelStats", "ColumnStats", "Reduce"]

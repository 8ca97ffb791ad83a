"""Rowwise: reductions along the last axis, nested ones too."""

from kgen.ops.rowwise.cluster import RowwiseCluster, family
from kgen.ops.rowwise.rowwise import Rowwise
from kgen.ops.rowwise.span import RowwiseSpan

__all__ = ["Rowwise", "RowwiseCluster", "RowwiseSpan", "family"]

"""Rowwise: reductions along the last axis, nested ones too."""

from kgen.ops.rowwise.cluster import RowwiseCluster, family
from kgen.ops.rowwise.rowwise import Rowwise

__all__ = ["Rowwise", "RowwiseCluster", "family"]

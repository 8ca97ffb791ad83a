"""Rowwise: reductions along the last axis, nested ones too."""

from kgen.ops.rowwise.rowwise import Rowwise, family

__all__ = ["Rowwise", "family"]

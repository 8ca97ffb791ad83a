"""Elementwise: pointwise expressions, and transposes."""

from kgen.ops.elementwise.elementwise import Elementwise, family
from kgen.ops.elementwise.narrow import TransposeNarrow
from kgen.ops.elementwise.transpose import Transpose

__all__ = ["Elementwise", "Transpose", "TransposeNarrow", "family"]

"""Scatter: what is added at indices."""

from kgen.ops.scatter.scatter_add import ScatterAdd, family
from kgen.ops.scatter.scatter_bins import ScatterBins

__all__ = ["ScatterAdd", "ScatterBins", "family"]

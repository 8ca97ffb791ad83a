"""Scatter: what is added at indices."""

from kgen.ops.scatter.scatter_add import ScatterAdd, family
from kgen.ops.scatter.scatter_bins import ScatterBins
from kgen.ops.scatter.scatter_rows import ScatterRows

__all__ = ["ScatterAdd", "ScatterBins", "ScatterRows", "family"]

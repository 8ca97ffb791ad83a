"""Scans along the rows of any pointwise expression, and into any."""

from kgen.ops.scan.scan import Scan, family

__all__ = ["Scan", "family"]

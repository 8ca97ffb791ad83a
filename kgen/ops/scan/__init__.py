"""Scans along rows, of any pointwise expression and into any: the family `scan`."""

from kgen.dsl.family import Family, register_family
from kgen.ops.common import axes
from kgen.ops.rowwise.problem import normalise, suites
from kgen.ops.scan.kernel import matches
from kgen.ops.scan.scan import Scan
from kgen.ops.scan.span import ScanSpan
from kgen.ops.scan.split import ScanSplit

__all__ = ["Scan", "ScanSpan", "ScanSplit", "family"]

family = register_family(Family("scan", (Scan, ScanSpan, ScanSplit), matches, normalise, axes.dims, suites))

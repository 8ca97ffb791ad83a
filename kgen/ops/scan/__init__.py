"""Scans along rows, of any pointwise expression and into any: the family `scan`."""

from kgen.dsl.family import Family, register_family
from kgen.ops.common import axes
from kgen.ops.rowwise.problem import normalise, suites
from kgen.ops.scan.kernel import matches
from kgen.ops.scan.scan import Scan
from kgen.ops.scan.span import ScanSpan
from kgen.ops.scan.split import ScanSplit
from kgen.ops.scan.thread import ScanThread

__all__ = ["Scan", "ScanSpan", "ScanSplit", "ScanThread", "family"]

family = register_family(Family("scan", (Scan, ScanSpan, ScanSplit, ScanThread), matches, normalise, axes.dims, suites))

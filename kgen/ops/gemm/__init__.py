"""GEMM: matrix products with a pointwise epilogue. Its family is registered beside its operators, in products.py."""

from kgen.ops.gemm.gemv import Gemv
from kgen.ops.gemm.mma import MmaGemm
from kgen.ops.gemm.simt import SimtGemm
from kgen.ops.gemm.wgmma import WgmmaGemm

__all__ = ["Gemv", "MmaGemm", "SimtGemm", "WgmmaGemm"]

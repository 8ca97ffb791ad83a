"""Products as serving a language or vision model makes them, drawn by a seed: a random number of tokens times known weights."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import kgen
from kgen.dsl.problem import Problem

#: N and K of the weights of common models: attention's projections, both halves of a feed-forward layer, heads.
WEIGHTS = (
    (768, 768), (2304, 768), (3072, 768), (768, 3072), (1152, 1152), (4304, 1152), (1152, 4304), (896, 4864), (4864, 896),
    (2048, 2048), (3072, 2048), (8192, 2048), (2048, 8192), (1536, 1536), (24576, 1536), (1536, 7168), (7168, 2048),
    (2560, 2560), (9728, 2560), (2560, 9728), (19456, 2560), (3072, 3072), (9216, 3072), (3072, 8192), (16384, 3072),
    (4096, 4096), (6144, 4096), (12288, 4096), (11008, 4096), (4096, 11008), (14336, 4096), (28672, 4096), (4096, 14336),
    (5120, 5120), (7168, 5120), (13824, 5120), (5120, 13824), (27648, 5120), (8192, 8192), (10240, 8192), (28672, 8192),
    (8192, 28672), (7168, 7168), (2112, 7168), (4096, 7168), (7168, 18432), (32000, 4096), (1000, 1000), (1024, 1024),
)  # fmt: skip
MOST_TOKENS = 8192


@dataclass(frozen=True)
class Product:
    """out[M, N] = a[M, K] @ b, whose b is stored [N, K] ("TN") or [K, N] ("NN")."""

    M: int
    N: int
    K: int
    layout: str
    dtype: str = "bf16"

    @property
    def sizes(self) -> dict[str, int]:
        return {"M": self.M, "N": self.N, "K": self.K}

    @property
    def layouts(self) -> dict[str, str]:
        return {"b": "col"} if self.layout == "TN" else {}

    @property
    def operator(self) -> str:
        return "sgemm" if self.dtype == "f32" else "hgemm"

    @property
    def problem(self) -> Problem:
        return getattr(kgen, self.operator).problem(self.sizes, dtype=self.dtype, layouts=self.layouts)

    def __str__(self) -> str:
        return f"{self.layout} {self.M}x{self.N}x{self.K} {self.dtype}"


def products(seed: int, count: int, f32: bool = False, most: int = MOST_TOKENS) -> list[Product]:
    """Tokens, `most` at most, are spread evenly over their logarithms, a fifth over powers of two; a twentieth of the products is
    f16's.

    With `f32` all are of that dtype, and of 2^36 multiply-adds at most: more take 3 ms and longer without tensor cores.
    """
    source, found = random.Random(seed), []
    while len(found) < count:
        tokens = round(math.exp(source.uniform(0, math.log(most))))
        if source.random() < 0.2:
            tokens = 2 ** round(math.log2(tokens))
        n, k = source.choice(WEIGHTS)
        layout = source.choice(("TN", "TN", "NN"))
        dtype = "f16" if source.random() < 0.05 else "bf16"
        if not f32 or tokens * n * k <= 2**36:
            found.append(Product(tokens, n, k, layout, "f32" if f32 else dtype))
    return found

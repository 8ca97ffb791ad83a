"""What kgen claims on an H200: operators, sizes, opponents, and the bar each is held to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from kgen.dsl.problem import Problem
from kgen.ops import operators
from kgen.ops.gemm.problem import suites
from kgen.runtime.operator import KernelOperator

ELEMENTS = 2**27
Sizes = dict[str, Any]
#: Changes operands, by name, in place before they are used.
Adjust = Callable[[Mapping[str, torch.Tensor]], None]
#: Opponents that move bytes alone: their largest bandwidth of the whole run is what a bar is a fraction of.
YARDSTICKS = ("copy", "read")


@dataclass(frozen=True)
class Part:
    """An operator on some problems against opponents; kgen must come to `bar` of the speed of `against`; `beside`: of others."""

    name: str
    operator: str
    shapes: tuple[Sizes, ...]
    opponents: tuple[str, ...]
    against: str
    bar: float
    dtype: str | None = None
    layouts: tuple[dict[str, str], ...] = ({},)
    beside: Mapping[str, float] = field(default_factory=dict)
    adjust: Adjust | None = None

    def problems(self, operator: KernelOperator) -> list[Problem]:
        return [
            operator.problem(shape, dtype=self.dtype, layouts=layouts)
            for layouts in self.layouts
            for shape in self.shapes
        ]

    @property
    def bars(self) -> dict[str, float]:
        """All bars by opponent."""
        return {self.against: self.bar, **self.beside}


# Products.


def _products(
    name: str, operator: str, shapes: Iterable[Sizes], bar: float, against: str = "cublas", layouts: str = "nt"
) -> Part:
    """Products of the layouts named: n for B as it is (NN), t for B transposed in memory (TN to a column-major library)."""
    found: dict[str, dict[str, str]] = {"n": {}, "t": {"b": "col"}}
    return Part(name, operator, tuple(shapes), (against,), against, bar, layouts=tuple(found[x] for x in layouts))


def _suite(name: str) -> tuple[Sizes, ...]:
    return tuple(suites(operators()["hgemm"].graphs[0])[name])


def _squares(*sizes: int) -> list[Sizes]:
    return [{"M": n, "N": n, "K": n} for n in sizes]


_RAGGED = _suite("ragged")
#: The small ones first: a GPU that large products have heated runs them at a lower clock.
_ALIGNED = sorted((s for s in _suite("gemm") if s not in _RAGGED), key=lambda s: math.prod(map(int, s.values())))
_LINEAR = [{"M": m, "N": n, "K": k} for m, n, k in ((4096, 4096, 4096), (4096, 14336, 4096), (4096, 4096, 14336))]
#: One row against a matrix of at least 100 MB.
_GEMV = [{"M": 1, "N": n, "K": k} for n, k in ((28672, 4096), (4096, 14336), (8192, 28672), (128256, 4096))]

PRODUCTS = (
    _products("gemm_nn", "hgemm", _ALIGNED, 1.00, layouts="n"),
    _products("gemm_tn", "hgemm", _ALIGNED, 1.00, layouts="t"),
    _products("ragged", "hgemm", _RAGGED, 2.00),
    _products("fp8", "fp8gemm", _squares(4096, 8192), 0.97, layouts="t"),
    _products("tf32", "tf32gemm", _squares(4096, 8192), 1.00),
    _products("linear_gelu", "linear_gelu", _LINEAR, 1.05, against="compile", layouts="n"),
    Part(
        "gemv",
        "hgemm",
        tuple(_GEMV),
        ("read", "cublas"),
        "read",
        0.92,
        layouts=({}, {"b": "col"}),
        beside={"cublas": 1.00},
    ),
    _products("sgemm", "sgemm", _squares(1024, 2048, 4096, 8192), 0.90),
)

# What memory alone limits: fractions of the bandwidth, and torch beside it.

_TORCH = ("torch", "compile")


def _moved(name: str, operator: str, dtype: str, shapes: Iterable[Sizes], bar: float, **more: Any) -> Part:
    """An operator held to the bandwidth of copies (or of reads: `against`); torch eager and compiled are measured beside it."""
    against = more.pop("against", "copy")
    return Part(f"{name}_{dtype}", operator, tuple(shapes), (against, *_TORCH), against, bar, dtype, **more)


def _pointwise() -> Iterator[Part]:
    plain, rows = [{"...": (ELEMENTS,)}], [{"...": (ELEMENTS // 4096,), "N": 4096}]
    heads = [{"...": (4,), "S": 8192, "H": 32, "D": 128}]
    shapes = {"bias_gelu": rows, "bias_residual": rows, "rope": heads, "rope_interleaved": heads}
    names = ("add", "relu", "silu", "gelu", "gelu_erf", "elu", "hardswish", *shapes)
    for name in names:
        for dtype in ("f16", "f32"):
            yield _moved(name, name, dtype, shapes.get(name, plain), 0.95)


#: Lengths of rows, of 2^27 elements each.
LENGTHS = (256, 1024, 4096, 8192, 32768, 131072, 262144)
_ROWS = [{"...": (ELEMENTS // n,), "N": n} for n in LENGTHS]


def _rowwise() -> Iterator[Part]:
    for name in ("softmax", "layer_norm", "rms_norm"):
        for dtype in ("f16", "bf16", "f32"):
            yield _moved(name, name, dtype, _ROWS, 0.90, beside={"compile": 1.00})
            yield _moved(f"{name}_backward", f"{name}_backward", dtype, _ROWS, 0.85, beside={"compile": 1.00})


def _transposes() -> Iterator[Part]:
    for dtype in ("f16", "f32"):
        yield _moved("transpose", "transpose", dtype, [{"M": 16384, "N": 16384}, {"M": 8191, "N": 8193}], 0.90)


def _sums() -> Iterator[Part]:
    shape = [{"...": (2**28,)}]
    for dtype in ("f32", "f16", "e4m3", "i8"):
        integer = "i" if dtype == "i8" else ""
        yield _moved("sum", f"reduce_{integer}sum", dtype, shape, 0.92, against="read")
        yield _moved("dot", f"{integer}dot", dtype, shape, 0.92, against="read")


_IMAGES = [{"...": (64, 64), "H": 256, "W": 256, "OH": 512, "OW": 512}]
_TABLE = [{"...": (65536,), "V": 128256, "C": 4096}]


def _gathers() -> Iterator[Part]:
    for dtype in ("f16", "f32"):
        yield _moved("embedding", "embedding", dtype, _TABLE, 0.85)
        yield _moved("embedding_backward", "embedding_backward", dtype, [{"N": 65536, "V": 128256, "C": 4096}], 0.85)
        yield _moved("upsample", "upsample_nearest", dtype, _IMAGES, 0.85)
        yield _moved("upsample_backward", "upsample_nearest_backward", dtype, _IMAGES, 0.85)


def _filled(name: str, make: Callable[[torch.Tensor, int], torch.Tensor], size: str | None) -> Adjust:
    """Puts other ids into the operand `name`; `make` gets it, and the first size of the operand `size` or 0."""

    def adjust(operands: Mapping[str, torch.Tensor]) -> None:
        ids = operands[name]
        ids.copy_(make(ids, operands[size].shape[0] if size else 0))

    return adjust


def _steps(ids: torch.Tensor) -> torch.Tensor:
    return torch.arange(ids.numel(), device=ids.device).reshape(ids.shape)


#: Where rows are added: spread at random, all in one, in order, each run of 64 in one, and most of them in few.
_PATTERNS: dict[str, Callable[[torch.Tensor, int], torch.Tensor] | None] = {
    "random": None,
    "equal": lambda ids, count: torch.full_like(ids, count // 2),
    "sorted": lambda ids, count: _steps(ids) * count // ids.numel(),
    "runs": lambda ids, count: ids.reshape(-1, 64)[:, :1].expand(-1, 64).reshape(ids.shape),
    "skewed": lambda ids, count: (ids.double() / count).pow(8).mul(count).long(),
}


def _scatters() -> Iterator[Part]:
    bins = [{"...": (ELEMENTS,), "BINS": 256}]
    one_bin = _filled("x", lambda x, count: torch.full_like(x, 7), None)
    yield _moved("histogram", "histogram", "i32", bins, 0.85, against="read")
    yield _moved("histogram_one_bin", "histogram", "i32", bins, 0.5, against="read", adjust=one_bin)
    rows = ({"N": 262144, "V": 65536, "C": 256},)
    for pattern, make in _PATTERNS.items():
        for dtype in ("f16", "f32"):
            adjust = _filled("ids", make, "x") if make else None
            name = f"index_add_{pattern}_{dtype}"
            yield Part(name, "index_add", rows, ("torch", "compile", "copy"), "torch", 1.2, dtype, adjust=adjust)


MOVED = (
    *_pointwise(), *_rowwise(), *_transposes(), *_sums(), *_gathers(), *_scatters(),
    Part("nms", "nms_padded", ({"N": 20000},), ("torchvision",), "torchvision", 1.00),
)  # fmt: skip

PARTS = (*MOVED, *PRODUCTS)

"""Values of the wrong kind, and the right ones beside them, for every public function and every operator."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch

import kgen
from kgen.dsl.expr import Expr
from kgen.dsl.size import Dim, SizeExpr
from kgen.dsl.types import DType
from kgen.numerics.dtypes import torch_dtype

#: Made anew for each use: some are spent by it.
VALUES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "-1": lambda: -1,
    "2**63": lambda: 2**63,
    "10**400": lambda: 10**400,
    "1.5": lambda: 1.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "1j": lambda: 1j,
    "Fraction": lambda: Fraction(1, 3),
    "Fraction of 10**400": lambda: Fraction(10**400, 3),
    "Decimal": lambda: Decimal("1e999"),
    "empty text": lambda: "",
    "text": lambda: "nosuch",
    "text with NUL": lambda: "a\0b",
    "text of digits": lambda: "9" * 5000,
    "surrogate": lambda: "\udcff",
    "bytes": lambda: b"f16",
    "list": lambda: [1, None],
    "empty list": lambda: [],
    "tuple": lambda: ("f16", 3),
    "nested": lambda: [[["f16"]]],
    "dict": lambda: {"x": None},
    "dict of ints": lambda: {1: 2},
    "set": lambda: {1, "x"},
    "range": lambda: range(3),
    "slice": lambda: slice(1),
    "...": lambda: ...,
    "object": object,
    "class": lambda: int,
    "function": lambda: lambda: None,
    "generator": lambda: (i for i in (1, 2)),
    "module": lambda: torch,
    "exception": lambda: ValueError("x"),
    "np.int64": lambda: np.int64(2),
    "np.float32": lambda: np.float32(2.5),
    "np.bool": lambda: np.bool_(True),
    "np.array": lambda: np.array([1.0, 2.0]),
    "np.dtype": lambda: np.dtype("float16"),
    "torch.float16": lambda: torch.float16,
    "torch.device": lambda: torch.device("cpu"),
    "torch.Size": lambda: torch.Size([2]),
    "tensor": lambda: torch.ones(2),
    "0-d tensor": lambda: torch.tensor(1.0),
    "kgen.f16": lambda: kgen.f16,
    "kgen.bool_": lambda: kgen.bool_,
    "dtype_var": lambda: kgen.dtype_var("T", kgen.f16),
    "Tensor type": lambda: kgen.Tensor[kgen.f32, 2],
    "Dim": lambda: Dim("Q"),
    "size": lambda: Dim("Q") + 1,
    "traced": lambda: traced(),
    "traced bool": lambda: traced(kgen.bool_),
    "operator": lambda: kgen.gelu,
    "problem": lambda: kgen.gelu.problem(leading=2),
}


def traced(dtype: DType = kgen.f32, *dims: SizeExpr) -> Expr:
    """A value as an operator's definition sees it: a matrix of named dimensions."""
    from kgen.dsl.expr import Shape

    return Expr("input", (), dtype, Shape(dims or (Dim("M"), Dim("N"))), "x")


def _quiet(make: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    def made() -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make()

    return made


def strange(x: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Tensors of x's shape that are no plain tensors, or of another dtype or rank."""
    return {
        "meta": lambda: x.to("meta"),
        "sparse": _quiet(lambda: torch.zeros(x.shape).to_sparse()),
        "requires a gradient": lambda: torch.zeros(x.shape, requires_grad=True),
        "complex": lambda: torch.zeros(x.shape, dtype=torch.complex64),
        "conjugate": lambda: torch.zeros(x.shape, dtype=torch.complex64).conj(),
        "negated": lambda: torch.zeros(x.shape, dtype=torch.complex64).conj().imag,
        "uint8": lambda: torch.zeros(x.shape, dtype=torch.uint8),
        "uint16": lambda: torch.zeros(x.shape, dtype=torch.uint16),
        "quantised": _quiet(lambda: torch.quantize_per_tensor(torch.zeros(x.shape), 0.1, 0, torch.qint8)),
        "nested": _quiet(lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])),
        "of numpy": lambda: np.zeros(x.shape),
        "9 dimensions more": lambda: x.expand(*[2] * 9, *x.shape),
        "no dimension": lambda: x.new_zeros(()),
        "a subclass": lambda: x.as_subclass(type("Own", (torch.Tensor,), {})),
    }


def operands(operator: Any) -> list[torch.Tensor]:
    """Small inputs that an operator takes, all zeros."""
    graph = operator.definition.graphs[0]
    problem = operator.problem(dict.fromkeys(graph.dims, 2))
    return [torch.zeros(o.shape, dtype=torch_dtype(o.dtype)) for o in problem.inputs]

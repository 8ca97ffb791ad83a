"""Element types: what a tensor holds, how wide it is, what it computes in and what CUDA C++ calls it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from kgen.dsl.errors import DefinitionError, told_of


@dataclass(frozen=True, eq=False)
class DType:
    """An element type; there is one object of each, compared by identity.

    `bits` is its width in memory, `kind` is "float", "int" or "bool", `ctype` its name in CUDA C++, `torch` that in torch, and
    `digits` the number of binary digits of its significand (floats): how far a rounded result may lie from the exact one.
    """

    name: str
    bits: int
    kind: str
    ctype: str
    torch: str
    digits: int = 0

    @property
    def bytes(self) -> int:
        """Width in memory, in bytes."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return dtype, (self.name,)  # the same object in every process: dtypes are compared by identity


f64 = DType("f64", 64, "float", "double", "float64", 53)
f32 = DType("f32", 32, "float", "float", "float32", 24)
#: f32 in memory; a contraction rounds or cuts it to a significand of 11 digits and multiplies it on tensor cores.
tf32 = DType("tf32", 32, "float", "float", "float32", 11)
f16 = DType("f16", 16, "float", "__half", "float16", 11)
bf16 = DType("bf16", 16, "float", "__nv_bfloat16", "bfloat16", 8)
e4m3 = DType("e4m3", 8, "float", "__nv_fp8_e4m3", "float8_e4m3fn", 4)
e5m2 = DType("e5m2", 8, "float", "__nv_fp8_e5m2", "float8_e5m2", 3)
i64 = DType("i64", 64, "int", "long long", "int64")
i32 = DType("i32", 32, "int", "int", "int32")
i8 = DType("i8", 8, "int", "signed char", "int8")
bool_ = DType("bool", 8, "bool", "bool", "bool")

DTYPES: dict[str, DType] = {t.name: t for t in (f64, f32, tf32, f16, bf16, e4m3, e5m2, i64, i32, i8, bool_)}


@dataclass(frozen=True)
class DTypeVar:
    """A dtype left open by a signature; every operand that names it has the same dtype, one of `choices`."""

    name: str
    choices: tuple[DType, ...]

    def __post_init__(self) -> None:
        if not self.choices:
            raise DefinitionError(f"dtype variable {self.name} needs at least one dtype to choose from")

    def __repr__(self) -> str:
        return self.name


AnyDType = Union[DType, DTypeVar]


def dtype_var(name: str, *choices: DType) -> DTypeVar:
    """A dtype variable: `T = dtype_var("T", f16, bf16, f32)`."""
    found = tuple(map(from_torch, choices))
    for choice in found:
        if not isinstance(choice, DType):
            raise DefinitionError(f"dtype variable {name}: {told_of(choice)} is no dtype; expected some such as f16")
    return DTypeVar(name, found)  # type: ignore[arg-type]


def dtype(name: str) -> DType:
    """The dtype called `name`, as in `f16` or `bf16`."""
    if not isinstance(name, str) or name not in DTYPES:
        raise DefinitionError(f"unknown dtype {told_of(name)}; expected one of {', '.join(DTYPES)}")
    return DTYPES[name]


def from_torch(given: object) -> object:
    """The dtype that holds the same values as torch's own, such as `torch.float16` (float32 is f32); anything else as it is."""
    told = str(given) if type(given).__module__ == "torch" else ""
    return next((known for known in DTYPES.values() if told == f"torch.{known.torch}"), given)


def compute_dtype(t: DType) -> DType:
    """The dtype arithmetic on values of `t` is done in: f32 for the narrower floats, i32 for i8, else `t` itself."""
    if t.kind == "float":
        return f64 if t is f64 else f32
    return i32 if t is i8 else t


def promote(a: DType, b: DType) -> DType:
    """The dtype of an arithmetic result of two computed values: float over int over bool, then the wider."""
    a, b = compute_dtype(a), compute_dtype(b)
    rank = {"bool": 0, "int": 1, "float": 2}
    if rank[a.kind] != rank[b.kind]:
        return a if rank[a.kind] > rank[b.kind] else b
    return a if a.bits >= b.bits else b

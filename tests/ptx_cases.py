"""Small kernels that call the functions of the PTX layer, with what they must give: for the emulator and for a GPU alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kgen.codegen.library import namespace_ptx
from kgen.codegen.render import declaration, wgmma_shapes
from kgen.codegen.source import Extent, Integer, Launch, Param, Pointer, Scalar, Source, TensorMap
from kgen.dsl.target import Arch, sm
from kgen.dsl.types import DType, dtype

SM90 = sm(90, "a")

_HEAD = """extern "C" __global__ void __launch_bounds__({threads}, 1) kernel({signature}) {{
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned base = ptx::smem_address(shared);
  const int t = threadIdx.x;
"""


@dataclass(frozen=True)
class Case:
    """A launch: `given` are the arrays before it and `expected` those that it changes, by the names of their pointers.

    An array that is not given before the launch is an output whose content does not count. `extents` are those of tensor
    maps, `numbers` the values of Integer and Scalar parameters. `slack` is the error allowed, relative to the largest.
    """

    name: str
    source: Source
    grid: tuple[int, int, int]
    given: Mapping[str, np.ndarray]
    expected: Mapping[str, np.ndarray]
    extents: Mapping[str, Extent] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    slack: float = 0.0

    def __str__(self) -> str:
        return self.name

    def compare(self, name: str, got: np.ndarray) -> None:
        """Fails where the array `name` is not as expected."""
        want = self.expected[name]
        if self.slack:
            np.testing.assert_allclose(
                got.astype(np.float64), want.astype(np.float64), rtol=0, atol=self.slack * float(np.abs(want).max())
            )
        else:
            np.testing.assert_array_equal(got, want)


def source(
    body: str,
    params: Sequence[Param],
    *,
    threads: int = 128,
    shared: int = 0,
    arch: Arch = SM90,
    cluster: int = 1,
    cooperative: bool = False,
) -> Source:
    """A kernel of `threads` threads with `shared` bytes at the address `base`, `t` being the thread."""
    signature = ", ".join(declaration(param) for param in params)
    text = _HEAD.format(threads=threads, signature=signature) + body.rstrip() + "\n}\n"
    launch = Launch((1, 1, 1), (threads, 1, 1), shared, (cluster, 1, 1), cooperative)
    includes = tuple(f"cuda_{name}.h" for name in ("fp16", "bf16", "fp8"))
    return Source("", includes, namespace_ptx(text, wgmma_shapes(text)), text, "kernel", tuple(params), launch, arch)


_DTYPES = {np.float32: "f32", np.float16: "f16", np.int32: "i32", np.int8: "i8", np.float64: "f64", np.int64: "i64"}


def dtype_of(array: np.ndarray) -> DType:
    """kgen's dtype of an array's elements. Unsigned words are those of their width."""
    kind = np.dtype(array.dtype.str.replace("u", "i")).type
    return dtype(_DTYPES[kind])


def pointer(name: str, array: np.ndarray, access: str = "in") -> Pointer:
    """A pointer to an array."""
    return Pointer(name, dtype_of(array), name, access)  # type: ignore[arg-type]


def number(name: str) -> Integer:
    """An int; its value is in Case.numbers."""
    return Integer(name, 0)


def case(
    name: str,
    body: str,
    given: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    *,
    maps: Sequence[tuple[TensorMap, Extent]] = (),
    numbers: Mapping[str, int] | None = None,
    grid: int = 1,
    slack: float = 0.0,
    **launch: object,
) -> Case:
    """A Case of a body whose parameters are the arrays not shown by a tensor map, the maps, and the numbers."""
    shown = {map.operand for map, _ in maps}
    numbers = numbers or {}
    params: list[Param] = [map for map, _ in maps]
    for array in dict.fromkeys((*given, *expected)):
        if array not in shown:
            access = "out" if array in expected else "in"
            params.append(pointer(array, expected[array] if array in expected else given[array], access))
    params += [number(n) for n in numbers]
    made = source(body, params, **launch)  # type: ignore[arg-type]
    return Case(name, made, (grid, 1, 1), given, expected, {map.name: extent for map, extent in maps}, numbers, slack)


def shown(
    name: str, array: np.ndarray, box: tuple[int, ...], swizzle: int = 0, access: str = "in"
) -> tuple[TensorMap, Extent]:
    """The map `map_name` of a dense or strided array, box sizes in the order of coordinates: the contiguous axis first."""
    element = dtype_of(array)
    extent = Extent(array.shape[::-1], tuple(s // array.itemsize for s in array.strides[::-1][1:]))
    return TensorMap(f"map_{name}", element, name, access, extent.sizes, extent.strides, box, swizzle), extent  # type: ignore[arg-type]


__all__ = ["SM90", "Case", "Extent", "Scalar", "case", "shown", "source"]

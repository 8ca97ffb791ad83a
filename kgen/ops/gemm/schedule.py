"""What the GEMM schedules share: how a problem's operands appear in the templates, launch parameters, the cost model's base."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from kgen.codegen.expression import Argument, pointwise_function
from kgen.codegen.names import identifier, plain
from kgen.codegen.source import Integer, Param, Pointer, Scalar
from kgen.dsl.choice import rule, sized
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import Dim, Size
from kgen.dsl.size import ceil_div as ceil_div_size
from kgen.dsl.target import Arch, Target, sm
from kgen.dsl.types import DType, bf16, e4m3, e5m2, f16, i32, tf32
from kgen.dsl.vector import Vector, ceil_div, gcd, maximum
from kgen.ops.common.memory_bound import LINE, SECTOR
from kgen.ops.gemm.problem import Gemm, Matrix, Scale, contraction, describe

#: M, N and K are counted in 32 bits, with room for what a whole grid copies, or a block multiplies, beyond the end.
LARGEST = 2**31 - 2**20 - 1
#: What wgmma multiplies here.
WGMMA_OPERANDS = (f16, bf16, tf32, e4m3, e5m2)


@dataclass(frozen=True)
class OperandAccess:
    """A or B as the templates see it: its tile in shared memory, and C++ for where the tile lies in global memory.

    `element` is C++ for the offset of one element, and `scale` for its scale, empty where it has none.
    """

    name: str
    ctype: str
    pack: int
    k_major: str
    transposed: str
    tile_shape: str
    share: str
    padding: int
    tile_offset: str
    row_stride: str
    column_stride: str
    left: str
    advance: str
    batch_offset: str
    element: str
    scale: str


@dataclass(frozen=True)
class EpilogueOperand:
    """An operand of the epilogue: `kind` vector, strided or value (one for all columns), and C++ for its offset at (m, n).

    `row`: whether it has rows.
    """

    name: str
    ctype: str
    kind: str
    offset: str
    align: int
    row: bool


@dataclass(frozen=True)
class GemmContext:
    """`g` in the templates: what follows from the problem, then what configs decide.

    `evaluate_only`: the epilogue makes values that others store. `whole_vectors`: rows of operands are whole vectors, so an
    access is inside or outside as a whole, a load under one predicate. `end_m` and `end_n`: C++ for where rows and columns end.
    `half_sums`: sums are f16's, whatever they are held in.
    """

    a: OperandAccess
    b: OperandAccess
    extras: tuple[EpilogueOperand, ...]
    outputs: tuple[EpilogueOperand, ...]
    batch_rank: int
    result_type: str
    half_sums: bool
    epilogue: str
    arguments: str
    store_count: int
    offsets: str
    splits: int = 1
    stages: int = 1
    copy: str = "register"
    overlapped: bool = False
    evaluate_only: bool = False
    whole_vectors: bool = False
    end_m: str = "M"
    end_n: str = "N"


def matrix_names(g: Gemm) -> list[str]:
    """Parameter names of a, b, the extras and the outputs. An input that is several of these has a name for each."""
    return list(_matrix_names(tuple(x.operand.name for x in g.matrices), tuple(scale_names(g))))


@functools.lru_cache(maxsize=256)
def _matrix_names(operands: tuple[str, ...], scales: tuple[str, ...]) -> tuple[str, ...]:
    own = list(map(identifier, operands))
    taken, names = {plain(name) for name in (*own, *scales)}, list[str]()
    for i, name in enumerate(own):
        if name in (*names, *scales):
            name += "_right" if i == 1 else "_beside"
            while plain(name) in taken:
                name += "_"
        names.append(name)
    return tuple(names)


def scale_names(g: Gemm) -> list[str]:
    """Parameter names of the scales of a and of b."""
    return [identifier(s.matrix.operand.name) for s in g.scales]


def scale_element(scale: Scale, name: str, outer: str, block: str, axis: str, batch: str = "batch{}") -> str:
    """C++ for the scale of the row or column `outer` of A or B in block `block` of K; `axis`: m or n, as strides are named."""
    terms = [f"static_cast<long long>({batch.format(d)}) * {name}_sb{d}" for d, s in enumerate(scale.matrix.batch) if s]
    whole = outer if outer.isidentifier() else f"({outer})"
    row = outer if scale.outer == 1 else f"{whole} / {scale.outer}"
    terms += [f"static_cast<long long>({row}) * {name}_s{axis}", f"static_cast<long long>({block}) * {name}_sk"]
    return f"{name}[{' + '.join(terms)}]"


def scale_parameters(g: Gemm, names: Sequence[str], axes: str = "mn") -> list[Param]:
    """The scales of A and B, and their strides; `axes` names their rows and columns."""
    found: list[Param] = [
        Pointer(n, s.matrix.operand.dtype, s.matrix.operand.name, "in") for s, n in zip(g.scales, names)
    ]
    for scale, name, axis in zip(g.scales, names, axes):
        strides = [f"s{axis}", "sk", *(f"sb{d}" for d, s in enumerate(scale.matrix.batch) if s)]
        found += [Integer.stride(f"{name}_{s}") for s in strides]
    return found


def offset_parameters(g: Gemm) -> list[Param]:
    """Where the groups of a grouped product begin."""
    return [Pointer(identifier(g.offsets.name), g.offsets.dtype, g.offsets.name, "in")] if g.offsets else []


def is_k_major(g: Gemm, side: str) -> bool:
    """Whether the tile of A ("a") or B ("b") runs along K; so does that of an operand with two strides."""
    if side == "a":
        return g.a.column == 1 or g.a.row != 1
    return g.b.row == 1 or g.b.column != 1


def is_strided(x: Matrix) -> bool:
    """Whether neither of the matrix's own axes is contiguous."""
    return 1 not in (x.row, x.column)


def widest_pack(x: Matrix) -> int:
    """The most elements that one access may take: 16 bytes, less where the alignment of the rows is less, 1 where strided."""
    return 1 if is_strided(x) else max(1, min(16, x.operand.row_align) // x.operand.dtype.bytes)


def operand_access(g: Gemm, side: str, pack: int, padding: int, transpose: bool) -> OperandAccess:
    """A or B for the templates; `padding` in 16-byte units. With `transpose` a tile along K is transposed for shared memory."""
    names = matrix_names(g)
    x, name = (g.a, names[0]) if side == "a" else (g.b, names[1])
    outer, size = ("m", "M") if side == "a" else ("n", "N")
    k_major, strided = is_k_major(g, side), is_strided(x)
    long = "static_cast<long long>"
    s_outer, s_k = f"{name}_s{outer}", f"{name}_sk"
    if k_major:
        rows, columns, stride, along, tile = f"{outer}0", "k_first * BK", s_outer, s_k, f"B{size}, BK"
        left, advance = f"{size} - {outer}0, k_left", f"BK * {s_k}" if strided else "BK"
    else:
        rows, columns, stride, along, tile = "k_first * BK", f"{outer}0", s_k, s_outer, f"BK, B{size}"
        left, advance = f"k_left, {size} - {outer}0", f"BK * {s_k}"
    step = f"{long}({columns}) * {along}" if strided else columns
    index = f"{long}({outer}0 + {'row(i)' if side == 'a' else 'column(j)'})"
    by_outer = index if (not strided and not k_major) else f"{index} * {s_outer}"
    scale = ""
    if g.scales:
        s, s_name = (g.scales[side == "b"], scale_names(g)[side == "b"])
        place = f"{outer}0 + {'row(i)' if side == 'a' else 'column(j)'}"
        scale = f" * {scale_element(s, s_name, place, f'k / {s.depth}', outer)}"
    by_k = "k" if (not strided and k_major) else f"{long}(k) * {s_k}"
    return OperandAccess(
        name=name,
        ctype=x.operand.dtype.ctype,
        pack=min(pack, widest_pack(x)),
        k_major="true" if k_major and not transpose else "false",
        transposed="true" if k_major and transpose else "false",
        tile_shape=tile if not transpose else f"BK, B{size}",
        share=f"TileShare<{tile}, THREADS, PACK_{side.upper()}>",
        padding=padding,
        tile_offset=f" + {long}({rows}) * {stride} + {step}",
        row_stride=stride,
        column_stride=along if strided else "1",
        left=left,
        advance=advance,
        batch_offset=" + ".join(f"{long}(batch{d}) * {name}_sb{d}" for d, s in enumerate(x.batch) if s) or "0",
        element=f"{by_outer} + {by_k}",
        scale=scale,
    )


def epilogue_operand(g: Gemm, x: Matrix, name: str, is_output: bool) -> EpilogueOperand:
    """An extra input or an output for the templates."""
    long = "static_cast<long long>"
    column = 1 if is_output and g.N <= 1 else x.column
    kind = {1: "vector", 0: "value"}.get(column, "strided")
    terms = [f"{long}(batch{d}) * {name}_sb{d}" for d, s in enumerate(x.batch) if s]
    terms += [f"{long}(m) * {name}_sm"] if x.row or is_output else []
    terms += ["n"] if kind == "vector" else [f"{long}(n) * {name}_sn"] if kind == "strided" else []
    return EpilogueOperand(
        name, x.operand.dtype.ctype, kind, " + ".join(terms) or "0", x.operand.row_align, bool(x.row) or is_output
    )


def context(
    g: Gemm, problem: Problem, pack: int = 1, padding: tuple[int, int] = (0, 0), transpose: bool = False, **choices: Any
) -> GemmContext:
    """The templates' `g` for a problem; `choices` are the fields of GemmContext that a config decides."""
    graph = problem.graph
    product = contraction(graph)
    assert product is not None
    names = matrix_names(g)[2:]
    extra_names = names[: len(g.extras)]
    extras = tuple(epilogue_operand(g, x, name, False) for x, name in zip(g.extras, extra_names))
    outputs = tuple(epilogue_operand(g, x, name, True) for x, name in zip(g.outputs, names[len(g.extras) :]))
    leaves = {n.attr: n for n in graph.nodes if n.op in ("input", "scalar")}
    result = product.dtype
    arguments = [Argument(product, "sum", result)]
    arguments += [
        Argument(leaves[x.operand.name], n, leaves[x.operand.name].dtype) for x, n in zip(g.extras, extra_names)
    ]
    arguments += [Argument(leaves[s.name], identifier(s.name), s.dtype) for s in graph.scalars if s.name in leaves]
    values = ["sums[i]"]
    values += [f"{x.name}_values" if x.kind == "value" else f"{x.name}_values[i]" for x in extras]
    values += [identifier(s.name) for s in graph.scalars if s.name in leaves]
    values += [f"{y.name}_values[i]" for y in outputs]
    dtypes = [y.operand.dtype for y in g.outputs]
    return GemmContext(
        a=operand_access(g, "a", pack, padding[0], transpose),
        b=operand_access(g, "b", pack, padding[1], transpose),
        extras=extras,
        outputs=outputs,
        batch_rank=len(g.batch),
        result_type=result.ctype,
        half_sums=g.accumulate is f16,
        epilogue=pointwise_function("epilogue", arguments, graph.results, dtypes, all(t.bits <= 16 for t in dtypes)),
        arguments=", ".join(values),
        store_count=max(4, min(16 // t.bytes for t in dtypes)),
        offsets=identifier(g.offsets.name) if g.offsets else "",
        **choices,
    )


def parameters(g: Gemm, problem: Problem, workspace: Sequence[Pointer] = ()) -> tuple[Param, ...]:
    """The kernel's parameters: pointers, workspace, sizes, the strides that are not 1 or 0, scalars."""
    names = matrix_names(g)
    found: list[Param] = []
    for i, (x, name) in enumerate(zip(g.matrices, names)):
        o = x.operand
        found.append(Pointer(name, o.dtype, o.name, "in" if i < 2 + len(g.extras) else "out"))
    found += workspace
    found += offset_parameters(g)
    found += scale_parameters(g, scale_names(g))
    strides: list[Param] = []
    for i, (x, name) in enumerate(zip(g.matrices[:2], names)):
        axes = ("sm", "sk") if i == 0 else ("sk", "sn")
        used = [axis for axis, s in zip(axes, (x.row, x.column)) if s != 1 or is_strided(x)]
        if x.row == 1 and x.column == 1:  # both may be 1 where an axis has size 1: the tile runs along K
            used = ["sm" if i == 0 else "sn"]
        used += [f"sb{d}" for d, s in enumerate(x.batch) if s]
        strides += [Integer.stride(f"{name}_{axis}") for axis in used]
    return (*found, *number_parameters(g, problem, names, strides))


def number_parameters(
    g: Gemm,
    problem: Problem,
    names: Sequence[str],
    strides: Sequence[Param] = (),
    axes: str = "mn",
    stored: bool = True,
) -> list[Param]:
    """Sizes, the `strides` of A and B, those of the extras and, where threads store them, of the outputs; scalars.

    `names` are those of all matrices, `axes` the problem's axes that are the kernel's rows and columns.
    """
    rows, columns = axes[0], axes[1]
    sizes = {"M": rows.upper(), "N": columns.upper(), "K": "K"}
    found: list[Param] = [Integer(name, Dim(size), most=LARGEST) for name, size in sizes.items()]
    found += [Integer(f"batches{d}", Dim(f"batches{d}")) for d in range(len(g.batch))]
    found += strides
    for i, (x, name) in enumerate(zip((*g.extras, *(g.outputs if stored else ())), names[2:])):
        is_output = i >= len(g.extras)
        used = [("m", rows)] if x.row or is_output else []
        used += [("n", columns)] if epilogue_operand(g, x, name, is_output).kind == "strided" else []
        found += [Integer(f"{name}_s{axis}", Dim(plain(f"{name}_s{origin}")), 64) for axis, origin in used]
        found += [Integer.stride(f"{name}_sb{d}") for d, s in enumerate(x.batch) if s]
    named = {n.attr for n in problem.graph.nodes if n.op == "scalar"}
    return found + [Scalar(identifier(s.name), s.dtype) for s in problem.graph.scalars if s.name in named]


class GemmSchedule(Schedule):
    """Base of the GEMM schedules: the launch's symbols and sizes."""

    one_source = True
    recorded = True

    BM: int
    BN: int
    splits: int

    @rule
    @sized
    def sizes_in_32_bits(self, problem: Problem, target: Target) -> Vector:
        """M, N, K, batches and the number of blocks are 32-bit integers in the kernel (offsets in memory are not)"""
        g = describe(problem)
        return (maximum(g.M, g.N, g.K, *g.batch) <= LARGEST) & (self.blocks_of(g) < 2**26)

    @classmethod
    def class_of(cls, problem: NormalProblem) -> Hashable:
        """The graph; of each matrix its layout and alignment, which batch axes move it, and whether TMA can store it."""
        return _class_of(problem)

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> Schedule:
        """The best of the configs that a search considers, by the model, at M as `kgen.tuner.foreseen` rounds it.

        Rules that ask for M hold for fewer rows where they hold for more.
        """
        from kgen.tuner.foreseen import first  # here, as it loads numpy

        return first(cls, problem, target)[0]

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """M, N, K, batches0.. and the strides x_sm, x_sk, x_sn, x_sb0.. of every operand, those of scales over blocks."""
        g = describe(problem)
        found = {"M": g.M, "N": g.N, "K": g.K} | {f"batches{d}": n for d, n in enumerate(g.batch)}
        for i, (x, name) in enumerate(zip(g.matrices, matrix_names(g))):
            row, column = ("sm", "sk") if i == 0 else ("sk", "sn") if i == 1 else ("sm", "sn")
            found |= {f"{name}_{row}": x.row, f"{name}_{column}": x.column}
            found |= {f"{name}_sb{d}": s for d, s in enumerate(x.batch)}
        for scale, name, (row, column) in zip(g.scales, scale_names(g), (("sm", "sk"), ("sk", "sn"))):
            found |= {f"{name}_{row}": scale.matrix.row, f"{name}_{column}": scale.matrix.column}
            found |= {f"{name}_sb{d}": s for d, s in enumerate(scale.matrix.batch)}
        return {plain(name): n for name, n in found.items()}

    def blocks_of(self, g: Gemm) -> Vector:
        """Output tiles of all batches."""
        return ceil_div(g.M, self.BM) * ceil_div(g.N, self.BN) * g.batches

    def tiles(self, g: Gemm) -> Size:
        """Output tiles of all batches, over the symbols; of groups, those of all rows."""
        count = ceil_div_size(Dim("M"), self.BM) * ceil_div_size(Dim("N"), self.BN)
        for d in range(0 if g.offsets else len(g.batch)):
            count = count * Dim(f"batches{d}")
        return count

    def split_workspace(self, problem: Problem) -> list[Pointer]:
        """What split_k_fixup takes where `splits` blocks share the sums of a tile."""
        if self.splits == 1:
            return []
        g, product = describe(problem), contraction(problem.graph)
        assert product is not None
        sums = self.tiles(g) * (self.splits * self.BM * self.BN)
        return [
            Pointer("partials", product.dtype, "", "scratch", sums),
            Pointer("counters", i32, "", "counters", self.tiles(g)),
        ]


def tma_addresses(x: Matrix) -> bool:
    """Whether TMA can address an operand: one contiguous axis, none expanded, rows and address multiples of 16 bytes."""
    o = x.operand
    expanded = any(n > 1 and s == 0 for n, s in zip(o.shape[-2:], o.strides[-2:]))
    return not is_strided(x) and not expanded and o.row_align >= 16


def rows_begin_with(x: Matrix, width: int) -> bool:
    """Whether all rows of an operand begin with a sector of 32 bytes, or a line of 128, where the first does."""
    return not any(pitch % width for pitch in _pitches(x))


def lines_of_rows(x: Matrix) -> Vector:
    """How many lines of 128 bytes as many bytes of a row lie in, in the mean over an operand's rows: from 1 to 2."""
    return 2 - functools.reduce(gcd, _pitches(x), LINE) / LINE


def _pitches(x: Matrix) -> list[int]:
    """Bytes from a row of an operand to the next, and from a matrix to the next."""
    return [stride * x.operand.dtype.bytes for stride in (x.row, x.column, *x.batch) if stride != 1]


@functools.lru_cache(maxsize=64)
def left_to_wgmma(problem: Problem, target: Target) -> bool:
    """Whether the target multiplies the problem best by wgmma: operands that TMA can address, on sm_90a."""
    g = describe(problem)
    served = g.a.operand.dtype in WGMMA_OPERANDS and min(g.M, g.N, g.K) >= 1
    return bool(target.arch == sm(90, "a") and served and tma_addresses(g.a) and tma_addresses(g.b))


def rate_class(dtype: DType, accumulate: DType) -> str:
    """The class of tensor-core rates (`Target.tensor_flops`) of a product."""
    if dtype is f16 and accumulate is f16:
        return "f16_f16acc"
    return (
        "f16_f32acc" if dtype in (f16, bf16) else "tf32" if dtype is tf32 else "fp8" if dtype in (e4m3, e5m2) else "i8"
    )


def least_arch(g: Gemm) -> Arch:
    """The least architecture on which the operands' dtypes exist."""
    dtypes = {x.operand.dtype for x in g.matrices}
    return sm(89) if dtypes & {e4m3, e5m2} else sm(80) if dtypes & {bf16, tf32} else sm(75)


def memory_seconds(g: Gemm, BM: Vector, BN: Vector, target: Target, through_l2: float, reached: float) -> Vector:
    """Time for the tiles' operands to come from L2, `through_l2` times as fast as memory, and all from memory, at its share."""
    size = g.a.operand.dtype.bytes
    tiles = ceil_div(g.M, BM) * ceil_div(g.N, BN) * g.batches
    by_tiles = tiles * (BM + BN) * g.K * size
    once = g.batches * (g.M * g.K + g.K * g.N) * size
    once += g.batches * g.M * g.N * sum(y.operand.dtype.bytes for y in g.outputs)
    return maximum(by_tiles / (through_l2 * target.bandwidth), once / (reached * target.bandwidth))


@functools.lru_cache(maxsize=1024)
def _class_of(problem: NormalProblem) -> Hashable:
    g = describe(problem)

    def form(x: Matrix) -> Hashable:
        o = x.operand
        strides = tuple(min(s, 2) for s in (x.row, x.column, *x.batch))
        expanded = tuple(n > 1 and s == 0 for n, s in zip(o.shape[-2:], o.strides[-2:]))
        return strides, min(16, o.row_align), expanded, rows_begin_with(x, SECTOR)

    # Of rows of results TMA writes whole 16 bytes.
    lengths = (g.N if y.column == 1 or g.N <= 1 else g.M for y in g.outputs)
    whole = tuple(n * y.operand.dtype.bytes % 16 == 0 for n, y in zip(lengths, g.outputs))
    ones = g.M <= 1, g.N <= 1, g.K <= 1
    lines = rows_begin_with(g.a, LINE), rows_begin_with(g.b, LINE)
    return problem.graph.digest, len(g.batch), ones, tuple(map(form, g.matrices)), lines, whole, _blocks(g)


def _blocks(g: Gemm) -> Hashable:
    """Of groups or scaled blocks, what rules ask of them."""
    return g.offsets is not None, tuple((s.outer, s.depth) for s in g.scales)

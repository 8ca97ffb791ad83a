"""The shipped operators that add at indices: histograms, index_add, an embedding's gradient. The scatter_add family serves them.

Sums of floats are made by atomic additions in any order, so that their last bits may differ from run to run; those of integers
never do. Ids outside the result are left out.
"""

from __future__ import annotations

from functools import partial

from kgen.dsl.expr import Expr
from kgen.dsl.indexing import scatter_add
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.size import dims
from kgen.dsl.types import bf16, dtype_var, f16, f32, f64, i8, i32, i64

M, N, K, V, C, BINS = dims("M N K V C BINS")
T = dtype_var("T", f16, bf16, f32, f64)
I = dtype_var("I", i64, i32)  # noqa: E741
#: What is counted in.
R = dtype_var("R", i32, i64)


@Operator
def histogram(x: Tensor[I, ...]) -> Tensor[R, BINS]:
    """How often each number from 0 to BINS - 1 occurs, as torch's bincount; BINS is that of `out=`."""
    return scatter_add(BINS, x, 1)


@partial(Operator, suites={"default": [{"...": (2**26,), "BINS": 256}]})
def histogram_bytes(x: Tensor[i8, ...]) -> Tensor[R, BINS]:
    """The same of bytes, such as those of a torch.uint8 tensor's `view(torch.int8)`: -1 counts as 255. BINS is that of `out=`."""
    return scatter_add(BINS, x % 256, 1)


def _added(x: Expr, ids: Expr, source: Expr, alpha: float, axis: int) -> Expr:
    """In the dtype of x, as torch has it: sums of 16 bits are made by additions of 16 bits."""
    return x + alpha * scatter_add(x.shape.dims[axis], ids, source, axis, accumulate=source.dtype)  # type: ignore[arg-type]


@partial(Operator, suites={"default": [{"V": 2**16, "C": 256, "N": 2**18}]})
def index_add(x: Tensor[T, V, C], ids: Tensor[I, N], source: Tensor[T, N, C], alpha: float = 1.0) -> Tensor[T, V, C]:
    """x with alpha * source[i] added to its row ids[i], as torch's index_add along dimension 0; `out` may be x itself.

    What lies behind the first axis is one axis here: any tensor's, by a view.
    """
    return _added(x, ids, source, alpha, 0)


@partial(Operator, suites={"default": [{"M": 32, "V": 1024, "C": 256, "N": 4096}]})
def index_add_middle(
    x: Tensor[T, M, V, C], ids: Tensor[I, N], source: Tensor[T, M, N, C], alpha: float = 1.0
) -> Tensor[T, M, V, C]:
    """The same along an axis with others before and behind it: torch's index_add along dimension 1 of 3, of any by views."""
    return _added(x, ids, source, alpha, 1)


@partial(Operator, suites={"default": [{"M": 4096, "V": 1024, "N": 8192}]})
def index_add_last(
    x: Tensor[T, M, V], ids: Tensor[I, N], source: Tensor[T, M, N], alpha: float = 1.0
) -> Tensor[T, M, V]:
    """The same along the last axis."""
    return _added(x, ids, source, alpha, 1)


@partial(Operator, suites={"default": [{"N": 8192, "C": 1024, "V": 50257}, {"N": 8192, "C": 4096, "V": 32000}]})
def embedding_backward(dy: Tensor[T, N, C], ids: Tensor[I, N]) -> Tensor[T, V, C]:
    """The gradient of an embedding's table: each row is the sum, in f32, of dy where its id was taken. V is that of `out=`."""
    return scatter_add(V, ids, dy)


def _all(members: dict[str, object]) -> tuple[Operator, ...]:
    return tuple(member for member in members.values() if isinstance(member, Operator))


OPERATORS: tuple[Operator, ...] = _all(dict(globals()))

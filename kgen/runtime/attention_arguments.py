"""What the functions of attention ask of their arguments. Errors name the function, what was given and what was expected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgen.dsl.errors import ArgumentError, told_of
from kgen.runtime.pages import check_pages

if TYPE_CHECKING:
    from torch import Tensor

#: The furthest bound of a window: sums of it, a row and a shift are ints of 32 bits.
UNBOUNDED = 2**30


def check_causal(caller: str, causal: object) -> None:
    """Raises ArgumentError where it is none of the ways to be causal, nor False."""
    if not (isinstance(causal, (bool, str)) and causal in (False, True, "upper_left", "lower_right")):
        raise ArgumentError(f"{caller}: causal is {told_of(causal)}; expected True, False, upper_left or lower_right")


def sides(
    caller: str, causal: bool | str, window: tuple[int | None, int | None] | None
) -> tuple[int | None, int | None]:
    """How many columns a row sees to the left and to the right of the diagonal; None for no bound."""
    if window is not None and not (
        isinstance(window, (tuple, list)) and len(window) == 2 and all(x is None or type(x) is int for x in window)
    ):
        raise ArgumentError(
            f"{caller}: window is {told_of(window)}; expected two ints (left, right), None for no bound"
        )
    left, right = window if window is not None else (None, None)
    if causal:
        right = 0 if right is None else min(right, 0)
    return _limited(left), _limited(right)


def _limited(bound: int | None) -> int | None:
    return None if bound is None else max(-UNBOUNDED, min(bound, UNBOUNDED))


def check_lengths(lengths: object, batch: int, causal: bool | str) -> None:
    import torch

    check_tensor("lengths", lengths)
    assert isinstance(lengths, torch.Tensor)
    if lengths.dtype != torch.int32 or lengths.shape != (batch,):
        dtype = str(lengths.dtype).removeprefix("torch.")
        raise ArgumentError(f"attention: lengths {dtype} {list(lengths.shape)}; expected int32 [{batch}]")
    if causal == "upper_left":
        raise ArgumentError(
            "attention: causal is upper_left with lengths; expected lower_right: the last row sees the last key"
        )


def check_sinks(caller: str, sinks: object, heads: int) -> None:
    """Raises ArgumentError where these are no sinks of so many heads."""
    import torch

    check_tensor("sinks", sinks, caller)
    assert isinstance(sinks, torch.Tensor)
    dtype = str(sinks.dtype).removeprefix("torch.")
    if dtype not in ("float32", "float16", "bfloat16") or sinks.shape != (heads,):
        raise ArgumentError(
            f"{caller}: sinks {dtype} {list(sinks.shape)}; expected float32, float16 or bfloat16 [{heads}]: one a head of q"
        )


def check_tensor(name: str, x: object, caller: str = "attention") -> None:
    """Raises ArgumentError where it is none."""
    import torch

    if not isinstance(x, torch.Tensor):
        raise ArgumentError(f"{caller}: {name} is {type(x).__name__} {told_of(x)}; expected a torch tensor")


def check_kinds(caller: str, q: Tensor, k: Tensor, v: Tensor, axes: str, widest: int, fp8: bool = False) -> None:
    """Raises ArgumentError where q, k and v are not tensors with these axes, of one dtype of 16 bits or, with scales, of e4m3,
    or heads are wider.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x, caller)
    shapes = f"{caller}: q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    count = len(axes.split(", "))
    if axes and {q.ndim, k.ndim, v.ndim} != {count}:
        raise ArgumentError(f"{shapes}; expected {'four' if count == 4 else 'three'} axes each: {axes}")
    dtypes = [str(x.dtype).removeprefix("torch.") for x in (q, k, v)]
    if fp8 and set(dtypes) != {"float8_e4m3fn"}:
        raise ArgumentError(f"{caller}: q, k and v are {', '.join(dtypes)} with scales; expected float8_e4m3fn of all")
    if not fp8 and (len(set(dtypes)) > 1 or dtypes[0] not in ("float16", "bfloat16")):
        raise ArgumentError(
            f"{caller}: q, k and v are {', '.join(dtypes)}; expected float16 or bfloat16 of all: use half() or bfloat16()"
        )
    if max(q.shape[-1], v.shape[-1]) > widest:
        raise ArgumentError(f"{shapes}; expected heads of at most {widest} columns")


def check_operands(
    caller: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: str,
    widest: int,
    pages: Tensor | None = None,
    fp8: bool = False,
) -> None:
    """Raises ArgumentError where q, k and v do not fit each other, heads are wider, or the layout is none."""
    if not (isinstance(layout, str) and layout in ("BHND", "BNHD")):
        raise ArgumentError(f"{caller}: layout {told_of(layout)}; expected BHND or BNHD")
    check_kinds(caller, q, k, v, "batch, heads, rows, columns" if pages is None else "", widest, fp8)
    shapes = f"{caller}: q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if pages is not None:
        check_pages(q, k, v, pages, layout)
        return
    (B, H, _, D), (C, K, N, depth), (F, L, P, _) = (
        x.shape if layout == "BHND" else (x.shape[0], x.shape[2], x.shape[1], x.shape[3]) for x in (q, k, v)
    )
    if H % max(K, 1) or (K == 0 and H):
        raise ArgumentError(f"{shapes}; expected a multiple of {K} heads of q, as k has {K}")
    if (C, depth) != (B, D) or (F, L, P) != (B, K, N):
        raise ArgumentError(f"{shapes}, {layout}; expected k [{B}, {K}, {N}, {D}] and v [{B}, {K}, {N}, E] as BHND")


def sums_in_half(accumulate: object, q: Tensor) -> bool:
    """Whether products are summed in f16. Raises ArgumentError where they cannot be summed in `accumulate`."""
    import torch

    if accumulate is None or accumulate == torch.float32:
        return False
    if accumulate != torch.float16 or q.dtype != torch.float16:
        given = str(q.dtype).removeprefix("torch.")
        raise ArgumentError(
            f"attention: accumulate is {told_of(accumulate)} for q of {given}; expected torch.float32, or torch.float16 for q of "
            f"float16"
        )
    return True


def expanded(caller: str, bias: Tensor, q: Tensor, shape: tuple[int, ...], others: str) -> Tensor:
    """A bias as [B, H, M, N]. Raises ArgumentError where it does not broadcast so, or is neither of q's dtype nor of `others`."""
    given, own = (str(x.dtype).removeprefix("torch.") for x in (bias, q))
    if given not in (own, *others.split(" or ")):
        raise ArgumentError(f"{caller}: bias {given}; expected {own}, as q, {others}")
    try:
        return bias.expand(shape)
    except RuntimeError:
        raise ArgumentError(
            f"{caller}: bias {list(bias.shape)}; expected what broadcasts to [B, H, M, N], {list(shape)}"
        ) from None

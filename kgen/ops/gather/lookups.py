"""The shipped operators that move elements by index: embeddings, upsampling, heads, sequences, padding. By the gather family.

Sizes that no input tells come from `out=`: of upsampling the larger or smaller image, of a concatenation the total, of a
gradient the size of what it is a gradient of. Ids outside their axis read nothing and give 0; so an id of -1 is a row of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kgen.dsl import functions as F
from kgen.dsl.expr import Expr, cast, where
from kgen.dsl.indexing import arange, scatter_add, size, take
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Sizes
from kgen.dsl.size import Dim, dims
from kgen.dsl.types import bf16, dtype_var, f16, f32, f64, i32, i64

B, S, H, D, V, C, N = dims("B S H D V C N")
W, OH, OW, S1, S2, P = dims("W OH OW S1 S2 P")
T = dtype_var("T", f16, bf16, f32, f64)
I = dtype_var("I", i64, i32)  # noqa: E741

#: Vocabularies and widths of language models, with the tokens of a batch.
_TABLES: Sequence[Sizes] = ({"V": 50257, "C": 1024, "...": (8192,)}, {"V": 32000, "C": 4096, "...": (8192,)})
#: Feature maps of an image model made twice as large, of many channels and of few.
_IMAGES: Sequence[Sizes] = (
    {"...": (2, 1280), "H": 32, "W": 32, "OH": 64, "OW": 64},
    {"...": (1, 512), "H": 256, "W": 256, "OH": 512, "OW": 512},
)
#: The heads of an encoder's batch, and of a longer sequence's.
_HEADS: Sequence[Sizes] = ({"B": 32, "S": 512, "H": 12, "D": 64}, {"B": 2, "S": 2048, "H": 32, "D": 128})
#: One new token each for a batch of sequences, and a sequence made twice as long.
_CACHES: Sequence[Sizes] = (
    {"B": 16, "H": 8, "S1": 4095, "S2": 1, "S": 4096, "D": 128},
    {"B": 1, "H": 32, "S1": 4096, "S2": 4096, "S": 8192, "D": 128},
)
#: 64 sequences of at most 512 tokens, 20000 in all.
_PADDED: Sequence[Sizes] = ({"N": 32768, "C": 1024, "S": 20000},)


@partial(Operator, suites={"default": _TABLES})
def embedding(table: Tensor[T, V, C], ids: Tensor[I, ...]) -> Tensor[T, ..., C]:
    """The rows of a table at ids, as torch's embedding; an id outside the table gives zeros."""
    return take(table, ids)


def nearest(source: Dim, target: Dim) -> Expr:
    """For each position of `target` that of `source` it is nearest to, as torch's interpolate(mode="nearest"), in f32."""
    scale = cast(cast(size(source), f32) / cast(size(target), f32), f32)
    place = cast(cast(arange(target), f32) * scale, f32)
    return F.minimum(cast(F.floor(place), i32), size(source) - 1)


@partial(Operator, suites={"default": _IMAGES})
def upsample_nearest(x: Tensor[T, ..., H, W]) -> Tensor[T, ..., OH, OW]:
    """Images in another size, as torch's interpolate(mode="nearest"); any scale. The size is that of `out=`."""
    return take(take(x, nearest(H, OH), axis=-2), nearest(W, OW), axis=-1)


@partial(Operator, suites={"default": _IMAGES})
def upsample_nearest_backward(dy: Tensor[T, ..., OH, OW]) -> Tensor[T, ..., H, W]:
    """The gradient of upsample_nearest: each input is the sum of the outputs that were made of it. The size is that of `out=`."""
    return scatter_add(H, nearest(H, OH), scatter_add(W, nearest(W, OW), dy, axis=-1), axis=-2)


@partial(Operator, suites={"default": _HEADS})
def split_heads(
    q: Tensor[T, B, H, S, D],
    k: Tensor[T, B, H, S, D],
    v: Tensor[T, B, H, S, D],
    bias_q: Tensor[T, H, 1, D],
    bias_k: Tensor[T, H, 1, D],
    bias_v: Tensor[T, H, 1, D],
) -> tuple[Tensor[T, B, H, S, D], Tensor[T, B, H, S, D], Tensor[T, B, H, S, D]]:
    """Queries, keys and values of a fused projection [B, S, 3, H, D] with its bias [3, H, D], each dense as [B, H, S, D].

    Each is a view, as by `qkv[:, :, i].transpose(1, 2)` and `bias[i].unsqueeze(1)`: strides are free, so this is elementwise.
    """
    return q + bias_q, k + bias_k, v + bias_v


@partial(Operator, suites={"default": [{**sizes, "P": 3} for sizes in _HEADS]})
def merge_heads(
    q: Tensor[T, B, S, 1, H, D], k: Tensor[T, B, S, 1, H, D], v: Tensor[T, B, S, 1, H, D]
) -> Tensor[T, B, S, P, H, D]:
    """Queries, keys and values side by side, as the gradient of a fused projection: P = 3, by `out=`.

    Each is a view of its [B, H, S, D], as by `q.transpose(1, 2).unsqueeze(2)`: strides are free.
    """
    return take(q, arange(P), axis=2) + take(k, arange(P) - 1, axis=2) + take(v, arange(P) - 2, axis=2)


@partial(Operator, suites={"default": _CACHES})
def concat_sequence(past: Tensor[T, B, H, S1, D], new: Tensor[T, B, H, S2, D]) -> Tensor[T, B, H, S, D]:
    """Keys or values of a cache and of new tokens behind each other; S = S1 + S2, by `out=`. What is beyond is zero."""
    place = arange(S)
    return where(arange(S, 1) < size(S1), take(past, place, axis=2), take(new, place - size(S1), axis=2))


@partial(Operator, suites={"default": _PADDED})
def remove_padding(x: Tensor[T, N, C], rows: Tensor[I, S]) -> Tensor[T, S, C]:
    """The rows of a padded batch (its batch and sequence as one axis) at the given places: those of true tokens."""
    return take(x, rows)


@partial(Operator, suites={"default": _PADDED})
def restore_padding(x: Tensor[T, S, C], places: Tensor[I, N]) -> Tensor[T, N, C]:
    """Tokens back in a padded batch: `places` tells each row which token it holds; -1, and anything outside, is zeros."""
    return take(x, places)


def _all(members: dict[str, object]) -> tuple[Operator, ...]:
    return tuple(member for member in members.values() if isinstance(member, Operator))


OPERATORS: tuple[Operator, ...] = _all(dict(globals()))

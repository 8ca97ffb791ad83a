"""The shipped operators that read and add by index, called on tensors as users do, against torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import kgen
from kgen.dsl.errors import ArgumentError
from kgen.ops.gather import lookups
from kgen.ops.scatter import scatters

HALVES = [torch.float16, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("ids", [torch.int32, torch.int64], ids=str)
def test_embedding(dtype: torch.dtype, ids: torch.dtype) -> None:
    table, at = torch.randn(20, 24).to(dtype), torch.randint(0, 20, (3, 5), dtype=ids)
    assert torch.equal(kgen.embedding(table, at), F.embedding(at, table))
    dy = torch.randint(-3, 4, (15, 24)).to(dtype)
    got = kgen.embedding_backward(dy, at.flatten(), out=torch.empty_like(table))
    assert torch.equal(got, torch.zeros_like(table).index_add_(0, at.flatten().long(), dy))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_upsampling(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 8, 12).to(dtype)
    out = torch.empty(2, 3, 20, 24, dtype=dtype)
    assert kgen.upsample_nearest(x, out=out) is out
    assert torch.equal(out, F.interpolate(x, (20, 24), mode="nearest"))
    dy = torch.randint(-3, 4, out.shape).to(dtype)
    got = kgen.upsample_nearest_backward(dy, out=torch.empty_like(x))
    want = torch.ops.aten.upsample_nearest2d_backward(dy, [20, 24], list(x.shape))
    assert torch.equal(got, want)


def test_a_size_that_no_input_tells_is_asked_for() -> None:
    with pytest.raises(ArgumentError, match="no input tells OH, OW of out"):
        kgen.upsample_nearest(torch.zeros(1, 4, 4))
    with pytest.raises(ArgumentError, match="no input tells BINS of out"):
        kgen.histogram(torch.zeros(4, dtype=torch.int32))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_heads(dtype: torch.dtype) -> None:
    qkv, bias = torch.randn(2, 5, 3, 4, 16).to(dtype), torch.randn(3, 4, 16).to(dtype)
    parts = [qkv[:, :, i].transpose(1, 2) for i in range(3)]
    got = kgen.split_heads(*parts, *(bias[i].unsqueeze(1) for i in range(3)))
    for i in range(3):
        assert torch.equal(got[i], (qkv + bias)[:, :, i].transpose(1, 2))
        assert got[i].is_contiguous()
    merged = kgen.merge_heads(*(y.transpose(1, 2).unsqueeze(2) for y in got), out=torch.empty_like(qkv))
    assert torch.equal(merged, qkv + bias)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_sequences(dtype: torch.dtype) -> None:
    past, new = torch.randn(2, 3, 7, 16).to(dtype), torch.randn(2, 3, 2, 16).to(dtype)
    got = kgen.concat_sequence(past, new, out=torch.empty(2, 3, 9, 16, dtype=dtype))
    assert torch.equal(got, torch.cat((past, new), 2))
    x = torch.randn(10, 24).to(dtype)
    rows = torch.tensor([0, 1, 2, 5, 6, 9])
    packed = kgen.remove_padding(x, rows)
    assert torch.equal(packed, x[rows])
    places = torch.full((10,), -1)
    places[rows] = torch.arange(6)
    want = torch.zeros_like(x)
    want[rows] = x[rows]
    assert torch.equal(kgen.restore_padding(packed, places), want)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ["index_add", "index_add_middle", "index_add_last"])
def test_index_add(name: str, dtype: torch.dtype) -> None:
    axis, shape, many = {"index_add": (0, (6, 8), (9, 8)), "index_add_middle": (1, (3, 6, 8), (3, 9, 8)),
                         "index_add_last": (1, (3, 6), (3, 9))}[name]  # fmt: skip
    x, source = torch.randint(-3, 4, shape).to(dtype), torch.randint(-3, 4, many).to(dtype)
    ids = torch.randint(0, 6, (9,))
    want = torch.index_add(x, axis, ids, source, alpha=2)
    before = x.clone()
    assert torch.equal(getattr(kgen, name)(x, ids, source, alpha=2.0), want)
    assert torch.equal(x, before)
    assert getattr(kgen, name)(x, ids, source, 2.0, out=x) is x
    assert torch.equal(x, want)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_histogram(dtype: torch.dtype) -> None:
    x = torch.randint(0, 50, (7, 31), dtype=dtype)
    out = torch.empty(50, dtype=torch.int32)
    assert torch.equal(kgen.histogram(x, out=out).long(), torch.bincount(x.flatten(), minlength=50))
    image = torch.randint(0, 256, (300,), dtype=torch.uint8)
    counts = kgen.histogram_bytes(image.view(torch.int8), out=torch.empty(256, dtype=torch.int32))
    assert torch.equal(counts.long(), torch.bincount(image, minlength=256))


def test_every_operator_is_called_here() -> None:
    names = {op.name for module in (lookups, scatters) for op in module.OPERATORS}
    with open(__file__, encoding="utf-8") as file:
        text = file.read()
    assert all(name in text for name in names)

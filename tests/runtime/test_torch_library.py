"""Operators registered with torch: torch's own checks, and graphs that hold them."""

import pytest
import torch

import kgen
from kgen import ArgumentError, Tensor, f16, f32
from kgen.runtime import library


@kgen.operator
def two_of_them(
    x: Tensor[f32, ...], y: Tensor[f32, ...], shift: float, times: int = 2
) -> tuple[Tensor[f32, ...], Tensor[f16, ...]]:
    return x + y + shift, kgen.cast(x * times, f16)


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (kgen.gelu, lambda: (torch.randn(3, 5),)),
        (kgen.add, lambda: (torch.randn(3, 1), torch.randn(5))),
        (kgen.bias_gelu, lambda: (torch.randn(2, 3, 5).half(), torch.randn(5).half())),
        (kgen.hgemm, lambda: (torch.randn(2, 3, 4).half(), torch.randn(4, 5).half())),
        (kgen.elu, lambda: (torch.randn(7), 0.5)),
        (two_of_them, lambda: (torch.randn(3, 1), torch.randn(4), 0.5)),
    ],
)
def test_torch_accepts_it(operator, arguments):
    registered = library.register(operator)
    given = arguments()
    torch.library.opcheck(registered.default, given, test_utils=("test_schema", "test_faketensor"))
    got, expected = registered(*given), operator(*given)
    for x, y in zip(got, expected) if isinstance(got, tuple) else [(got, expected)]:
        assert torch.equal(x, y)


def test_a_traced_graph_holds_it():
    op = library.register(kgen.gelu)
    program = torch.export.export(_Net(op), (torch.randn(4, 6),), dynamic_shapes=({0: torch.export.Dim("n", min=2)},))
    assert "kgen.gelu" in str(program.graph)
    x = torch.randn(9, 6)
    assert torch.equal(program.module()(x), kgen.gelu(x) + 1)


class _Net(torch.nn.Module):
    def __init__(self, op):
        super().__init__()
        self.op = op

    def forward(self, x):
        return self.op(x) + 1


def test_a_name_is_registered_once():
    assert library.register(kgen.gelu) is library.register(kgen.gelu)

    def gelu(x: Tensor[f32, ...]) -> Tensor[f32, ...]:
        return x * 2

    with pytest.raises(ArgumentError, match=r"torch\.ops\.kgen\.gelu is another operator"):
        library.register(kgen.operator(gelu))


def test_schema():
    assert (
        library.schema(two_of_them) == "two_of_them(Tensor x, Tensor y, float shift, int times=2) -> (Tensor, Tensor)"
    )

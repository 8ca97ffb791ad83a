"""An operator together with its tiling space: restricted, pinned for one use, and with a schedule of one's own.

    python examples/tiling_space.py     # on a GPU if there is one, else on the emulator
    kgen tune examples/tiling_space.py:ffn --gpu auto
    kgen space examples/tiling_space.py:square_ffn --gpu H200 --set stages=3

What is tuned for `ffn` is the best of its own space: `kgen tune` stores it as such, and never as the best of all configs.
"""

import torch

import kgen
from kgen import Tensor, choice, dims, f16, rule

B, D, H = dims("B D H")


@kgen.operator(space=kgen.MmaGemm.where(BM=(64, 128), stages=(3, 4), swizzle="xor"))
def ffn(x: Tensor[f16, B, D], w: Tensor[f16, D, H], bias: Tensor[f16, H]) -> Tensor[f16, B, H]:
    """gelu(x @ w + bias), by tensor cores' mma.sync with tiles of 64 or 128 rows."""
    return kgen.gelu(x @ w + bias)


class SquareTiles(kgen.MmaGemm):
    """The same template with other tiles, which the shipped schedule does not search."""

    BM = choice(96, 192)
    BN = choice(96, 192)

    @rule
    def square(self, problem, target):
        """tiles are square here"""
        return self.BM == self.BN


@kgen.operator(schedules=[SquareTiles])
def square_ffn(x: Tensor[f16, B, D], w: Tensor[f16, D, H], bias: Tensor[f16, H]) -> Tensor[f16, B, H]:
    """What `ffn` computes, by square tiles."""
    return ffn(x, w, bias)


fast = ffn.using(BM=128, stages=4)  # the other fields are chosen, or tuned, under these


def run(operator, rows: int, depth: int, columns: int, device: str) -> float:
    """Runs an operator and returns its largest error; raises AssertionError where it is more than rounding explains."""
    torch.manual_seed(0)
    x = torch.randn(rows, depth, dtype=torch.float16, device=device)
    w = torch.randn(depth, columns, dtype=torch.float16, device=device) / depth**0.5
    bias = torch.randn(columns, dtype=torch.float16, device=device)
    with kgen.emulate():  # for CPU tensors: with every check on; a GPU takes no notice
        y = operator(x, w, bias)
    expected = torch.nn.functional.gelu(x.double() @ w.double() + bias.double())
    torch.testing.assert_close(y.double(), expected, rtol=2e-3, atol=2e-3)
    return (y.double() - expected).abs().max().item()


def main() -> None:
    cuda = torch.cuda.is_available()
    sizes, device = ((4096, 4096, 4096), "cuda") if cuda else ((33, 40, 136), "cpu")
    for name, operator in (("ffn", ffn), ("fast", fast), ("square_ffn", square_ffn)):
        print(
            f"{name} on {'a GPU' if cuda else 'the emulator (no GPU here)'}: largest error {run(operator, *sizes, device):.1e}"
        )
        rows, depth, columns = sizes
        print(operator.source(B=rows, D=depth, H=columns).splitlines()[2])


if __name__ == "__main__":
    main()

"""What no formula expresses, with a template of one's own: prefix sums along rows.

    python examples/prefix_sum.py       # on a GPU if there is one, else on the emulator

Three things are given: the reference (by torch), the template (prefix_sum.cu.j2, beside this file), and a schedule that says
what may vary in it and how it is launched. kgen generates, checks, tunes and runs the kernel as any of its own. With a fourth,
the reference in C++ (prefix_sum.h), it exports it too.
"""

from pathlib import Path

import torch

import kgen
from kgen import Tensor, choice, dims, f32

M, N = dims("M N")


class WarpPrefixSum(kgen.TemplateSchedule):
    """A warp a row."""

    template = "prefix_sum.cu.j2"

    rows = choice(4, 1, 2, 8)  # a block
    items = choice(4, 1, 2, 8)  # neighbouring elements of a lane

    def launch(self, problem):
        return kgen.Launch(grid=(kgen.ceil_div(M, self.rows), 1, 1), block=(32 * self.rows, 1, 1))


def summed(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The reference: one tensor a result, from one argument an operand."""
    return (x.cumsum(-1),)


@kgen.operator(schedules=[WarpPrefixSum], suites={"default": [{"M": 4096, "N": 4096}]})
def prefix_sum(x: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
    """Sums of each row's elements up to each column."""
    cpp = str(Path(__file__).resolve().parent / "prefix_sum.h")
    return kgen.external("prefix_sum", [(f32, (M, N))], x, reference=summed, cpp=cpp)[0]


def run(rows: int, columns: int, device: str) -> float:
    """Runs the operator and returns its largest error; raises AssertionError where it is more than rounding explains."""
    torch.manual_seed(0)
    x = torch.randn(rows, columns, device=device)
    with kgen.emulate():  # for CPU tensors: with every check on; a GPU takes no notice
        y = prefix_sum(x)
    expected = x.double().cumsum(-1)
    error = (y.double() - expected).abs()
    assert (error <= 2.0**-22 * x.abs().double().cumsum(-1)).all()
    return error.max().item()


def main() -> None:
    cuda = torch.cuda.is_available()
    rows, columns, device = (4096, 4096, "cuda") if cuda else (37, 300, "cpu")
    print(f"prefix_sum of {rows}x{columns} on {'a GPU' if cuda else 'the emulator (no GPU here)'}")
    print(f"largest error {run(rows, columns, device):.2e}")
    print(prefix_sum.source(M=rows, N=columns))


if __name__ == "__main__":
    main()

"""What no formula expresses, with a template of one's own: prefix sums along rows.

    python examples/prefix_sum.py       # on a GPU if there is one, else on the emulator

Three things are given: the reference (by torch), the template (prefix_sum.cu.j2, beside this file), and a Schedule that says
what may vary in it. kgen generates, checks, tunes and runs the kernel as any of its own. With a fourth, the reference in C++
(prefix_sum.h), it exports it too.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

import kgen
from kgen import Tensor, choice, dims, external, f32, rule, sm
from kgen.codegen.render import render
from kgen.codegen.source import Integer, Launch, Pointer, Source
from kgen.dsl.external import is_external
from kgen.dsl.family import Family, register
from kgen.dsl.size import Dim, ceil_div

HERE = Path(__file__).resolve().parent
M, N = dims("M N")


def summed(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The reference: one tensor a result, from one argument an operand."""
    return (x.cumsum(-1),)


@kgen.operator
def prefix_sum(x: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
    """Sums of each row's elements up to each column."""
    return external("prefix_sum", [(f32, (M, N))], x, reference=summed, cpp=str(HERE / "prefix_sum.h"))[0]


@dataclass(frozen=True)
class Context:
    """What the template sees beside the config; nothing here."""


class WarpPrefixSum(kgen.Schedule):
    """A warp a row."""

    template = str(HERE / "prefix_sum.cu.j2")
    target = sm(75)

    rows = choice(4, 1, 2, 8)  # a block
    items = choice(4, 1, 2, 8)  # neighbouring elements of a lane

    @rule
    def grid_of_the_driver(self, problem, target):
        """a grid has fewer than 2^31 blocks"""
        return problem.sizes["M"] < 2**31 * self.rows

    @classmethod
    def default(cls, problem, target):
        return cls(rows=4, items=4)

    @staticmethod
    def symbols(problem):
        """What the kernel's integers are made of."""
        x, sums = problem.operands
        strides = zip(("x_s0", "x_s1", "sums_s0", "sums_s1"), (*x.strides, *sums.strides))
        return {**problem.sizes, **dict(strides)}

    def source(self, problem) -> Source:
        x, sums = problem.operands
        integers = [Integer(name, Dim(name), 64) for name in ("M", "N", "x_s0", "x_s1", "sums_s0", "sums_s1")]
        params = (Pointer("x", f32, x.name, "in"), Pointer("sums", f32, sums.name, "out"), *integers)
        launch = Launch((ceil_div(M, self.rows), 1, 1), (32 * self.rows, 1, 1))
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=params,
            launch=launch,
            arch=sm(75),
            context=Context(),
        )

    def estimate(self, problem, target):
        """Only ranks configs that are not measured: bytes at the memory's rate, slower where little is in flight."""
        return 2e-6 + problem.bytes / target.bandwidth * (1 + 1 / (self.items * self.rows))


register(
    Family(
        "prefix_sum",
        (WarpPrefixSum,),
        matches=lambda graph: is_external(graph.results, "prefix_sum"),
        normalise=lambda problem: problem,
        dims=lambda graph: ("M", "N"),
        suites=lambda graph: {"default": [{"M": 4096, "N": 4096}]},
    )
)


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

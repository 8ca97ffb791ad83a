"""A model with kgen operators, exported, compiled ahead of time by AOTInductor, and run in another process.

python examples/saved_model.py

Both files call operators of torch, torch.ops.kgen.NAME_DIGEST. The process that loads them has to know these: it takes the same
definitions, here from this file, and asks for their `torch_op`. A C++ program without Python needs libraries of them instead.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import kgen
from kgen import Tensor, dims, f32

M, N = dims("M N")


@kgen.operator
def gated_norm(x: Tensor[f32, M, N], gate: Tensor[f32, M, N], weight: Tensor[f32, N]) -> Tensor[f32, M, N]:
    """rms_norm of silu(x) * gate."""
    y = kgen.silu(x) * gate
    return y * kgen.rsqrt(kgen.mean(y * y) + 1e-6) * weight


class Block(torch.nn.Module):
    """Two projections, what is between them, and gelu."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project, self.back = torch.nn.Linear(width, 2 * width), torch.nn.Linear(width, width)
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [M, N] -> [M, N]."""
        y: torch.Tensor = kgen.gelu(self.back(gated_norm(*self.project(x).chunk(2, -1), self.weight)))
        return y


def save(folder: Path, device: str) -> None:
    """The block for any number of rows, in both forms, with an input and what it gives."""
    torch.manual_seed(0)
    block = Block(32).to(device).eval().requires_grad_(False)
    x = torch.randn(64, 32, device=device)
    program = torch.export.export(block, (x,), dynamic_shapes={"x": {0: torch.export.Dim("rows")}})
    print("in the graph:", ", ".join(str(n.target) for n in program.graph.nodes if "kgen" in str(n.target)))
    torch.export.save(program, folder / "block.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "compiled.pt2"))
    small = torch.randn(5, 32, device=device)
    torch.save((small, block(small)), folder / "expected.pt")


def load(folder: Path) -> None:
    """Runs both, on fewer rows than they were saved with."""
    for operator in (gated_norm, kgen.gelu):
        print("known here:", operator.torch_op)
    x, expected = torch.load(folder / "expected.pt")
    for name, run in (
        ("torch.export", torch.export.load(folder / "block.pt2").module()),
        ("AOTInductor", torch._inductor.aoti_load_package(str(folder / "compiled.pt2"))),
    ):
        print(f"{name}: largest difference {(run(x) - expected).abs().max().item():.1e}")


def main() -> None:
    """Saves here, loads in a new process."""
    if len(sys.argv) > 1:
        load(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), "cuda" if torch.cuda.is_available() else "cpu")
        sys.stdout.flush()
        subprocess.run([sys.executable, __file__, folder], check=True)


if __name__ == "__main__":
    main()

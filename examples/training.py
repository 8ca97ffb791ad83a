"""An operator of one's own in a model that trains: its gradient is derived, torch.compile takes it as it is.

python examples/training.py
"""

from __future__ import annotations

import torch

import kgen
from kgen import Tensor, dims, f32

M, N = dims("M N")


@kgen.operator
def gated_norm(x: Tensor[f32, M, N], gate: Tensor[f32, M, N], weight: Tensor[f32, N]) -> Tensor[f32, M, N]:
    """rms_norm of silu(x) * gate: one launch forward; rows and column sums backward."""
    y = kgen.silu(x) * gate
    return y * kgen.rsqrt(kgen.mean(y * y) + 1e-6) * weight


class Block(torch.nn.Module):
    """Two projections and what is between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project, self.back = torch.nn.Linear(width, 2 * width), torch.nn.Linear(width, width)
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [M, N] -> [M, N]."""
        y: torch.Tensor = self.back(gated_norm(*self.project(x).chunk(2, -1), self.weight))
        return y


def main() -> None:
    """A few steps towards the identity; then what of the operator runs in each."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    block, x = Block(32).to(device), torch.randn(64, 32, device=device)
    optimiser = torch.optim.Adam(block.parameters(), 1e-2)
    for step in range(20):
        loss = (block(x) - x).square().mean()
        if step % 5 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for graph in gated_norm.backward_graphs():
        if graph is not None:
            print(f"{graph.name}({', '.join(map(str, graph.inputs))}) -> {', '.join(map(str, graph.outputs))}")


if __name__ == "__main__":
    main()

"""A model as it is, under torch.compile(backend="kgen"): what kgen's kernels take of it, and a few steps of training.

python examples/compiled_model.py
kgen explain --model examples/compiled_model.py:make --backward
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import kgen

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Classifier(nn.Module):
    """A norm, a gated MLP and a residual, and the loss of a classifier of the result."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes, bias=False)
        self.gate, self.up, self.down = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """x [B, S, N] and labels [B, S] -> one number."""
        h = self.norm(x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return F.cross_entropy(self.head(x).flatten(0, 1).float(), labels.flatten())


def make() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The model with what it is called with: for `kgen explain --model`."""
    torch.manual_seed(0)
    model = Classifier(64, 16).to(DEVICE, torch.bfloat16)
    return model, torch.randn(4, 16, 64, device=DEVICE, dtype=torch.bfloat16), torch.randint(16, (4, 16), device=DEVICE)


def main() -> None:
    """What is taken, and what the loss becomes."""
    model, x, labels = make()
    print(kgen.explain(model, x, labels, backward=True))
    # Without a GPU kernels run on the emulator, which is asked for by name: it is slow.
    options = None if DEVICE == "cuda" else {"emulate": True, "rest": "eager"}
    compiled = torch.compile(model, backend=kgen.backend, options=options)
    optimiser = torch.optim.SGD(model.parameters(), 0.5)
    for step in range(10):
        loss = compiled(x, labels)
        if step % 3 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


if __name__ == "__main__":
    main()

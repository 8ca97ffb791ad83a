"""torch.compile(backend="kgen") of a small model on a GPU, with Inductor for the rest."""

from __future__ import annotations

import copy

import pytest

from kgen.gpu import driver

pytestmark = pytest.mark.skipif(driver.device_count() == 0, reason="needs a GPU")
torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from kgen.runtime.backend import backend, explain  # noqa: E402


class Block(torch.nn.Module):
    """A norm, attention of one projection, a gated MLP and a loss."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv = torch.nn.LayerNorm(width), torch.nn.Linear(width, 3 * width)
        self.gate, self.up = (torch.nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        h = self.norm(x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return F.cross_entropy(x.flatten(0, 1).float(), labels.flatten())


def results(run: torch.nn.Module, model: torch.nn.Module, x: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """Without gradients, and those of a training step."""
    with torch.no_grad():
        found = [run(x, labels).double()]
    model.zero_grad()
    loss = run(x, labels)
    loss.backward()
    return [*found, loss.detach().double(), *(p.grad.double() for p in model.parameters())]


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_a_block_is_as_near_to_float64_as_inductors(mode: str | None) -> None:
    torch.manual_seed(0)
    model = Block().cuda().bfloat16()
    x, labels = (
        torch.randn(2, 128, 256, device="cuda", dtype=torch.bfloat16),
        torch.randint(256, (2, 128), device="cuda"),
    )
    exact = copy.deepcopy(model).double()
    truth = results(exact, exact, x.double(), labels)
    errors = []
    for chosen in ("inductor", backend):
        torch._dynamo.reset()
        found = results(torch.compile(model, backend=chosen, mode=mode), model, x, labels)
        errors.append([((a - b).norm() / b.norm()).item() for a, b in zip(found, truth)])
    for inductor, own in zip(*errors):
        assert own <= 2 * max(inductor, 2**-9)
    with torch.no_grad():
        taken = [one.family for one in explain(model, x, labels).taken]
    assert taken.count("gemm") == 4
    assert "attention" in taken
    trained = [one.name for one in explain(model, x, labels, backward=True).taken]
    assert {"attention_causal_train", "attention_causal_train_grad_unordered"} <= {*trained}

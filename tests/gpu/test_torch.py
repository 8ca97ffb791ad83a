"""kgen in PyTorch on a GPU: gradients, compiled graphs, CUDA graphs, streams."""

from __future__ import annotations

from typing import Any

import pytest

from kgen.gpu import driver

pytestmark = pytest.mark.skipif(driver.device_count() == 0, reason="needs a GPU")
torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

import kgen  # noqa: E402


def drawn(*shapes: tuple[int, ...], dtype: Any = None) -> list[Any]:
    generator = torch.Generator("cuda").manual_seed(5)
    return [
        torch.randn(s, device="cuda", generator=generator).to(dtype or torch.float16).requires_grad_() for s in shapes
    ]


#: Of each operator: torch's own, and shapes.
CASES = {
    "gelu": (lambda x: F.gelu(x, approximate="tanh"), [(4096, 1000)]),
    "silu_mul": (lambda x, y: F.silu(x) * y, [(2, 2048, 1000), (2, 2048, 1000)]),
    "softmax": (lambda x: F.softmax(x, -1), [(4096, 2000)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), [(4, 1024, 4096), (4096,), (4096,)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6), [(4096, 1023), (1023,)]),
    "linear_gelu": (
        lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
        [(2, 512, 1024), (2048, 1024), (2048,)],
    ),
    "hgemm": (torch.matmul, [(4, 256, 512), (4, 512, 384)]),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_as_near_as_torchs(name: str, dtype: Any, compiled: bool) -> None:
    torch._dynamo.reset()  # graphs of other cases count towards the limit of this function's
    reference, shapes = CASES[name]
    inputs = drawn(*shapes, dtype=dtype)
    operator = getattr(kgen, name)
    run = torch.compile(lambda *given: operator(*given), fullgraph=True) if compiled else operator
    y = run(*inputs)
    seed = torch.randn_like(y)
    found = torch.autograd.grad(y, inputs, seed)
    torchs = torch.autograd.grad(reference(*inputs), inputs, seed)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    exact = torch.autograd.grad(reference(*wide), wide, seed.double())
    eps = torch.finfo(dtype).eps
    for got, theirs, want in zip(found, torchs, exact):
        scale = want.abs().max().item()
        ours_off, theirs_off = ((x.double() - want).abs().max().item() for x in (got, theirs))
        assert ours_off <= 2 * theirs_off + eps * scale, (name, ours_off, theirs_off)


def test_reduce_overhead_replays() -> None:
    run = torch.compile(lambda x, w, b: kgen.linear_gelu(x, w, b) + 1, mode="reduce-overhead", fullgraph=True)
    inputs = [x.detach() for x in drawn((64, 256), (512, 256), (512,))]
    for _ in range(4):
        got = run(*inputs).clone()
    torch.testing.assert_close(got, kgen.linear_gelu(*inputs) + 1)


def test_a_training_step_is_captured() -> None:
    inputs = drawn((256, 512), (512,), (512,))
    seed = torch.randn(256, 512, device="cuda", dtype=torch.float16)

    def step() -> Any:
        return torch.autograd.grad(kgen.layer_norm(*inputs), inputs, seed)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            expected = step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    torch.cuda.synchronize()
    for got, want in zip(found, expected):
        assert torch.equal(got, want)


def test_f64_gradients_to_the_last_digits() -> None:
    inputs = drawn((3, 5, 7), (7,), (7,), dtype=torch.float64)
    assert torch.autograd.gradcheck(kgen.layer_norm, inputs)
    assert torch.autograd.gradgradcheck(kgen.layer_norm, inputs)

"""A matrix product with an epilogue of one's own: bias, activation, gate and residual in the product's own kernel.

    python examples/fused_linear.py          # on a GPU if there is one, else on the emulator, with smaller operands

By torch this is five kernels, four of which move whole matrices through memory only to change them. Here it is one kernel,
and the formula below is all there is to write: kgen traces it, sees a matrix product with an epilogue, and generates CUDA C++.
"""

import torch
import torch.nn.functional as F

import kgen
from kgen import Tensor, bf16, dims, dtype_var, f16, silu

M, N, K = dims("M N K")
T = dtype_var("T", f16, bf16)


@kgen.operator
def gated_linear(
    x: Tensor[T, ..., M, K],
    w: Tensor[T, N, K],
    b: Tensor[T, N],
    gate: Tensor[T, ..., M, N],
    residual: Tensor[T, ..., M, N],
    alpha: float = 1.0,
) -> Tensor[T, ..., M, N]:
    """residual + alpha * silu(x @ w.T + b) * gate, summed in f32 and rounded once."""
    return residual + alpha * silu(x @ w.T + b) * gate


def operands(m: int, n: int, k: int, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """x, w, b, gate and residual with random values; those of w are scaled as a layer's weights are."""
    torch.manual_seed(0)
    shapes = ((m, k), (n, k), (n,), (m, n), (m, n))
    x, w, *others = (torch.randn(shape, device=device) for shape in shapes)
    return [t.to(dtype) for t in (x, w / k**0.5, *others)]


def reference(x, w, b, gate, residual, alpha=1.0):
    """The same in float64, by torch."""
    x, w, b, gate, residual = (t.double() for t in (x, w, b, gate, residual))
    return residual + alpha * F.silu(x @ w.T + b) * gate


def run(m: int, n: int, k: int, dtype: torch.dtype, device: str) -> float:
    """Runs the operator and returns its largest error; raises AssertionError where it is more than rounding explains."""
    given = operands(m, n, k, dtype, device)
    with kgen.emulate():  # for CPU tensors: with every check on; a GPU takes no notice
        y = gated_linear(*given, alpha=0.5)
    expected = reference(*given, alpha=0.5)
    # Half a unit in the last place for the one rounding to dtype, and what a sum of k products in f32 may lose.
    torch.testing.assert_close(y.double(), expected, rtol=0.5 * torch.finfo(dtype).eps, atol=k * 2.0**-24)
    return (y.double() - expected).abs().max().item()


def main() -> None:
    cuda = torch.cuda.is_available()
    device, (m, n, k) = ("cuda", (4096, 4096, 4096)) if cuda else ("cpu", (100, 72, 136))
    place = torch.cuda.get_device_name() if cuda else "the emulator (no GPU here)"
    for dtype in (torch.float16, torch.bfloat16):
        error = run(m, n, k, dtype, device)
        print(f"gated_linear, {m} x {n} x {k}, {dtype} on {place}: largest error {error:.1e} against float64")
    text = gated_linear.source(M=m, N=n, K=k)
    print(f"\nIts kernel is {len(text.splitlines())} lines of CUDA C++ and begins:\n\n{text[: text.index('#include')]}")


if __name__ == "__main__":
    main()

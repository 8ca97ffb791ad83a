"""A chain of elementwise steps in one kernel: the modulation, activation and gated residual around a transformer's block.

    python examples/fused_pointwise.py       # on a GPU if there is one, else on the emulator, with smaller operands

Every input is read once and the result is written once, whatever the length of the chain. Operands of different dtypes and
rows that broadcast are no matter: a signature says them, and the kernel is generated for what it says.
"""

import torch
import torch.nn.functional as F

import kgen
from kgen import Tensor, bf16, clamp, dims, dtype_var, f16, f32, gelu, where

(C,) = dims("C")
T = dtype_var("T", f16, bf16)


@kgen.operator
def modulated_residual(
    x: Tensor[T, ..., C],
    residual: Tensor[T, ..., C],
    scale: Tensor[f32, C],
    shift: Tensor[f32, C],
    gate: Tensor[f32, C],
    limit: float = 4.0,
) -> Tensor[T, ..., C]:
    """residual + gate * gelu(x * (1 + scale) + shift), with the activation limited to +-limit and no NaN passed on."""
    y = clamp(gelu(x * (1 + scale) + shift), -limit, limit)
    return residual + gate * where(y == y, y, 0.0)


def operands(rows: int, columns: int, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """x, residual, scale, shift and gate with random values; one element of x is NaN."""
    torch.manual_seed(0)
    x, residual = (torch.randn(rows, columns, device=device).to(dtype) for _ in range(2))
    x[rows // 2, columns // 2] = float("nan")
    return [x, residual, *(torch.randn(columns, device=device) for _ in range(3))]


def reference(x, residual, scale, shift, gate, limit=4.0):
    """The same in float64, by torch."""
    x, residual, scale, shift, gate = (t.double() for t in (x, residual, scale, shift, gate))
    y = F.gelu(x * (1 + scale) + shift, approximate="tanh").clamp(-limit, limit)
    return residual + gate * torch.where(y.isnan(), 0.0, y)


def run(rows: int, columns: int, dtype: torch.dtype, device: str) -> float:
    """Runs the operator and returns its largest error; raises AssertionError where it is more than rounding explains."""
    given = operands(rows, columns, dtype, device)
    with kgen.emulate():  # for CPU tensors: with every check on; a GPU takes no notice
        y = modulated_residual(*given, limit=2.0)
    expected = reference(*given, limit=2.0)
    # Half a unit in the last place for the one rounding to dtype, and a little for the exponential in f32.
    torch.testing.assert_close(y.double(), expected, rtol=0.5 * torch.finfo(dtype).eps, atol=2.0**-15)
    return (y.double() - expected).abs().max().item()


def main() -> None:
    cuda = torch.cuda.is_available()
    device, (rows, columns) = ("cuda", (65536, 4096)) if cuda else ("cpu", (37, 520))
    place = torch.cuda.get_device_name() if cuda else "the emulator (no GPU here)"
    for dtype in (torch.float16, torch.bfloat16):
        error = run(rows, columns, dtype, device)
        print(f"modulated_residual, {rows} x {columns}, {dtype} on {place}: largest error {error:.1e} against float64")
    text = modulated_residual.source(C=columns, leading=rows)
    print(f"\nIts kernel is {len(text.splitlines())} lines of CUDA C++ and begins:\n\n{text[: text.index('#include')]}")


if __name__ == "__main__":
    main()

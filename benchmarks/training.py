"""Layers and models in PyTorch, forward and backward, on the GPU of this machine: kgen, eager torch, torch.compile and Liger.

    python benchmarks/training.py --out FILE.json [--only layers,block,decode,gpt2] [--mode max-autotune-no-cudagraphs]

Layers are of Llama 8B's sizes, 4096 tokens, bf16: kgen's operators with their derived gradients. A decoder block of that
model and GPT-2 small are compiled whole, by Inductor (`--mode`) and with backend="kgen" in the same mode. All in turns,
medians of times by events; of a training step also the peak of the memory, and how its loss falls. Only `--tune 3s` tunes,
what the models' graphs have.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from attention import medians
from torch import Tensor, nn
from torch.nn import functional as F

import kgen
from kgen.bench.environment import environment
from kgen.gpu.target import detect
from kgen.integrations import transformers as layers
from kgen.runtime import backend

TOKENS, WIDTH, HIDDEN, HEADS, KEYS, DEPTH, VOCABULARY = 4096, 4096, 14336, 32, 8, 128, 128256
TURNS, TURN_SECONDS = 9, 10e-3
BF16 = torch.bfloat16
Call = Callable[..., Any]


def drawn(*shape: int, wanted: bool = True) -> Tensor:
    return (
        torch.randn(*shape, device="cuda", dtype=BF16)
        .mul_(shape[-1] ** -0.5 if len(shape) == 2 else 1)
        .requires_grad_(wanted)
    )


def milliseconds(calls: dict[str, Call]) -> dict[str, float]:
    """Medians of each call, all in turns."""
    return {name: seconds * 1e3 for name, seconds in medians(calls, TURNS, TURN_SECONDS).items()}


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def layer_cases() -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Call]]]:
    """A layer's name, its operands, and functions of them."""
    try:
        from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction
        from liger_kernel.ops.rope import LigerRopeFunction
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction

        liger: dict[str, Call] = {
            "rms_norm": lambda x, w: LigerRMSNormFunction.apply(x, w, 1e-5, 0.0, "llama", False),
            "layer_norm": lambda x, w, b: LigerLayerNormFunction.apply(x, w, b, 1e-5),
            "swiglu_mlp": lambda x, g, u, d: F.linear(LigerSiLUMulFunction.apply(F.linear(x, g), F.linear(x, u)), d),
            "cross_entropy": lambda x, t: LigerCrossEntropyFunction.apply(x, t, None)[0],
            "rope": lambda q, k, cos, sin: LigerRopeFunction.apply(q, k, cos, sin),
        }
    except ImportError as error:
        print(f"Liger takes no part: {error}")
        liger = {}
    angles = torch.arange(TOKENS, device="cuda")[:, None] / 10000 ** (torch.arange(0, DEPTH, 2, device="cuda") / DEPTH)
    tables = [f(torch.cat((angles, angles), -1)).to(BF16)[None] for f in (torch.cos, torch.sin)]
    target = torch.randint(0, VOCABULARY, (TOKENS,), device="cuda")
    own: dict[str, Call] = {
        "linear_gelu": kgen.linear_gelu,
        "swiglu_mlp": lambda x, g, u, d: F.linear(layers.gated(x, u, layers.gate(x, g)), d),
        "rms_norm": lambda x, w: kgen.rms_norm(x, w, eps=1e-5),
        "layer_norm": lambda x, w, b: kgen.layer_norm(x, w, b, eps=1e-5),
        "cross_entropy": lambda x, t: layers.token_loss(x, t[:, None]).mean(),
        "rope": lambda q, k, cos, sin: layers.rotary_forward(q, k, cos, sin),
    }
    torchs: dict[str, Call] = {
        "linear_gelu": lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
        "swiglu_mlp": lambda x, g, u, d: F.linear(F.silu(F.linear(x, g)) * F.linear(x, u), d),
        "rms_norm": lambda x, w: F.rms_norm(x, (WIDTH,), w, 1e-5),
        "layer_norm": lambda x, w, b: F.layer_norm(x, (WIDTH,), w, b, 1e-5),
        "cross_entropy": lambda x, t: F.cross_entropy(x.float(), t),
        "rope": lambda q, k, cos, sin: (rotated(q, cos[:, None], sin[:, None]), rotated(k, cos[:, None], sin[:, None])),
    }
    x, hidden = drawn(TOKENS, WIDTH), drawn(HIDDEN)
    operands: dict[str, Callable[[], tuple[Tensor, ...]]] = {
        "linear_gelu": lambda: (x, drawn(HIDDEN, WIDTH), hidden),
        "swiglu_mlp": lambda: (x, drawn(HIDDEN, WIDTH), drawn(HIDDEN, WIDTH), drawn(WIDTH, HIDDEN)),
        "rms_norm": lambda: (x, drawn(WIDTH)),
        "layer_norm": lambda: (x, drawn(WIDTH), drawn(WIDTH)),
        "cross_entropy": lambda: (drawn(TOKENS, VOCABULARY), target),
        "rope": lambda: (drawn(1, HEADS, TOKENS, DEPTH), drawn(1, KEYS, TOKENS, DEPTH), *tables),
    }
    for name, made in operands.items():
        functions = {"kgen": own[name], "torch": torchs[name], "compile": torchs[name]}
        yield name, made(), functions | ({"liger": liger[name]} if name in liger else {})


def layer(name: str, given: tuple[Tensor, ...], functions: dict[str, Call], mode: str) -> dict[str, Any]:
    """Milliseconds forward and backward, and how far kgen's gradients are from torch's, over the largest."""
    torch._dynamo.reset()
    functions["compile"] = torch.compile(functions["compile"], mode=mode)
    wanted = [x for x in given if x.requires_grad]

    def step(function: Call) -> tuple[Tensor, ...]:
        result = function(*given)
        results = result if isinstance(result, tuple) else (result,)
        return torch.autograd.grad(results, wanted, seeds if len(results[0].shape) else None)

    first = functions["torch"](*given)
    seeds = [torch.randn_like(x) for x in (first if isinstance(first, tuple) else (first,))]
    ours, theirs = step(functions["kgen"]), step(functions["torch"])
    far = [((a.float() - b.float()).abs().max() / b.float().abs().max()).item() for a, b in zip(ours, theirs)]
    times = milliseconds({who: lambda f=f: step(f) for who, f in functions.items()})  # type: ignore[misc]
    told = {who: round(t, 3) for who, t in times.items()}
    print(name, told, f"{min(t for w, t in times.items() if w != 'kgen') / times['kgen']:.3f}", far, flush=True)
    return {"case": name, "ms": times, "difference": far}


class Block(nn.Module):
    """A decoder block of Llama 8B's. With a cache, [B, K, N, D] of keys and values, a new row is its last."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH, eps=1e-5) for _ in range(2))
        self.q, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(WIDTH, KEYS * DEPTH, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor | None = None, values: Tensor | None = None
    ) -> Tensor:
        h = self.norms[0](x)
        q, k, v = (f(h).unflatten(-1, (-1, DEPTH)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        if keys is not None and values is not None:
            keys[:, :, -1:], values[:, :, -1:] = k, v
            k, v = keys, values
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=keys is None, enable_gqa=True)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        h = self.norms[1](x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def compiled(model: nn.Module, mode: str, tune: str | None, *given: Any) -> dict[str, Call]:
    """The model by torch, by Inductor, and with backend="kgen", whose kernels are tuned first where a budget is given."""
    torch._dynamo.reset()
    if tune:
        backend.tune(kgen.explain(model, *given, backward=torch.is_grad_enabled()), budget=tune)
    # Two functions: what Dynamo has compiled of one module is kept by its code and backend.
    inductor, own = torch.compile(model, mode=mode), torch.compile(copy.copy(model), backend="kgen", mode=mode)
    return {"kgen": own, "torch": model, "compile": inductor}


def block(mode: str, tune: str | None, decode: bool) -> Iterator[dict[str, Any]]:
    """Prefill of 2048 tokens and a training step of 4096; or a token of 1, 16 and 64 sequences of 2048."""
    model = Block().cuda().to(BF16)

    def tables(n: int) -> tuple[Tensor, Tensor]:
        return drawn(n, DEPTH, wanted=False), drawn(n, DEPTH, wanted=False)

    for batch in (1, 16, 64) if decode else ():
        caches = [torch.randn(batch, KEYS, 2048, DEPTH, device="cuda", dtype=BF16) for _ in range(2)]
        for cache in caches:  # as a model's: else there is no CUDA graph, as the step writes to them
            torch._dynamo.mark_static_address(cache)
        given = (drawn(batch, 1, WIDTH, wanted=False), *tables(1), *caches)
        with torch.no_grad():
            yield told(f"decode {batch}", milliseconds(calls_of(compiled(model, mode, tune, *given), given)))
    if decode:
        return
    given = (drawn(1, 2048, WIDTH, wanted=False), *tables(2048))
    with torch.no_grad():
        yield told("prefill 2048", milliseconds(calls_of(compiled(model, mode, tune, *given), given)))
    given = (drawn(1, TOKENS, WIDTH), *tables(TOKENS))
    seed = torch.randn_like(given[0])
    runs = compiled(model, mode, tune, *given)

    def step(run: Call) -> None:
        model.zero_grad()
        given[0].grad = None
        run(*given).backward(seed)

    calls = {who: lambda run=run: step(run) for who, run in runs.items()}  # type: ignore[misc]
    yield told("training 4096", milliseconds(calls), peaks(calls))


def calls_of(runs: dict[str, Call], given: tuple[Any, ...]) -> dict[str, Call]:
    return {who: lambda run=run: run(*given) for who, run in runs.items()}  # type: ignore[misc]


def peaks(calls: dict[str, Call]) -> dict[str, float]:
    """The most memory of each call, in GB, its parameters with it."""
    found = {}
    for who, call in calls.items():
        torch.cuda.reset_peak_memory_stats()
        call()
        found[who] = torch.cuda.max_memory_allocated() / 1e9
    return found


def told(case: str, times: dict[str, float], memory: dict[str, float] | None = None) -> dict[str, Any]:
    others = min(t for who, t in times.items() if who != "kgen")
    print(case, {w: round(t, 3) for w, t in times.items()}, f"{others / times['kgen']:.3f}", memory or "", flush=True)
    return {"case": case, "ms": times, **({"peak_gb": memory} if memory else {})}


class GPT2(nn.Module):
    """GPT-2 small, its loss included."""

    def __init__(
        self, width: int = 768, heads: int = 12, blocks: int = 12, vocabulary: int = 50304, rows: int = 1024
    ) -> None:
        super().__init__()
        self.heads = heads
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(rows, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * blocks + 1))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(blocks))
        self.o = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(blocks))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(blocks))
        for p in self.parameters():
            nn.init.normal_(p, std=0.02) if p.dim() > 1 else None

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for i, (qkv, o, up, down) in enumerate(zip(self.qkv, self.o, self.up, self.down)):
            parts = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in qkv(self.norms[2 * i](x)).chunk(3, -1))
            x = x + o(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))
            x = x + down(F.gelu(up(self.norms[2 * i + 1](x)), approximate="tanh"))
        logits = self.norms[-1](x) @ self.tokens.weight.T
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def gpt2(mode: str, tune: str | None, steps: int = 200) -> dict[str, Any]:
    """A training step of 8 x 1024 random tokens, and the loss over `steps` steps of AdamW on four batches."""
    torch.manual_seed(0)
    first = GPT2().cuda().to(BF16)
    batches = torch.randint(0, 50257, (4, 8, 1025), device="cuda")
    losses: dict[str, list[float]] = {}
    calls: dict[str, Call] = {}
    for who in ("kgen", "torch", "compile"):
        model = copy.deepcopy(first)
        run = compiled(model, mode, tune if who == "kgen" else None, batches[0, :, :-1], batches[0, :, 1:])[who]
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

        def step(i: int = 0, run: Call = run, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = run(batches[i % 4, :, :-1], batches[i % 4, :, 1:])
            loss.backward()
            optimizer.step()
            return loss.detach().clone()  # of a CUDA graph it is the next step's too

        begun = time.monotonic()
        step().item()
        print(f"{who}: a first step in {time.monotonic() - begun:.0f} s", flush=True)
        taken = [step(i) for i in range(1, steps)]
        losses[who], calls[who] = [x.item() for x in taken[:: max(1, steps // 20)]], step
    found = told("gpt2 small, 8 x 1024", milliseconds(calls), peaks(calls))
    print({who: (round(x[0], 3), round(x[-1], 3)) for who, x in losses.items()}, flush=True)
    return found | {"losses": losses, "steps": steps}


def _with_graphs(mode: str) -> str:
    """The mode of torch.compile that has CUDA graphs besides."""
    return "reduce-overhead" if mode == "default" else mode.removesuffix("-no-cudagraphs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="layers,block,decode,gpt2")
    parser.add_argument(
        "--mode", default="max-autotune-no-cudagraphs", help="of torch.compile; decode: with CUDA graphs too"
    )
    parser.add_argument("--tune", help="a budget for each problem, such as 3s; the layers' are not tuned")
    given, target = parser.parse_args(), detect(0)
    assert target is not None, "no GPU"
    rows: list[dict[str, Any]] = []

    def note(row: dict[str, Any]) -> None:
        rows.append(row)
        found = {"environment": environment(0, target), "mode": given.mode, "tune": given.tune, "rows": rows}
        given.out.write_text(json.dumps(found, indent=1) + "\n")

    for part in given.only.split(","):
        if part == "layers":
            for case in layer_cases():
                note(layer(*case, given.mode))
        elif part == "gpt2":
            note(gpt2(given.mode, given.tune))
        else:
            mode = _with_graphs(given.mode) if part == "decode" else given.mode
            for row in block(mode, given.tune, part == "decode"):
                note(row)


if __name__ == "__main__":
    main()

"""Configs of linear_attention beside each other, torch's chunked form and flash-linear-attention, on the GPU of this machine.

    python benchmarks/linear_attention.py --out FILE.json --seconds 120

For each problem: of each schedule the configs that the model ranks first and some drawn from its space, the chunked form in
torch's own operations, and flash-linear-attention's kernels where they are installed; all in turns, medians of times by events.
Shares are of the bandwidth of the data sheet, for q, k, v and decay read once and the result written once. A config whose result
differs from torch's is told and left out. Last, `kgen.linear_attention` as a user calls it, forward alone and with its gradients.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attention import built, timed

import kgen
from kgen.bench.environment import environment
from kgen.dsl.family import normalised
from kgen.dsl.problem import Problem
from kgen.gpu.target import detect
from kgen.ops.linear_attention import LinearAttention, LinearAttentionWgmma
from kgen.ops.linear_attention.heads import variant
from kgen.runtime.operator import KernelOperator
from kgen.tuner.space import Space

#: Columns of a head, rows, batch, heads: the first is the bar's.
PROBLEMS = (
    (128, 8192, 1, 96), (128, 2048, 8, 32), (128, 16384, 1, 16), (64, 8192, 1, 96), (64, 2048, 8, 32), (256, 4096, 2, 16),
    (128, 777, 8, 32),
)  # fmt: skip
#: What configs are taken of; without decay no search considers queries in registers.
SPACES = (LinearAttention.where(), LinearAttentionWgmma.where(), LinearAttentionWgmma.where(registers=True))
#: Turns, and what a turn takes at least.
TURNS, TURN_SECONDS = 7, 3e-3
#: Rows of a chunk of torch's form.
CHUNK = 64
#: The largest difference from torch's form, as a share of the largest result.
DIFFERENCE = 0.02


def chunked(q: Any, k: Any, v: Any, decay: Any, scale: float) -> Any:
    """The chunked form by torch: products of chunks in the operands' dtype, states and decay in f32."""
    n, left = q.shape[-2], -q.shape[-2] % CHUNK
    if left:
        q, k, v = (torch.nn.functional.pad(x, (0, 0, 0, left)) for x in (q, k, v))
        decay = None if decay is None else torch.nn.functional.pad(decay, (0, left))
    q, k, v = (x.unflatten(-2, (-1, CHUNK)) for x in (q, k, v))
    sums = torch.zeros(q.shape[:-1], device=q.device) if decay is None else decay.unflatten(-1, (-1, CHUNK)).cumsum(-1)
    whole = sums[..., -1:]
    mask = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    fall = torch.exp((sums[..., :, None] - sums[..., None, :]).masked_fill(~mask, -torch.inf))
    within = (scale * (q @ k.mT) * fall).to(v.dtype) @ v
    added = (k.mT @ (v * torch.exp(whole - sums).unsqueeze(-1)).to(v.dtype)).float()
    states, state = [], torch.zeros_like(added[:, :, 0])
    for i in range(q.shape[2]):
        states.append(state)
        state = torch.exp(whole[:, :, i]).unsqueeze(-1) * state + added[:, :, i]
    before = (q @ torch.stack(states, 2).to(q.dtype)) * (scale * torch.exp(sums)).unsqueeze(-1)
    return (within + before).to(v.dtype).flatten(2, 3)[:, :, :n]


def others(q: Any, k: Any, v: Any, decay: Any, scale: float) -> dict[str, Callable[[], Any]]:
    """Other kernels, where they are installed: they take [B, N, H, D]."""
    try:
        from fla.ops.simple_gla import chunk_simple_gla
    except ImportError:
        return {}
    turned = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    g = torch.zeros(q.shape[:-1], device=q.device) if decay is None else decay
    g = g.transpose(1, 2).contiguous()
    return {"flash-linear-attention": lambda: chunk_simple_gla(*turned, g=g, scale=scale)[0].transpose(1, 2)}


def measure(case: tuple[int, int, int, int], decayed: bool, target: Any, top: int, drawn: int) -> dict[str, Any]:
    """Microseconds, and the share of the bandwidth, by participant."""
    d, n, batch, heads = case
    q, k, v = (torch.randn(batch, heads, n, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    decay = -0.05 * torch.rand(batch, heads, n, device="cuda") if decayed else None
    scale = d**-0.5
    definition = variant(decay=decayed)
    graph = definition.graph({"q": kgen.bf16})
    problem = normalised(Problem.dense(graph, {"...": (batch, heads), "N": n, "D": d, "E": d}))
    chosen: list[Any] = []
    for of in SPACES:
        if of.schedule.target.runs_on(target.arch):
            space = sorted(Space.asked(of, problem, target), key=lambda c: c.estimate(problem, target))
            chosen += [*space[:top], *random.Random(0).sample(space[top:], min(drawn, max(0, len(space) - top)))]
    built([(config, problem) for config in chosen], target)
    operator, wrong = KernelOperator(definition), []
    given = (q, k, v) if decay is None else (q, k, v, decay.unsqueeze(-2))
    want = chunked(q, k, v, decay, scale).float()
    calls: dict[str, Callable[[], Any]] = {"torch, chunked": lambda: chunked(q, k, v, decay, scale)}
    calls |= others(q, k, v, decay, scale)
    for config in chosen:
        run = operator.using(config)
        call = lambda run=run: run(*given, scale=scale)  # noqa: E731
        error = (call().float() - want).abs().max().item() / want.abs().max().item()
        if error < DIFFERENCE:
            calls[repr(config)] = call
        else:
            wrong.append({"config": repr(config), "error": error})
            print(f"WRONG by {error}: {config}")
    calls["kgen.linear_attention"] = lambda: kgen.linear_attention(q, k, v, decay)
    trained = [x.clone().requires_grad_() for x in (q, k, v)]
    seed = torch.randn_like(v)
    calls["kgen.linear_attention, forward and backward"] = lambda: torch.autograd.grad(
        kgen.linear_attention(*trained, decay), trained, seed
    )
    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    counts = {name: max(2, int(TURN_SECONDS / timed(call, 2))) for name, call in calls.items()}
    for _ in range(TURNS):
        for name, call in calls.items():
            seconds[name].append(timed(call, counts[name]))
    moved = batch * heads * n * (4 * d * 2 + (4 if decayed else 0))
    found = {name: statistics.median(s) for name, s in sorted(seconds.items(), key=lambda x: statistics.median(x[1]))}
    shares = {name: moved / s / target.bandwidth for name, s in found.items()}
    print(f"{case} {'decay' if decayed else 'undecayed'}")
    for name, s in found.items():
        print(f"  {s * 1e6:8.1f} us  {shares[name]:.3f} of the bandwidth  {name}", flush=True)
    return {
        "case": case, "decay": decayed, "us": {name: s * 1e6 for name, s in found.items()}, "share": shares, "wrong": wrong,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=150.0, help="no problem is begun after so many")
    parser.add_argument("--top", type=int, default=8, help="configs of the model's ranking")
    parser.add_argument("--random", type=int, default=8, help="configs drawn from the rest")
    given = parser.parse_args()
    end, target = time.monotonic() + given.seconds, detect(0)
    assert target is not None, "no GPU"
    rows = []
    for case in PROBLEMS:
        for decayed in (False, True):
            if time.monotonic() < end:
                rows.append(measure(case, decayed, target, given.top, given.random))
                found = {"environment": environment(0, target), "rows": rows}
                given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

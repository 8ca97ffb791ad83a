"""Gradients of attention by kgen's schedules beside those of cuDNN's and FlashAttention-2's, on the GPU of this machine.

    python benchmarks/attention_gradient.py --out FILE.json [--only 64] [--seconds 150]

Of each problem, in turns, medians by events: torch.autograd.grad of cuDNN's and FlashAttention-2's attention; kgen's row sums
and then its gradients, by three launches (`ordered`, which repeat in every bit) and in one pass by each of a few configs. Nothing
is tuned. A config whose gradients differ from FlashAttention-2's is told and left out. Prints TFLOP/s, five products counted and
causal work as half, and at the end what each participant has of cuDNN's; `chosen` is what a call takes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from attention import BACKENDS, built, sdpa, timed

from kgen.bench.environment import environment
from kgen.dsl.any_order import unordered
from kgen.dsl.errors import KgenError
from kgen.dsl.family import normalised
from kgen.dsl.gradient import backward, training
from kgen.dsl.operator import Graph, Operator
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.program import program_of
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.gpu.target import detect
from kgen.ops.attention.heads import variant
from kgen.ops.attention_gradient import AttentionGradientOnePass
from kgen.runtime.call import any_order_pays
from kgen.runtime.operator import KernelOperator

#: Columns of a head, rows, batch, heads of keys and how many of queries share one: 16k tokens in all; and a model's of fewer.
PROBLEMS = (
    *((d, n, 16384 // n, 16, 1) for d in (128, 64) for n in (16384, 4096, 1024, 2048, 512)),
    *((128, n, batch, 8, 4) for n, batch in ((4096, 1), (8192, 1), (2048, 4))),
)
#: Of configs in one pass: fields besides the default's.
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "one pass, ping-pong, 2 stages": {"pingpong": True, "stages": 2},
    "one pass, ping-pong, 3 stages": {"pingpong": True, "stages": 3},
    "one pass, cooperative, 2 stages": {"pingpong": False, "stages": 2},
}
#: Turns, and what a turn takes at least.
TURNS, TURN_SECONDS = 5, 8e-3
#: The largest difference from FlashAttention-2's, of what gradients are at most.
DIFFERENCE = 4e-3

Case = tuple[int, int, int, int, int]
Tensors = dict[str, torch.Tensor]


def graphs_of(causal: bool) -> tuple[Graph, Graph, Graph]:
    """Attention that keeps what its gradients want, and these, ordered and not."""
    whole = training(variant("causal" if causal else "full").graphs[0])
    made = backward(whole, (0,), (0, 1, 2)).graph
    assert made is not None
    return whole, made, unordered(made)


def sizes_of(case: Case) -> dict[str, Any]:
    d, n, batch, heads, group = case
    return {"...": (batch, heads), "G": group, "M": n, "N": n, "D": d, "E": d}


def variants(case: Case, causal: bool, target: Target) -> dict[str, Schedule]:
    """The configs in one pass that are valid, by name."""
    problem = one_pass(case, causal)
    base = AttentionGradientOnePass.default(problem, target)
    made = {name: base.replace(**fields) for name, fields in VARIANTS.items()}
    return {name: config for name, config in made.items() if not config.broken(problem, target)}


def one_pass(case: Case, causal: bool) -> NormalProblem:
    return normalised(program_of(Problem.dense(graphs_of(causal)[2], sizes_of(case))).launches[-1])


def run_all(graph: Graph, given: Tensors, numbers: Mapping[str, float], config: Schedule | None = None) -> Any:
    """A call of a graph's launches, of which the last is by `config`: it gives all results by name."""
    launches = list(KernelOperator(Operator.of_graphs([graph], graph.name, {})).launches)
    if config is not None:
        launches[-1] = launches[-1].using(config)

    def run() -> Tensors:
        known = dict(given)
        for launch in launches:
            part = launch.definition.graphs[0]
            own = {spec.name: numbers[spec.name] for spec in part.scalars if spec.name in numbers}
            made = launch(*(known[spec.name] for spec in part.inputs), **own)
            known |= zip((spec.name for spec in part.outputs), made if isinstance(made, tuple) else (made,))
        return known

    return run


def participants(case: Case, causal: bool, device: str, configs: Mapping[str, Schedule]) -> dict[str, Any]:
    """Calls by name; each gives the gradients of q, k and v."""
    d, n, batch, heads, group = case
    shapes = [(batch, count, n, d) for count in (heads * group, heads, heads)]
    inputs = [torch.randn(shape, device=device, dtype=torch.float16, requires_grad=True) for shape in shapes]
    seed = torch.randn_like(inputs[0])
    calls: dict[str, Any] = {}
    for name, backend in BACKENDS.items():
        if name != "efficient" and device != "cpu":
            out = sdpa(backend, inputs, causal)
            calls[name] = lambda out=out: torch.autograd.grad(out, inputs, seed, retain_graph=True)
    whole, ordered, any_order = graphs_of(causal)
    numbers = {"scale": d**-0.5}
    given = {name: x.detach().unflatten(1, (heads, -1)) for name, x in zip("qkv", inputs)}
    given = run_all(whole, given, numbers)() | {"grad_out": seed.unflatten(1, (heads, -1))}
    runs = {"ordered": run_all(ordered, given, numbers)}
    runs |= {name: run_all(any_order, given, numbers, config) for name, config in configs.items()}
    for name, run in runs.items():
        calls[name] = lambda run=run: [made[f"grad_{x}"].flatten(1, 2) for made in (run(),) for x in "qkv"]
    return calls


def errors(found: Any, expected: Any) -> list[float]:
    """The largest difference of each gradient, of its largest magnitude."""
    pairs = zip(found, expected)
    return [((a.float() - b.float()).abs().max() / b.float().abs().max()).item() for a, b in pairs]


def measure(case: Case, causal: bool, configs: Mapping[str, Schedule], chosen: str) -> dict[str, Any]:
    """TFLOP/s by participant, and how far kgen's gradients are from FlashAttention's."""
    d, n, batch, heads, group = case
    calls = participants(case, causal, "cuda", configs)
    expected, differences = calls["flash"](), {}
    for name in list(calls):
        try:
            differences[name] = errors(calls[name](), expected)
            torch.cuda.synchronize()
        except (KgenError, RuntimeError) as error:
            differences[name] = [math.inf]
            print(f"{name}: {str(error)[:300]}", flush=True)
        if name not in BACKENDS and not max(differences[name]) < DIFFERENCE:
            print(f"WRONG by {differences[name]}: {name}", flush=True)
            del calls[name]
    work = 10 * batch * heads * group * n * n * d / (2 if causal else 1)
    count = max(3, int(TURN_SECONDS / (work / 4e14)))
    for call in calls.values():
        timed(call, 2)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            seconds[name].append(timed(call, count))
    rates = {name: work / statistics.median(taken) / 1e12 for name, taken in seconds.items()}
    print(case, "causal" if causal else "full", {name: round(rate) for name, rate in rates.items()}, flush=True)
    made = {name: str(config) for name, config in configs.items()}
    return {
        "case": case,
        "causal": causal,
        "tflops": rates,
        "differences": differences,
        "chosen": chosen,
        "configs": made,
    }


def table(rows: list[dict[str, Any]]) -> None:
    """What each participant has of cuDNN's rate, problem by problem, and the geometric mean."""
    names = list(dict.fromkeys(name for row in rows for name in row["tflops"]))
    print("share of cuDNN".ljust(34), *(name.rjust(len(name)) for name in names), sep="  ")
    for row in rows:
        d, n, *_, group = row["case"]
        rates = row["tflops"]
        title = f"d {d} n {n}{f' / {group}' if group > 1 else ''} {'causal' if row['causal'] else 'full'} ({rates['cudnn']:.0f})"
        shares = [f"{rates[name] / rates['cudnn']:.3f}" if name in rates else "-" for name in names]
        print(f"{title} {row['chosen']}".ljust(34), *(s.rjust(len(name)) for s, name in zip(shares, names)), sep="  ")
    for name in names:
        found = [row["tflops"][name] / row["tflops"]["cudnn"] for row in rows if name in row["tflops"]]
        print(f"{name}: {statistics.geometric_mean(found):.3f}, {min(found):.3f} at worst, of {len(found)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", type=int, nargs="+", help="heads of so many columns alone")
    parser.add_argument("--seconds", type=float, default=150.0, help="no problem is begun after so many")
    given = parser.parse_args()
    end, target = time.monotonic() + given.seconds, detect(0)
    assert target is not None, "no GPU"
    cases = [(case, causal) for case in PROBLEMS for causal in (False, True) if not given.only or case[0] in given.only]
    configs = {key: variants(*key, target) for key in cases}
    problems = {key: one_pass(*key) for key in cases}
    binaries = built([(c, problems[key]) for key, found in configs.items() for c in found.values()], target)
    rows = []
    for key in cases:
        if time.monotonic() < end:
            right = {name: c for name, c in configs[key].items() if c.source(problems[key]).digest in binaries}
            whole = Problem.dense(graphs_of(key[1])[2], sizes_of(key[0]))
            chosen = "one pass" if any_order_pays(whole, target) else "ordered"
            rows.append(measure(*key, right, chosen))
            found = {"environment": environment(0, target), "rows": rows}
            given.out.write_text(json.dumps(found, indent=1) + "\n")
    table(rows)


if __name__ == "__main__":
    main()

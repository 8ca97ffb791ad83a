"""Every shipped operator on a GPU, untuned, in all its dtypes: against float64, special values included."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kgen import ops
from kgen.codegen.source import Source
from kgen.dsl.expr import walk
from kgen.dsl.family import family_of, normalised
from kgen.dsl.operator import Graph
from kgen.dsl.problem import Problem
from kgen.dsl.program import program_of
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.dsl.types import f16, tf32
from kgen.gpu import driver
from kgen.gpu.compile import compile as nvrtc
from kgen.gpu.kernel import load
from kgen.gpu.target import detect
from kgen.numerics.dtypes import round_to
from kgen.numerics.operands import make_operands, scalar_values
from kgen.numerics.reference import evaluate, evaluate_ranged, native
from kgen.runtime import dispatch
from kgen.tuner.execute import ProgramRunner, Runner
from kgen.tuner.verify import Gate, allowed_error, beside_of, coarser

pytestmark = pytest.mark.skipif(driver.device_count() == 0, reason="needs a GPU")

#: Sizes by dimension: odd ones, and ones that vectors divide. `...` stands for the leading dimensions.
ODD = {
    "M": 33,
    "N": 129,
    "K": 65,
    "C": 77,
    "S": 37,
    "S1": 15,
    "S2": 22,
    "H": 5,
    "W": 19,
    "D": 34,
    "P": 17,
    "B": 2,
    "V": 50,
}
ODD |= {"OH": 41, "OW": 23, "BINS": 40, "G": 5, "E": 26}
EVEN = {
    "M": 64,
    "N": 512,
    "K": 128,
    "C": 128,
    "S": 64,
    "S1": 16,
    "S2": 48,
    "H": 8,
    "W": 32,
    "D": 64,
    "P": 32,
    "B": 4,
    "V": 96,
}
EVEN |= {"OH": 16, "OW": 64, "BINS": 256, "G": 8, "E": 64}
#: Where a dimension is not free: merge_heads makes one of three tensors; of pages of 16 keys, four, a pool of their rows, and few
#: heads, whose references take gigabytes; TMA brings rows of whole 16 bytes.
FIXED = {
    "merge_heads": {"P": 3},
    "attention_causal_pages_of_16_lengths": {"K": 4, "L": 4, "R": 1024},
    "attention_causal_fp8_lse": {"D": 48, "E": 32, "N": 144},
}

#: `large`: products of three stay within f32, and an angle of 64 positions keeps its turns and 10 digits of f64.
SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "denormal": 1e-40, "large": 1e8}
#: What stands for them in other dtypes than f32, by bits.
NARROWER = {16: {"denormal": 1e-7, "large": 6e4}, 64: {"large": 1e4}}


def problems(name: str) -> Iterator[Problem]:
    """The operator's problems: each choice of dtypes at odd and at even sizes."""
    for graph in ops.operator(name).graphs:
        for sizes, leading in ((ODD, (3, 7)), (EVEN, (4, 8))):
            own = {dim: (sizes | FIXED.get(name, {}))[dim] for dim in graph.dims}
            if any(spec.shape.leading for spec in (*graph.inputs, *graph.outputs)):
                own["..."] = leading if graph.dims else (leading[0], sizes["N"])
            yield family_of(graph).normalise(Problem.dense(graph, own))


def candidate(problem: Problem, target: Target) -> tuple[Schedule, Source]:
    """The config that runs where nothing is tuned."""
    config = dispatch.choose(problem, target, None).config
    return config, config.source(problem)


def sums_within(graph: Graph) -> bool:
    """Whether f16 sums of a product are not the result alone."""
    return any(n.op == "matmul" and n.attr is f16 and all(n is not r for r in graph.results) for n in graph.nodes)


def special_values(problem: Problem, runner: ProgramRunner, device: str) -> Iterator[str]:
    """What is wrong where an input holds a special value: by the rule of the tuner's gate."""
    whole, graph = problem.origin or problem, problem.graph
    for label, value in SPECIAL.items():
        tensors, scalars = make_operands(whole, "normal", 3, device), scalar_values(graph)
        scales = {leaf.attr for n in graph.nodes if n.op == "repeat" for leaf in walk((n,)) if leaf.op == "input"}
        for i, o in enumerate(whole.inputs):
            if ("inf" in label or label == "large") and o.name in scales:
                continue  # a kernel scales sums, not elements: an infinite one stays, and what fp8 sums err by grows with it
            if label == "large" and "linear_attention" in graph.name:
                continue  # a state beyond f16 is infinite there: docs/notes/linear_attention.md
            if label == "large" and sums_within(graph):
                continue  # scores that are summed in f16 are infinite beyond it: docs/notes/attention.md
            if label == "large" and o.dtype is tf32:
                continue  # the gate's cap, a share of the mean square, is less than the digits of tf32 are worth there
            if o.dtype.is_float and o.dtype.bits > 8 and o.elements:
                narrow = NARROWER.get(o.dtype.bits, {})
                # Elsewhere in each input: products of two large values may cancel.
                tensors[o.name].view(-1)[5 * i % o.elements :: max(1, o.elements // 2)] = narrow.get(label, value)
        runner.run(tensors, scalars)
        runner.synchronize()
        exacts = evaluate(graph, tensors, scalars)
        results = zip(
            whole.outputs,
            graph.results,
            exacts,
            native(graph, tensors, scalars),
            evaluate_ranged(graph, tensors, scalars)[1],
            beside_of(graph, tensors, scalars, list(exacts)) or [0.0] * len(exacts),
        )
        for o, node, exact, own, doubtful, beside in results:
            exact = exact.long() if exact.dtype is torch.bool else exact
            got, rounded = tensors[o.name].to(exact.dtype), round_to(exact, o.dtype).to(exact.dtype)
            finite = rounded.isfinite() if o.dtype.is_float else torch.ones_like(rounded, dtype=torch.bool)
            if bool(finite.any()):
                error = float((own.to(exact.dtype) - exact).abs().double()[finite].nan_to_num(0.0, 0.0, 0.0).max())
                scale = float(exact[finite].double().square().mean().sqrt())
            else:
                error = scale = 0.0
            near = (got - exact).abs().double() <= beside + allowed_error(
                exact, coarser(o.dtype, node), error, whole, scale
            )
            wrong = ~(finite & near | (got == rounded) | (got.isnan() & rounded.isnan()) | doubtful)
            if bool(wrong.any()):
                at = int(wrong.reshape(-1).int().argmax())
                yield f"{label}: {o.name}[{at}] is {float(got.reshape(-1)[at])}, expected {float(exact.reshape(-1)[at])}"


def faults(name: str, target: Target, device: str) -> Iterator[str]:
    """What is wrong with an operator, a line each."""
    programs = [program_of(problem.origin or problem) for problem in problems(name)]
    launches = [normalised(launch) for program in programs for launch in program.launches]
    found = [candidate(launch, target) for launch in launches]
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        binaries = list(pool.map(lambda item: nvrtc(item[1], target.arch), found))
    runners = [
        Runner(load(binary, source, 0), source, {**config.symbols(launch), "SM_COUNT": target.sm_count})
        for launch, (config, source), binary in zip(launches, found, binaries)
    ]
    for program in programs:
        own, runners = runners[: len(program.launches)], runners[len(program.launches) :]
        configs, found = [config for config, _ in found[: len(own)]], found[len(own) :]
        problem, runner = program.problem, ProgramRunner(program, own)
        verdict = Gate(problem, device).check(runner, repeats=3)
        wrong = [] if verdict.ok else [str(verdict.evidence)]
        if "external" not in {n.op for n in problem.graph.nodes}:
            wrong += special_values(problem, runner, device)
        runner.close()
        yield from (f"{problem} {configs}: {text}" for text in wrong)


@pytest.mark.parametrize("name", ops.operators())
def test_on_the_gpu(name: str) -> None:
    target = detect(0)
    assert target is not None
    wrong = list(faults(name, target, "cuda"))
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:20])

"""nms on the emulator against a greedy loop in plain Python; what others get wrong: ties, ragged ends, stale flags."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from cases import TARGET
from launches import problem_of, runner

import kgen
from kgen.codegen.source import Pointer
from kgen.codegen.template_schedule import enumerate_space
from kgen.dsl.errors import ArgumentError
from kgen.dsl.expr import Expr
from kgen.dsl.family import family_of
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.size import dims
from kgen.dsl.types import f32, i64
from kgen.gpu.compile import compile as nvrtc
from kgen.gpu.target import resolve
from kgen.numerics.operands import make_operands
from kgen.numerics.reference import evaluate
from kgen.ops import operator
from kgen.ops.nms import Nms
from kgen.tuner.verify import verify

(N,) = dims("N")
GRAPH = operator("nms_padded").graphs[0]
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")


def greedy(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> list[int]:
    """The definition, box by box: float32 arithmetic, the sum of the areas by a fused multiply-add."""
    one, b = np.float32, boxes.numpy()
    limit = one(threshold)

    def overlaps(i: int, j: int) -> bool:
        with np.errstate(all="ignore"):
            (ax, ay, az, aw), (bx, by, bz, bw) = b[i], b[j]
            width, height = (max(one(0), min(p, q) - max(r, s)) for p, q, r, s in ((az, bz, ax, bx), (aw, bw, ay, by)))
            shared, area = width * height, (az - ax) * (aw - ay)
            union = one(float(area) + float(bz - bx) * float(bw - by)) - shared
            return bool(shared / union > limit)

    def rank(i: int) -> tuple[bool, float]:
        score = float(scores[i])
        return (score == score, -score if score == score else 0.0)

    kept: list[int] = []
    for i in sorted(range(len(b)), key=rank):  # stable
        if not any(overlaps(k, i) for k in kept):
            kept.append(i)
    return kept


def boxes_of(kind: str, n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed + n)
    corner, size = torch.randn(n, 2, generator=source), torch.rand(n, 2, generator=source)
    boxes, scores = torch.cat((corner * 2, corner * 2 + size * 1.5), 1), torch.randn(n, generator=source)
    at = torch.arange(n)
    if kind == "same":
        boxes = torch.tensor([0.0, 0, 1, 1]).repeat(n, 1)
    elif kind == "apart":
        boxes = at[:, None] * 10 + torch.tensor([0.0, 0, 1, 1])
    elif kind == "chain":  # each overlaps the next: every second one stays, found one after the other
        boxes = at[:, None] * torch.tensor([0.4, 0, 0.4, 0]) + torch.tensor([0.0, 0, 1, 1])
        scores = -at.float()
    elif kind == "ties":  # and boxes of no size or of a negative one
        boxes = torch.randint(-4, 5, (n, 4), generator=source).float()
        scores = torch.randint(-2, 3, (n,), generator=source).float()
    elif kind == "special":
        scores[at % 3 == 0], scores[at % 5 == 1], scores[at % 5 == 2] = float("nan"), -0.0, 0.0
        scores[at % 11 == 4], scores[at % 13 == 5] = float("inf"), -float("inf")
        boxes[at % 7 == 0, 2], boxes[at % 17 == 3, 0] = float("inf"), float("nan")
        boxes[at % 19 == 6] *= 1e30
        boxes[at % 23 == 8] *= 1e-25
    return boxes, scores


def run(
    config: Nms,
    boxes: torch.Tensor,
    scores: torch.Tensor,
    threshold: float = 0.3,
    graph: object = GRAPH,
    **options: int,
) -> list[int]:
    """The indices that a launch finds; what pads them is looked at too."""
    kept, count = torch.full((len(boxes),), 7), torch.full((), 7)
    problem = problem_of(graph, [boxes, scores, kept, count])  # type: ignore[arg-type]
    given = dict(zip([o.name for o in problem.operands], (boxes, scores, kept, count)))
    runner(config, problem, **options).run(given, {"iou_threshold": threshold})
    assert (kept[int(count) :] == -1).all()
    return kept[: int(count)].tolist()


def covering() -> list[Nms]:
    """Configs that together have every pair of values of two fields that a valid config has; each adds the most."""
    valid = list(enumerate_space(Nms, Problem.dense(GRAPH, {"N": 1000}), TARGET))
    pairs = {c: {frozenset(pair) for pair in itertools.combinations(c.values.items(), 2)} for c in valid}
    found: list[Nms] = []
    while any(pairs.values()):
        best = max(valid, key=lambda c: len(pairs[c]))
        found.append(best)  # type: ignore[arg-type]
        pairs = {c: left - pairs[best] for c, left in pairs.items()}
    return found


CONFIGS = covering()
SMALL = Nms(chunk=128, threads=256, held=2, blocks_per_sm=1)


def test_every_value_of_every_field_is_there() -> None:
    seen = {item for config in CONFIGS for item in config.values.items()}
    assert seen == {(name, value) for name, field in Nms.fields.items() for value in field.values}


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_configs_on_ragged_numbers_of_boxes(config: Nms) -> None:
    for kind, n in (("plain", 1), ("ties", 65), ("plain", 300), ("special", 131)):
        boxes, scores = boxes_of(kind, n)
        assert run(config, boxes, scores) == greedy(boxes, scores, 0.3), (kind, n)


@pytest.mark.parametrize("n", [0, 1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 513])
def test_numbers_of_boxes(n: int) -> None:
    for kind in ("plain", "same", "apart"):
        boxes, scores = boxes_of(kind, n)
        expected = {"same": min(n, 1), "apart": n}
        found = run(SMALL, boxes, scores)
        assert found == greedy(boxes, scores, 0.3)
        assert len(found) == expected.get(kind, len(found))


@pytest.mark.parametrize("threshold", [-0.5, 0.0, 1e-8, 0.5, 1.0, float("nan")])
@pytest.mark.parametrize("kind", ["plain", "ties", "special"])
def test_thresholds(kind: str, threshold: float) -> None:
    boxes, scores = boxes_of(kind, 150)
    assert run(SMALL, boxes, scores, threshold) == greedy(boxes, scores, threshold)


def test_a_long_chain_is_followed_to_its_end() -> None:
    boxes, scores = boxes_of("chain", 400)
    assert run(SMALL, boxes, scores) == list(range(0, 400, 2))


def test_overlap_exactly_at_the_threshold_stays() -> None:
    boxes = torch.tensor([[0.0, 0, 2, 1], [0, 0, 1, 1], [0, 0, 1.0001, 1]])
    assert run(SMALL, boxes, torch.tensor([3.0, 2, 1]), 0.5) == [0, 1]


def test_tensors_of_any_strides_and_alignment() -> None:
    boxes, scores = boxes_of("plain", 200)
    expected = greedy(boxes, scores, 0.3)
    by_columns = boxes.T.contiguous().T
    gaps = torch.full((200, 9), 7.0)
    gaps[:, 1:9:2] = boxes
    for given in (by_columns, gaps[:, 1:9:2]):
        apart = torch.full((200, 3), 7.0)
        apart[:, 1] = scores
        kept, count = torch.full((200, 2), 7), torch.full((), 7)
        tensors = [given, apart[:, 1], kept[:, 1], count]
        problem = problem_of(GRAPH, tensors)
        runner(SMALL, problem).run(dict(zip([o.name for o in problem.operands], tensors)), {"iou_threshold": 0.3})
        assert kept[: int(count), 1].tolist() == expected
        assert (kept[:, 0] == 7).all()


def test_results_do_not_depend_on_the_order_or_the_number_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes, scores = boxes_of("plain", 700)
    expected = greedy(boxes, scores, 0.3)
    for seed, multiprocessors in ((1, 1), (2, 2), (3, 3), (4, 7)):
        problem = problem_of(
            GRAPH, [boxes, scores, torch.empty(700, dtype=torch.int64), torch.empty((), dtype=torch.int64)]
        )
        launcher = runner(SMALL, problem, seed=seed, threads=2)
        launcher.bound = launcher.source.bind({**SMALL.symbols(problem), "SM_COUNT": multiprocessors})
        tensors = {"boxes": boxes, "scores": scores, "out0": torch.full((700,), 7), "out1": torch.full((), 7)}
        launcher.run(tensors, {"iou_threshold": 0.3})
        assert tensors["out0"][: int(tensors["out1"])].tolist() == expected


def test_gates_are_left_at_zero_and_scratch_of_before_is_not_read() -> None:
    boxes, scores = boxes_of("plain", 300)
    expected = greedy(boxes, scores, 0.3)
    tensors = {"boxes": boxes, "scores": scores, "out0": torch.full((300,), 7), "out1": torch.full((), 7)}
    launcher = runner(SMALL, problem_of(GRAPH, list(tensors.values())))
    access = {i: p.access for i, p in enumerate(launcher.source.params) if isinstance(p, Pointer)}
    for fill in (0xFF, 0x00, 0xA5):
        launcher.run(tensors, {"iou_threshold": 0.3})
        assert tensors["out0"][: int(tensors["out1"])].tolist() == expected
        for index, memory in launcher._workspaces.items():
            if access[index] == "counters":
                assert (memory == 0).all()
            else:
                memory.fill_(fill)


def test_the_reference_is_the_definition() -> None:
    for kind in ("plain", "ties", "special", "chain"):
        boxes, scores = boxes_of(kind, 120)
        kept, count = evaluate(GRAPH, {"boxes": boxes, "scores": scores}, {"iou_threshold": 0.3})
        expected = greedy(boxes, scores, 0.3)
        assert (int(count), kept.tolist()) == (len(expected), expected + [-1] * (120 - len(expected)))


def test_the_gate_passes_the_default_and_not_a_wrong_index(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem.dense(GRAPH, {"N": 150})
    made = make_operands(problem, "normal")
    assert ((made["boxes"][:, 2:] - made["boxes"][:, :2]) >= 10).all()
    launcher = runner(Nms.default(problem, TARGET), problem)
    assert verify(launcher, problem).ok
    right = launcher.run

    def off_by_one(tensors: dict[str, torch.Tensor], *rest: object) -> None:
        right(tensors, *rest)  # type: ignore[arg-type]
        tensors["out0"][3] += 1

    monkeypatch.setattr(launcher, "run", off_by_one)
    assert not verify(launcher, problem).ok


def test_a_users_operator_of_the_same_computation() -> None:
    def half(points: Tensor[f32, N], corners: Tensor[f32, N, 4]) -> tuple[Tensor[i64, N], Tensor[i64]]:
        kept, count = kgen.nms_padded(corners, points, 0.5)
        return kept, count

    graph = Operator(half).graphs[0]
    assert family_of(graph).name == "nms"
    boxes, scores = boxes_of("plain", 100)
    kept, count = torch.full((100,), 7), torch.full((), 7)
    problem = problem_of(graph, [scores, boxes, kept, count])
    runner(SMALL, problem).run({"points": scores, "corners": boxes, "out0": kept, "out1": count}, {})
    assert kept[: int(count)].tolist() == greedy(boxes, scores, 0.5)


def test_what_is_done_around_it_is_not_served() -> None:
    def moved(boxes: Tensor[f32, N, 4], scores: Tensor[f32, N]) -> tuple[Tensor[i64, N], Tensor[i64]]:
        shifted: Expr = boxes + 1.0
        return kgen.nms_padded(shifted, scores)  # type: ignore[no-any-return]

    with pytest.raises(kgen.DefinitionError, match="no family serves moved"):
        family_of(Operator(moved).graphs[0])


def test_the_function_on_tensors() -> None:
    boxes, scores = boxes_of("plain", 90)
    found = kgen.nms(boxes, scores, 0.3)
    assert found.dtype is torch.int64
    assert found.tolist() == greedy(boxes, scores, 0.3)
    assert kgen.nms(boxes[:0], scores[:0], 0.3).shape == (0,)
    with pytest.raises(ArgumentError, match="float32"):
        kgen.nms(boxes.half(), scores, 0.3)
    with pytest.raises(ArgumentError, match="N="):
        kgen.nms(boxes, scores[:5], 0.3)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_configs_compile_for_every_architecture(arch: str) -> None:
    target, problem = resolve(arch), Problem.dense(GRAPH, {"N": 5000})
    valid: Sequence[Nms] = [c for c in CONFIGS if not c.rejections(problem, target)][ARCHITECTURES.index(arch) :: 8]
    for config in (Nms.default(problem, target), *valid):
        binary = nvrtc(config.source(problem), target.arch)
        assert binary.warnings == (), config
        assert binary.spill_stores <= 64, config
        assert 0 < binary.registers <= 65536 // (config.threads * config.blocks_per_sm), config  # type: ignore[attr-defined]

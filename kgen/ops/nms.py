"""nms: greedy non-maximum suppression, exactly as torchvision computes it on a GPU. What no graph expresses: see `external`.

`nms_padded(boxes, scores, iou_threshold)` is the operator; `kgen.nms` calls it and cuts the result to the boxes that are kept.
The kernel sorts by itself. It never makes the N x N mask of overlaps: boxes are settled a chunk at a time, and only those that
stay are compared with those that are still alive.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kgen.codegen.expression import literal
from kgen.codegen.names import identifier
from kgen.codegen.render import render
from kgen.codegen.source import SM_COUNT, Integer, Launch, Param, Pointer, Scalar, Source
from kgen.dsl.choice import choice, pruning, rule
from kgen.dsl.errors import ConfigError
from kgen.dsl.external import external, is_external
from kgen.dsl.family import Family, register_family
from kgen.dsl.machine import Constants
from kgen.dsl.operator import Graph, Operator, Tensor
from kgen.dsl.problem import NormalProblem, Operand, Problem, Sizes
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import Dim, Size, ceil_div, dims, maximum, minimum
from kgen.dsl.target import Target, sm
from kgen.dsl.types import f32, i32, i64
from kgen.tuning_db.machines import constants

(N,) = dims("N")
#: Symbols of the launch, beside N.
_STRIDES = ("boxes_s0", "boxes_s1", "scores_s0", "indices_s0")
_MOST = 2**30 - 1
#: Rows of the matrix of overlaps that the reference makes at a time.
_ROWS = 256


def _greedy(boxes: Any, scores: Any, iou_threshold: Any) -> tuple[Any, Any]:
    """The reference, by tensor methods in f32: the indices that stay in descending order of score, then -1; and how many.

    Areas are rounded, and the union's sum once, as by a fused multiply-add; equal scores keep their order, NaN comes first.
    """
    order = scores.sort(descending=True, stable=True)[1]
    b = boxes.float()[order]
    count, threshold = b.shape[0], iou_threshold.float()
    sizes = b[:, 2:] - b[:, :2]
    area = sizes[:, 0] * sizes[:, 1]
    products = sizes[:, 0].double() * sizes[:, 1].double()
    alive = [True] * count
    for start in range(0, count, _ROWS):
        rows = slice(start, start + _ROWS)
        span = (b[rows, None, 2:].minimum(b[:, 2:]) - b[rows, None, :2].maximum(b[:, :2])).clamp_min(0)
        shared = span[..., 0] * span[..., 1]
        union = (area[rows, None].double() + products).float() - shared
        hits = (shared / union > threshold).cpu()
        left = hits.new_tensor(alive)
        for i, hit in enumerate(hits, start):
            if left[i]:
                left[i + 1 :] &= ~hit[i + 1 :]
        alive = left.tolist()
    kept = order[order.new_tensor(alive).bool()]
    return kept.new_full((count,), -1).index_copy(0, kept.new_tensor(range(len(kept))), kept), kept.new_tensor(
        len(kept)
    )


def _scattered(boxes: Any, scores: Any) -> None:
    """Boxes of 10 to some 150 a side whose corners lie 250 around the origin: as those of a detector overlap."""
    boxes[:, :2] *= 250
    boxes[:, 2:] = boxes[:, :2] + 10 + 50 * boxes[:, 2:].abs()


def _unlike(boxes: Any, scores: Any) -> None:
    """Scores of which some are NaN, infinite, zeros of both signs, and equal; overlaps that rounding decides.

    Every eighth box lies a third of its width beside the one before: of what the two cover half is of both.
    """
    before = boxes[: len(boxes[1::8]) * 8 : 8]
    third = (before[:, 2:3] - before[:, :1]) / 3
    boxes[1::8] = before
    boxes[1::8, ::2] += third
    for i, value in enumerate((math.nan, -0.0, 0.0, math.inf, -math.inf)):
        scores[i::8] = value


@Operator
def nms_padded(
    boxes: Tensor[f32, N, 4], scores: Tensor[f32, N], iou_threshold: float = 0.5
) -> tuple[Tensor[i64, N], Tensor[i64]]:
    """Indices of the boxes (x1, y1, x2, y2) that stay, by descending score and then -1, and how many they are.

    A box goes where one that stays and has a higher score overlaps it: intersection over union above the threshold. Equal
    scores keep their order, NaN counts as the highest.
    """
    results = ((i64, (N,)), (i64, ()))
    found = external(
        "nms",
        results,
        boxes,
        scores,
        iou_threshold,
        reference=_greedy,
        sample=_scattered,
        special=_unlike,
        cpp="reference/nms.h",
        work=N * N,
    )
    return found[0], found[1]


OPERATORS = (nms_padded,)


def matches(graph: Graph) -> bool:
    """Whether the graph is this computation and nothing else."""
    return is_external(graph.results, "nms") and [a.op for a in graph.results[0].args[:2]] == ["input", "input"]


def _inputs(problem: Problem) -> tuple[Operand, Operand]:
    """The boxes and the scores."""
    boxes, scores, _ = problem.graph.results[0].args
    return problem.operand(boxes.attr), problem.operand(scores.attr)


def suites(graph: Graph) -> Mapping[str, Sequence[Sizes]]:
    """`default`: 1000, 5000 and 20000 boxes; `large`: 20000 and 100000."""
    return {"default": [{"N": n} for n in (1000, 5000, 20000)], "large": [{"N": n} for n in (20000, 100000)]}


@dataclass(frozen=True)
class Context:
    """What the template sees: the threshold in C++."""

    threshold: str


@dataclass(frozen=True)
class NmsConstants(Constants, model="nms"):
    """Times in seconds."""

    start: float  # all before the first chunk
    chunk: float  # that is settled
    settled: float  # of a chunk of 1024
    grid_barrier: float
    pair: float  # of boxes, in clocks


class Nms(Schedule):
    """One cooperative launch: sorts, then settles chunks of boxes and suppresses the rest, all blocks together."""

    template = "nms.cu.j2"
    techniques = {
        "small chunks": {"chunk": (128, 256)},
        "large chunks": {"chunk": (512, 1024)},
        "several blocks per SM": {"blocks_per_sm": (2, 4)},
    }
    target = sm(75)

    chunk = choice(1024, 512, 256, 128)  # boxes that are settled at once
    threads = choice(1024, 512, 256)
    held = choice(4, 1, 2, 8)  # kept boxes that a lane holds while others are tested against them
    blocks_per_sm = choice(1, 2, 4)

    @rule
    def indices_of_32_bits(self, problem: Problem, target: Target) -> bool:
        """positions are held in 32 bits: fewer than 2^30 boxes"""
        return problem.outputs[0].shape[0] <= _MOST

    @rule
    def threads_of_the_multiprocessor(self, problem: Problem, target: Target) -> bool:
        """all blocks are there at once: the threads of a multiprocessor's are at most 1024"""
        return int(self.threads * self.blocks_per_sm) <= 1024

    @rule
    def registers(self, problem: Problem, target: Target) -> bool:
        """the overlaps of a thread's boxes of a chunk, and later the boxes it holds, fit in its registers with some 30 others"""
        words = self.chunk // 32 * max(1, self.chunk // self.threads)
        return bool(max(words, 5 * self.held) + 30 <= min(200, 65536 // (self.threads * self.blocks_per_sm)))

    @rule
    def fits_smem(self, problem: Problem, target: Target) -> bool:
        """the blocks' shared memory fits in that of a multiprocessor"""
        return self.blocks_per_sm * (self.smem_bytes + 1024) <= target.shared_per_sm and self.smem_bytes <= 48 * 1024

    @pruning
    def idle_threads(self, problem: Problem, target: Target) -> bool:
        """a chunk has at least a quarter as many boxes as the block has threads"""
        return bool(4 * self.chunk >= self.threads)

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph)

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> Nms:
        """The best of all by the model: they are few."""
        found = [
            config
            for chunk, threads, held in itertools.product(*(cls.fields[n].values for n in ("chunk", "threads", "held")))
            for config in [cls(chunk=chunk, threads=threads, held=held, blocks_per_sm=1)]
            if not config.rejections(problem, target)
        ]
        if not found:
            raise ConfigError(f"no nms config is valid for {problem} on {target}")
        return min(found, key=lambda config: config.estimate(problem, target))

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """The number of boxes, and the strides of the tensors."""
        boxes, scores, indices = *_inputs(problem), problem.outputs[0]
        strides = (*boxes.strides, scores.strides[0], indices.strides[0])
        return {"N": boxes.shape[0], **dict(zip(_STRIDES, strides))}

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block: a run of keys, or a chunk with what is known of it."""
        return max(2 * self.threads * 8, self.chunk * (16 + 4 + 4) + 2 * self.chunk // 8 + 128)

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        return ((Dim("N"), self.chunk), (Dim("N"), 512))  # a warp looks for chunks in 1024 boxes at a time

    def source(self, problem: Problem) -> Source:
        boxes, scores = _inputs(problem)
        indices, count = problem.outputs
        limit = problem.graph.results[0].args[2]
        words, runs = ceil_div(N, 32), ceil_div(N, 2 * self.threads)
        params: list[Param] = [
            Pointer("boxes", f32, boxes.name, "in"),
            Pointer("scores", f32, scores.name, "in"),
            Pointer("indices", i64, indices.name, "out"),
            Pointer("number", i64, count.name, "out"),
            Integer("N", N, most=_MOST),
            *(Integer(name, Dim(name), 64) for name in _STRIDES),
            *([Scalar(identifier(limit.attr), f32)] if limit.op == "scalar" else []),
            Pointer("sorted_boxes", f32, "", "scratch", N * 4),
            Pointer("sorted_keys", i64, "", "scratch", runs * (2 * self.threads)),
            Pointer("order", i32, "", "scratch", N),
            Pointer("alive_bits", i32, "", "scratch", words),
            Pointer("overlaps", i32, "", "scratch", self.chunk * self.chunk // 32),
            Pointer("grid_barriers", i32, "", "counters", 4),
        ]
        blocks = minimum(SM_COUNT * self.blocks_per_sm, maximum(1, ceil_div(N, 64)))
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=tuple(params),
            launch=Launch((blocks, 1, 1), (self.threads, 1, 1), self.smem_bytes, cooperative=True),
            arch=sm(75),
            context=Context(literal(limit.attr, f32) if limit.op == "const" else identifier(limit.attr)),
        )

    def estimate(self, problem: Problem, target: Target) -> float:
        """Time for boxes of which 0.65 are settled and 0.6 stay: chunks settled one after the other, and pairs compared.

        A pair takes about 15 instructions, half of them at half the rate, and a box's load and vote are shared by those that a
        lane holds. The times of a chunk, and of all before the first, are fitted to 20000 boxes on an H200.
        """
        k = constants(NmsConstants, target)
        count = max(1, problem.outputs[0].shape[0])
        workers = min(target.sm_count * self.blocks_per_sm, max(1, count // 64))
        clock = target.f32_flops / (256 * target.sm_count)
        per_thread = max(1, self.chunk // self.threads)
        settled = k.chunk + k.settled * self.chunk / 1024 * (0.85 + 0.15 * per_thread)
        steps = math.ceil(0.65 * count / self.chunk)
        pairs = 0.6 * 0.35 * count * count
        units = max(1.0, count / 64 * math.ceil(0.9 * self.chunk / (32 * self.held)) / (workers / self.blocks_per_sm))
        warps = min(self.threads * self.blocks_per_sm / 32, units)
        rate = workers / self.blocks_per_sm * clock * (warps / (warps + 4)) * units / math.ceil(units)
        return k.start + steps * (settled + k.grid_barrier) + pairs * k.pair * (1 + 0.8 / self.held) / rate


family = register_family(Family("nms", (Nms,), matches, lambda problem: problem, lambda graph: ("N",), suites))

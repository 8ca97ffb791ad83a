"""The default of Rowwise: rules for what was measured on an H200, and the model for the rest."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from kgen.dsl.errors import ConfigError
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.target import Target, sm
from kgen.ops.common.memory_bound import load_policy
from kgen.ops.rowwise.kernel import accesses, kept_bytes
from kgen.ops.rowwise.plan import plan_of
from kgen.ops.rowwise.problem import shifted_pack, sums_alone, widest_pack

if TYPE_CHECKING:
    from kgen.ops.rowwise.rowwise import Rowwise


def default_config(cls: type[Rowwise], problem: NormalProblem, target: Target) -> Rowwise:
    """The config that was best on an H200 for short rows, and for rows that pass; for others the best of a list by the model."""
    for config in (_of_a_short_row(cls, problem, target), _of_a_row_that_passes(cls, problem, target)):
        if config is not None:
            return config
    return _modelled(cls, problem, target)


def _packs(problem: Problem) -> list[tuple[int, bool]]:
    """Elements of a vector of one access and whether it is shifted: of aligned rows, and where longer of others."""
    one_access = 16 // max((a.bytes for a in itertools.chain(*accesses(problem)) if a.kind == "full"), default=4)
    widest, shifted = min(widest_pack(problem), one_access), min(shifted_pack(problem), one_access)
    return [(widest, False), (shifted, True)][: 1 + (shifted > widest)]


def _row_bytes(problem: Problem) -> int:
    """Bytes that are kept of a row."""
    return int(problem.leading[-1] * kept_bytes(problem))


def _of_a_short_row(cls: type[Rowwise], problem: NormalProblem, target: Target) -> Rowwise | None:
    """Up to 16 KB, or 32 with one phase: a thread has 32 bytes of each operand.

    Of weights across two accesses, of which more are to be under way, it has 64. Other weights come before the row, where
    registers are not what limits the threads of a multiprocessor; but three of 16 bits, which become f32 there, come with it,
    and more of the row at a time.
    """
    inputs, outputs = accesses(problem)
    phases = len(plan_of(problem.graph, False).phases)
    wide = _row_bytes(problem)
    if not 512 <= wide <= (2**15 if phases == 1 else 2**14) or not any(a.kind == "full" for a in outputs):
        return None
    pack, shift = _packs(problem)[-1]
    weights = [a.bytes for a in inputs if a.kind == "column"]
    early = bool(weights) and not shift
    mine = (64 if shift and weights else 32) * sum(a.kind == "full" for a in inputs)
    ideal = max(0, round(math.log2(wide / mine)))
    if early and len(weights) > 2 and max(weights) < 4 and 0 < ideal <= 7:
        early, ideal = False, ideal - 1
    # Half as many where that leaves none without a vector: 32 threads for 96 vectors, not 64. One phase is too short for that
    # to count, and so are two without weights in 128 threads.
    vectors = problem.leading[-1] / pack
    uneven = vectors % 2**ideal and vectors % 2 ** (ideal - 1) == 0 if ideal > 0 and not shift else False
    if uneven and phases > 1 and (weights or ideal > 7):
        ideal -= 1
    load = load_policy(problem, target) if pack > 1 else "default"
    for row in (2**i for i in range(ideal, 11)):
        columns = "early" if early and row <= 128 else "late"
        threads = max(row, 64 if columns == "early" and row <= 32 else 128)
        config = cls(keep="registers", row_threads=row, threads=threads, cluster=1, pack=pack, shift=shift, unroll=1,
                     algorithm="two_pass", columns=columns, blocks_per_sm=0, load=load, store="default")  # fmt: skip
        if not config.rejections(problem, target):
            return config
    return None


def _of_a_row_that_passes(cls: type[Rowwise], problem: NormalProblem, target: Target) -> Rowwise | None:
    """Of a long row that is not needed again: it passes by, and as many others as there is room for."""
    online = plan_of(problem.graph, True).online
    rows = math.prod(problem.leading[:-1])
    if _row_bytes(problem) <= (2**15 if online else 2**16) or not sums_alone(problem) or rows < 2 * target.sm_count:
        return None
    pack, shift = _packs(problem)[-1]
    row, unroll, algorithm = (512, 4, "online") if online else (256, 8, "two_pass")
    config = cls(keep="none", row_threads=row, threads=row, cluster=1, pack=pack, shift=shift, unroll=unroll,
                 algorithm=algorithm, columns="late", blocks_per_sm=0, load="default", store="default")  # fmt: skip
    return None if config.rejections(problem, target) else config


def _modelled(cls: type[Rowwise], problem: NormalProblem, target: Target) -> Rowwise:
    """The best of a list by the model. ConfigError where none is valid."""
    load, wide = load_policy(problem, target), _row_bytes(problem)
    # Online evaluates more exponentials, which pays where they are cheap; of a mean and a variance two passes were better.
    cheap = all(o.dtype.bits <= 16 for o in problem.outputs)
    softmax = any(n.op == "sum" for n in plan_of(problem.graph, True).online.values())
    algorithms = ("two_pass", "online") if softmax else ("two_pass",)
    found: list[Rowwise] = []
    for (pack, shift), row, cluster, algorithm, keep in itertools.product(
        _packs(problem),
        (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
        (1, 2, 4, 8, 16),
        algorithms,
        ("registers", "shared", "none"),
    ):
        # Measured: two to eight vectors a thread, in registers where they fit; clusters of blocks that are not too small.
        mine = wide / (row * cluster)
        if (
            (cluster > 1 and row < 128)
            or (algorithm == "online" and (row * cluster <= 32 or not (cheap or cluster > 1)))
            or (keep == "none" and row < 256)
        ):
            continue
        columns_of_a_thread = problem.leading[-1] / (row * cluster)
        # Alone on its multiprocessor, a block that has so many columns leaves the memory idle.
        if row == 1024 and cluster == 1 and columns_of_a_thread > 32 and sm(90).runs_on(target.arch):
            continue
        if keep == "registers" and not (mine <= (128 if row < 1024 else 256) and (mine >= 16 or row * cluster == 1)):
            continue
        config = cls(keep=keep, row_threads=row, threads=max(row, 128), cluster=cluster, pack=pack, shift=shift,
                     unroll=4 if keep == "none" else 1, algorithm=algorithm, columns="late", blocks_per_sm=0,
                     load=load if pack > 1 and keep != "shared" else "default", store="default")  # fmt: skip
        if not config.rejections(problem, target):
            found.append(config)
    found = [c for c in found if c.keep == "registers"] or found
    if not found:
        raise ConfigError(f"no rowwise config is valid for {problem} on {target}")
    best = min(found, key=lambda c: c.estimate(problem, target))
    if best.cluster > 1 and math.prod(problem.leading[:-1]) <= target.sm_count:
        # Clusters of eight small blocks find places for all rows at once, where those of large ones take turns.
        small = (c for c in found if (c.keep, c.cluster, c.row_threads) == ("registers", 8, 256))
        best = min(small, key=lambda c: c.estimate(problem, target), default=best)
    return best

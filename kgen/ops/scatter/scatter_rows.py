"""ScatterRows: values added at ids, each row of the result written once by those who sum up its values."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from kgen.codegen.names import identifier
from kgen.codegen.render import render
from kgen.codegen.source import SM_COUNT, Launch, Limit, Param, Pointer, Source
from kgen.dsl.choice import choice, pruning, rule
from kgen.dsl.errors import ConfigError
from kgen.dsl.expr import Expr
from kgen.dsl.machine import Constants
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.size import Dim, Size, ceil_div, maximum, minimum
from kgen.dsl.target import Arch, Target, sm
from kgen.dsl.types import f32, i32
from kgen.ops.common.access_text import AccessText
from kgen.ops.common.memory_bound import LOADS, bytes_in_flight, least_arch
from kgen.ops.scatter.plan import ScatterPlan, base_input, matches, plan
from kgen.ops.scatter.schedule import ScatterSchedule
from kgen.ops.scatter.text import ScatterText, Writer
from kgen.tuning_db.machines import constants

#: Rows and columns are counted in 32 bits, with room for a step beyond the end.
_MOST = 2**31 - 2**16 - 1


@dataclass(frozen=True)
class Context:
    """What the template sees; of the reads those of ids and of values; `base`: the input that the output may be."""

    s: ScatterText
    id_reads: tuple[AccessText, ...]
    value_reads: tuple[AccessText, ...]
    base: str
    load: str


def _plan(problem: Problem) -> ScatterPlan:
    return plan(problem, rows=True)


def _reads(p: ScatterPlan, of: Expr, text: ScatterText) -> tuple[AccessText, ...]:
    """The reads that ids or values are computed from."""
    names = {leaf.attr.name for leaf in p.values.leaves((of,)) if leaf.op == "read"}
    return tuple(x for x in text.item_reads if x.name in names)


@dataclass(frozen=True)
class ScatterRowsConstants(Constants, model="scatter_rows"):
    """Times in seconds; shares of the bandwidth."""

    start: float
    memory: float
    memory_alone: float  # of that, with nothing under way beside
    latency: float  # for which an SM's share of the bandwidth is to be under way
    places: float  # of ids and places, each a sector by itself


class ScatterRows(ScatterSchedule):
    """Indices are put into slots of their rows, then rows are summed up in registers; only crowded rows meet in memory."""

    template = "scatter_rows.cu.j2"
    techniques = {
        "rows by their ids, scalar atomics where crowded": {"atomic": "scalar"},
        "rows by their ids, atomics of vectors where crowded": {"atomic": "vector"},
        "single elements": {"pack": 1},
    }
    by_default = False  # run on the emulator and compiled alone, so far

    pack = choice(1, 2, 4, 8)  # elements of one vector
    lanes = choice(32, 1, 2, 4, 8, 16)  # threads along the columns
    slots = choice(32, 4, 8, 16, 64)  # indices of an id that have a place in its row
    items = choice(4, 1, 2, 8)  # values of a row that a thread has in flight
    atomic = choice("scalar", "vector")  # how crowded rows are added to: by elements, or by up to four of f32
    threads = choice(256, 128, 512)
    blocks_per_sm = choice(4, 1, 2, 8)
    load = choice("default", "streaming")  # of values

    @rule
    def whole_vectors(self, problem: Problem, target: Target) -> bool:
        """the columns are cut into whole vectors"""
        return _plan(problem).columns % self.pack == 0

    @rule
    def additions_of_the_target(self, problem: Problem, target: Target) -> bool:
        """vectors of f32 are added on sm_90"""
        return self.atomic == "scalar" or (self.pack > 1 and _plan(problem).total is f32 and target.arch.sm >= 90)

    @pruning
    def registers(self, problem: Problem, target: Target) -> bool:
        """what a thread has in flight fits in its registers: at most 100 bytes, or one value"""
        return self.items == 1 or self.items * self._row_bytes(problem) <= 100

    @pruning
    def busy_lanes(self, problem: Problem, target: Target) -> bool:
        """most of the threads along the columns have some"""
        return self.lanes < 2 * math.ceil(_plan(problem).columns / self.pack)

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        """Rows of columns at ids along the only other axis, both counted in 31 bits."""
        if not matches(problem.graph):
            return False
        p = _plan(problem)
        rows = p.has_columns and not p.batch_axes and len(p.result_sizes) == 2
        return rows and max(p.count, *p.result_sizes) <= _MOST

    @classmethod
    def vectors_of(cls, problem: Problem) -> list[tuple[float, int]]:
        p = _plan(problem)
        found = [r.operand for r in p.reads if p.kind(r) == "vector"]
        found += [r.operand for r in p.finish_reads if p.finish_kind(r) == "vector"]
        found += [o for o in problem.outputs if o.strides[-1] == 1]
        return [(o.dtype.bytes, o.row_align) for o in found]

    @classmethod
    def widest(cls, problem: Problem) -> int:
        p = _plan(problem)
        read = [r.operand.dtype.bytes for r in p.reads if p.kind(r) != "one"]
        return max([*read, *(o.dtype.bytes for o in problem.outputs)])

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> ScatterRows:
        """The widest legal vectors of up to 16 bytes, as many lanes as the columns have vectors, four values in flight."""
        p, widest = _plan(problem), cls.widest(problem)
        packs = [pack for pack in (8, 4, 2, 1) if pack == 1 or pack * widest <= 16]
        for pack, atomic, items in itertools.product(packs, ("vector", "scalar"), (4, 2, 1)):
            lanes = min(32, 1 << (max(1, p.columns // pack) - 1).bit_length())
            config = cls(pack=pack, lanes=lanes, slots=32, items=items, atomic=atomic, threads=256, blocks_per_sm=4,
                         load="default")  # fmt: skip
            if not config.rejections(problem, target):
                return config
        raise ConfigError(f"no scatter_rows config is valid for {problem} on {target}")

    def arch(self, problem: Problem) -> Arch:
        """Vectors of additions are sm_90's."""
        return sm(90) if self.atomic == "vector" else least_arch(problem)

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        return ((Dim("m0"), Dim("n0") * self.slots),)  # beyond their slots, ids are crowded

    def source(self, problem: Problem) -> Source:
        p = _plan(problem)
        crowded = Dim("m0") // (self.slots + 1) + 1
        writer = Writer(p, kept=crowded)
        text = writer.text()
        groups = ceil_div(maximum(Dim("n0"), ceil_div(Dim("m0"), self.lanes)), self.threads // self.lanes)
        base = base_input(plan(problem))
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=(*writer.parameters(), *self._places(crowded)),
            launch=Launch(
                (minimum(groups, SM_COUNT * self.blocks_per_sm), 1, 1), (self.threads, 1, 1), cooperative=True
            ),
            arch=self.arch(problem),
            context=Context(
                s=text,
                id_reads=_reads(p, p.id, text),
                value_reads=_reads(p, p.value, text),
                base=identifier(base) if base else "",
                load=LOADS[self.load],
            ),
            limits=(*writer.limits(), *(Limit(Dim(name), _MOST) for name in ("m0", "n0", "n1"))),
        )

    def _places(self, crowded: Size) -> list[Param]:
        """Where indices are put. `counts` are the members of each row, `tallies` the length of the list and the number of crowded
        rows, all 0 before and after; `number_of` a crowded row is its number among these."""
        rows, count = Dim("n0"), Dim("m0")
        return [
            Pointer("counts", i32, "", "counters", rows),
            Pointer("tallies", i32, "", "counters", 2),
            Pointer("slots", i32, "", "scratch", rows * self.slots),
            Pointer("list", i32, "", "scratch", count),
            Pointer("crowded", i32, "", "scratch", crowded),
            Pointer("number_of", i32, "", "scratch", rows),
        ]

    def _row_bytes(self, problem: Problem) -> int:
        p = _plan(problem)
        return sum(r.operand.dtype.bytes * (1 if p.kind(r) == "one" else int(self.pack)) for r in p.reads)

    def estimate(self, problem: Problem, target: Target) -> float:
        """Time to read the values, to write the rows, and to meet; ids are taken to be spread evenly. By count, not fitted."""
        p, k = _plan(problem), constants(ScatterRowsConstants, target)
        elements = p.count * p.columns
        threads = min(self.threads * self.blocks_per_sm, elements / (self.pack * self.items) / target.sm_count)
        flight = (
            max(1.0, threads)
            * min(self.items, max(1.0, p.count / max(1, p.result_sizes[0])))
            * self._row_bytes(problem)
        )
        narrow = min(1.0, 0.5 + 0.035 * self.pack * self.widest(problem))
        idle = math.ceil(p.columns / self.pack / self.lanes) * self.lanes * self.pack / max(1, p.columns)
        memory = (
            problem.bytes
            * idle
            / (
                target.bandwidth
                * k.memory
                * min(1.0, k.memory_alone + flight / bytes_in_flight(target, k.latency))
                * narrow
            )
        )
        # An index: its id, an addition and a place, each a sector by itself; of a row its count, read and cleared.
        places = 40 * p.count / (target.bandwidth * k.places) + 8 * p.result_sizes[0] / target.bandwidth
        return float(k.start + memory + places)

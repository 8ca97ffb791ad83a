"""rowwise: every value of every field for every dtype, at ragged lengths and with all kinds of operands."""

import pytest
import torch
from cases import Case, failures
from rowwise_cases import cases_of

from kgen import emulator
from kgen.dsl.schedule import Schedule
from kgen.dsl.types import f64
from kgen.emulator import Options
from kgen.gpu.compile import compile as nvrtc
from kgen.ops.rowwise import Rowwise
from kgen.ops.rowwise_cluster import RowwiseCluster
from kgen.tuner.execute import Runner
from kgen.tuner.verify import Gate

DTYPES = ("f16", "bf16", "f32", "f64", "i32", "i8")


def well(cases: list[Case], run: object) -> None:
    assert len(cases) > 3
    wrong = list(failures(cases, run))  # type: ignore[arg-type]
    assert not wrong, f"{len(wrong)} of {len(cases)} cases:\n" + "\n".join(wrong)


def emulate(case: Case) -> None:
    """The gate: exact results of whole numbers bit for bit, others within the tolerance, nothing else touched."""
    source = case.config.source(case.problem)
    symbols = {**case.config.symbols(case.problem), "SM_COUNT": case.target.sm_count}
    options = Options(seed=case.seed, async_mode=case.async_mode, threads=1)
    runner = Runner(emulator.compile(source), source, symbols, options)
    verdict = Gate(case.problem, seed=case.seed).check(runner)
    seen = verdict.evidence
    if case.problem.inputs[0].dtype is f64 and seen.get("check") == "tolerance":
        # The reference is f64 too: two orders of one sum differ, and no other implementation says by how much.
        assert seen["error"] <= 1e-14 * max(1.0, abs(seen["expected"])), seen
    else:
        assert verdict.ok, seen


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("schedule", ["Rowwise", "RowwiseCluster"])
def test_on_the_emulator(schedule: str, dtype: str) -> None:
    torch.set_num_threads(1)
    well(cases_of(schedule, dtype), emulate)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("schedule", ["Rowwise", "RowwiseCluster"])
def test_compiles(schedule: str, dtype: str) -> None:
    def compile(case: Case) -> None:
        binary = nvrtc(case.config.source(case.problem), case.target.arch)
        assert binary.warnings == (), binary.warnings

    well(cases_of(schedule, dtype)[::3], compile)


@pytest.mark.parametrize("schedule", [Rowwise, RowwiseCluster])
def test_every_value_of_every_field(schedule: type[Schedule]) -> None:
    cases = [case for dtype in DTYPES for case in cases_of(schedule.__name__, dtype)]
    seen = {item for case in cases for item in case.config.values.items()}
    assert seen == {(name, value) for name, field in schedule.fields.items() for value in field.values}

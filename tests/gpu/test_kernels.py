"""The suite of tests/templates on a real GPU: the same groups, the same cases, the same judges."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from cases import Case, failures
from suite import GROUPS, broken, cases_of

from kgen.dsl.errors import KgenError
from kgen.dsl.target import Target
from kgen.gpu import driver
from kgen.gpu.binary import Binary
from kgen.gpu.compile import compile as nvrtc
from kgen.gpu.kernel import load
from kgen.gpu.target import detect

pytestmark = pytest.mark.skipif(driver.device_count() == 0, reason="needs a GPU")


@pytest.fixture(scope="module")
def target() -> Target:
    found = detect(0)
    assert found is not None
    return found


def compiled(case: Case, target: Target) -> Binary | KgenError:
    """The case's binary, or why there is none."""
    try:
        return nvrtc(case.config.source(case.problem), target.arch)
    except KgenError as error:
        return error


@pytest.mark.parametrize("name", GROUPS)
def test_on_the_gpu(name: str, target: Target) -> None:
    torch = pytest.importorskip("torch")
    # Judged with as many multiprocessors as the case was drawn for.
    cases = [c for c in cases_of(name) if not broken(c, replace(target, sm_count=c.target.sm_count))]
    if not cases:
        pytest.skip(f"nothing of {name} runs on {target}")
    # NVRTC does not hold Python's lock.
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        binaries = dict(zip(map(id, cases), pool.map(lambda case: compiled(case, target), cases)))

    def run(case: Case) -> None:
        binary = binaries[id(case)]
        if isinstance(binary, KgenError):
            raise binary
        assert binary.warnings == ()
        GROUPS[name].judge(case, load(binary, case.config.source(case.problem), 0), "cuda")
        torch.cuda.synchronize()

    wrong = list(failures(cases, run))
    assert not wrong, f"{len(wrong)} of {len(cases)} cases:\n" + "\n".join(wrong)

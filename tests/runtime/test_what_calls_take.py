"""What calls and imports take beside the plain case: vectors for matrices of one column, other dtypes of results, sums of f16."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import kgen
from kgen.dsl.family import family_of
from kgen.dsl.schedule import Schedule
from kgen.runtime.dispatch import EMULATED

PROBLEMS = [kgen.hgemm_f16acc.problem(M=m, N=n, K=k) for m, n, k in ((32, 32, 256), (1, 32, 8192), (8, 1, 65536))]
HALF_SUMS = [
    pytest.param(problem, schedule, id=f"{schedule.__name__}-{problem.sizes['M']}x{problem.sizes['N']}")
    for problem in PROBLEMS
    for schedule in family_of(problem.graph).schedules
    if schedule.applies(family_of(problem.graph).normalise(problem))
]


def test_a_star_brings_operators_and_functions() -> None:
    code = (
        "from kgen import *\nimport sys\nassert 'torch' not in sys.modules\n"
        "hgemm, gelu, swish, nms, Tensor, exp, sum, operator, f16, KgenError, dims\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_vector_for_a_matrix_of_one_column() -> None:
    a, x = torch.randn(7, 16).half(), torch.randn(16).half()
    want = kgen.hgemv(a, x[:, None])
    assert want.shape == (7, 1)
    assert torch.equal(kgen.hgemv(a, x), want[:, 0])
    out = torch.empty(7, dtype=torch.float16)
    assert torch.equal(kgen.hgemv(a, x, out=out), want[:, 0])
    assert torch.equal(kgen.hgemv(a.expand(2, 7, 16), x), want[:, 0].expand(2, 7))
    scores, target = torch.randn(5, 9), torch.arange(5)
    assert torch.equal(kgen.cross_entropy(scores, target), kgen.cross_entropy(scores, target[:, None]))


def test_nested_tensors_are_refused_by_what_to_do() -> None:
    ragged = torch.nested.nested_tensor([torch.randn(2, 6), torch.randn(3, 6)], layout=torch.jagged)
    for x in (ragged, ragged.clone().requires_grad_()):
        with pytest.raises(
            kgen.ArgumentError, match=r"softmax: a tensor is nested; expected dense ones, such as its values\(\)"
        ):
            kgen.softmax(x)
    assert kgen.softmax(ragged.values()).shape == (5, 6)


def test_results_of_integers() -> None:
    ids = torch.tensor([1, 2, 2, 5, -1, 9], dtype=torch.int32)
    for dtype in (torch.int32, torch.int64):
        assert kgen.histogram(ids, out=torch.empty(6, dtype=dtype)).tolist() == [0, 1, 2, 0, 0, 1]
        assert kgen.histogram_bytes(ids.to(torch.int8), out=torch.empty(6, dtype=dtype)).tolist() == [0, 1, 2, 0, 0, 1]
        assert kgen.reduce_isum(ids.to(torch.int8), out=torch.empty((), dtype=dtype)) == 18
        assert kgen.idot(ids, ids, out=torch.empty((), dtype=dtype)) == 116


@pytest.mark.parametrize(("problem", "schedule"), HALF_SUMS)
def test_sums_of_f16_are_sums_of_f16(problem: kgen.Problem, schedule: type[Schedule]) -> None:
    """They overflow on the way to a result that f32 would hold."""
    config = schedule.default(family_of(problem.graph).normalise(problem), EMULATED)
    m, n, k = (problem.sizes[name] for name in "MNK")
    a, b = torch.full((m, k), 200.0).half(), torch.full((k, n), 200.0).half()
    b[k // 2 :] *= -1
    assert not kgen.hgemm_f16acc.using(config)(a, b).isfinite().any()
    assert not kgen.hgemm.using(config)(a, b).any()

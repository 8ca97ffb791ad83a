"""Warm calls by the extension, on a GPU: the same results as Python's way, for all that a launch may need."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kgen.gpu import driver

pytestmark = pytest.mark.skipif(driver.device_count() == 0, reason="needs a GPU")
torch = pytest.importorskip("torch")

import kgen  # noqa: E402
from kgen.runtime import native, registry  # noqa: E402
from kgen.runtime.operator import KernelOperator  # noqa: E402

#: Of each case an operator, the shapes of its inputs, and numbers: one kernel, odd rows, tensor maps, parts of a sum over K with
#: counters, blocks that meet in a workspace, and a program.
CASES: dict[str, tuple[str, list[tuple[int, ...]], dict[str, Any]]] = {
    "pointwise": ("add", [(4096,), (4096,)], {}),
    "broadcast": ("add", [(64, 1000), (1, 1000)], {}),
    "rows": ("rms_norm", [(33, 1023), (1023,)], {"eps": 1e-3}),
    "tensor maps": ("hgemm", [(512, 512), (512, 512)], {}),
    "split-K": ("hgemm", [(64, 16384), (16384, 128)], {}),
    "one row": ("hgemm", [(1, 4096), (4096, 4096)], {}),
    "sum": ("reduce_sum", [(1 << 22,)], {}),
    "program": ("group_norm", [(2, 8, 4, 64), (8, 4), (8, 4)], {}),
}


@pytest.fixture(autouse=True)
def extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "extension", native.load())


def inputs_of(shapes: list[tuple[int, ...]], seed: int) -> list[Any]:
    generator = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(s, device="cuda", dtype=torch.float16, generator=generator) for s in shapes]


@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_pythons_way(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, shapes, numbers = CASES[case]
    run = KernelOperator(getattr(kgen, name).definition)
    sets = [inputs_of(shapes, seed) for seed in range(3)]
    monkeypatch.setattr(registry, "extension", None)
    exact = [run(*given, **numbers) for given in sets]
    monkeypatch.setattr(registry, "extension", native.load())
    run(*sets[0], **numbers)
    assert run._calls(tuple(sets[0]), None, numbers) is not NotImplemented
    for _ in range(2):
        for given, want in zip(sets, exact):
            out = torch.empty_like(want)
            assert torch.equal(run(*given, **numbers), want)
            assert run(*given, out=out, **numbers) is out
            assert torch.equal(out, want)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("softmax", [(64, 1000)]),
        ("rms_norm", [(2, 128, 1024), (1024,)]),
        ("layer_norm", [(256, 1023), (1023,), (1023,)]),
        ("linear_gelu", [(256, 512), (384, 512), (384,)]),
        ("hgemm", [(256, 512), (512, 256)]),
    ],
)
def test_a_training_step_is_that_of_pythons_way(
    name: str, shapes: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = KernelOperator(getattr(kgen, name).definition)
    sets = [[x.requires_grad_() for x in inputs_of(shapes, seed)] for seed in range(3)]

    def step(given: list[Any]) -> list[Any]:
        y = run(*given)
        return [y, *torch.autograd.grad(y, given, torch.ones_like(y).mul_(0.5))]

    monkeypatch.setattr(registry, "extension", None)
    # Without their graphs: what a capture sees of the operands' gradients is not to begin on another stream.
    exact = [[x.detach() for x in step(given)] for given in sets]
    monkeypatch.setattr(registry, "extension", native.load())
    for _ in range(3):
        for given, expected in zip(sets, exact):
            found = step(given)
            assert all(torch.equal(got, want) for got, want in zip(found, expected))
    assert run(*sets[0]).grad_fn.name() == "KgenGradients"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step(sets[1])
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(got, want) for got, want in zip(found, exact[1]))


def test_a_capture_replays() -> None:
    run, (x, y) = KernelOperator(kgen.hgemm.definition), inputs_of([(256, 512), (512, 256)], 1)
    out = torch.empty(256, 256, device="cuda", dtype=torch.float16)
    for _ in range(3):
        want = run(x, y, out=out).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(x, y, out=out)
    x.mul_(2)
    graph.replay()
    torch.testing.assert_close(out, want * 2)


def test_threads_and_streams_share_an_operator() -> None:
    run, wrong = KernelOperator(kgen.add.definition), []
    sets = [inputs_of([(1000,), (1000,)], seed) for seed in range(8)]
    for _ in range(2):
        run(*sets[0])
    torch.cuda.synchronize()

    def work(x: Any, y: Any) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(500):
                found = run(x, y)
            torch.cuda.current_stream().synchronize()
            wrong.extend([] if torch.equal(found, x + y) else [x])

    threads = [threading.Thread(target=work, args=given) for given in sets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []

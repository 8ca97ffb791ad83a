"""Operators on CUDA tensors: results, streams, graphs, several GPUs, warnings, and the host time of a warm call."""

import time
import warnings
from collections import Counter

import pytest
import torch

import kgen
from kgen import ArgumentError, KgenWarning
from kgen.codegen.source import Pointer
from kgen.gpu import workspaces
from kgen.gpu.target import detect
from kgen.runtime import dispatch, native
from kgen.runtime.operator import KernelOperator
from kgen.tuner.candidates import Candidates
from kgen.tuning_db import open_store

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def database(monkeypatch, tmp_path):
    """An empty database, and no warnings that nothing is tuned."""
    path = tmp_path / "tuning.sqlite"
    monkeypatch.setenv("KGEN_DATABASE", str(path))
    dispatch.forget()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KgenWarning)
        yield path
    dispatch.forget()


def fresh(operator, config=None):
    return KernelOperator(operator.definition, config)


def cuda(*shape, dtype=torch.float16):
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_pointwise(dtype):
    x, y = cuda(1000, 37, dtype=dtype), cuda(37, dtype=dtype)
    assert torch.equal(kgen.add(x, y), x + y)
    assert torch.equal(kgen.add(x.T, y[:, None]), x.T + y[:, None])
    assert torch.equal(kgen.relu(x[:, 1:]), x[:, 1:].relu())
    expected = torch.nn.functional.gelu(x.double(), approximate="tanh")
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, torch.finfo(dtype).eps)
    torch.testing.assert_close(kgen.gelu(x).double(), expected, rtol=tolerance, atol=tolerance / 8)


@pytest.mark.parametrize("layouts", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(("m", "n", "k"), [(128, 128, 128), (1000, 520, 328), (1, 7, 3), (65, 33, 4100)])
def test_products_in_every_layout(layouts, m, n, k):
    a = cuda(m, k) if layouts[0] == "n" else cuda(k, m).T
    b = cuda(k, n) if layouts[1] == "n" else cuda(n, k).T
    expected = a.double() @ b.double()
    torch.testing.assert_close(kgen.hgemm(a, b).double(), expected, rtol=2e-3, atol=2e-3 * k**0.5)


def test_an_epilogue_writes_over_its_residual():
    a, b, c = cuda(300, 200), cuda(200, 100), cuda(300, 100)
    expected = 2 * (a.double() @ b.double()) + 0.5 * c.double()
    assert kgen.gemm(a, b, c, alpha=2.0, beta=0.5, out=c) is c
    torch.testing.assert_close(c.double(), expected, rtol=2e-3, atol=0.1)


def counting(problem):
    """The first config by the model whose blocks count each other in: sums over K are shared."""
    for config in Candidates(problem, detect(0)).ranking:
        if any(isinstance(p, Pointer) and p.access == "counters" for p in config.source(problem).params):
            return config
    raise AssertionError(f"no config for {problem} shares sums")


def test_shared_sums_on_two_streams_and_in_a_graph():
    problem = kgen.hgemm.problem(M=128, N=128, K=8192)
    config = counting(kgen.dsl.family.family_of(problem.graph).normalise(problem))
    product = fresh(kgen.hgemm, config)
    a, b = cuda(128, 8192), cuda(8192, 128)
    expected = product(a, b)
    torch.testing.assert_close(expected.double(), a.double() @ b.double(), rtol=2e-3, atol=0.2)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(product(a, b))
    torch.cuda.synchronize()
    assert all(torch.equal(r, expected) for r in results)
    held = dict(workspaces._of_streams)
    graph, out = torch.cuda.CUDAGraph(), torch.empty_like(expected)
    with torch.cuda.graph(graph):
        again = product(a, b)
        product(a, b, out=out)  # after it, in the same workspace
    for _ in range(3):
        out.zero_()
        graph.replay()
        product(a, b)  # beside it
    torch.cuda.synchronize()
    assert torch.equal(out, expected)
    assert torch.equal(again, expected)
    assert workspaces._of_streams == held


CAPTURED = pytest.mark.parametrize("captured", [False, True], ids=["stream", "graph"])


def overlapping_product():
    """A product whose launches overlap, and a matrix that as a left factor moves every row one down."""
    problem = kgen.hgemm.problem(M=1024, N=1024, K=1024)
    config = next(
        c
        for c in Candidates(kgen.dsl.family.family_of(problem.graph).normalise(problem), detect(0)).ranking
        if c.source(problem).launch.pdl
    )
    product = fresh(kgen.hgemm, config)
    order = torch.roll(torch.eye(1024, device="cuda", dtype=torch.float16), 1, 0)
    product(order, order)
    return product, order


def launch(work, captured):
    """Runs work that has been run before, or captures it and replays that."""
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        graph.replay()
    else:
        work()
    torch.cuda.synchronize()


@CAPTURED
def test_overlapping_kernels_wait_for_what_they_read(captured):
    """Each product needs all of the one before it, and writes what that one has read."""
    product, order = overlapping_product()
    start = cuda(1024, 1024)
    x, y = start.clone(), torch.empty_like(start)

    def chain() -> None:
        for _ in range(1024 // 2):
            product(order, x, out=y)
            product(order, y, out=x)

    launch(chain, captured)
    assert torch.equal(x, start)


@CAPTURED
def test_overlapping_kernels_wait_for_another_stream(captured):
    """Between two products, work on another stream that the second waits for."""
    product, order = overlapping_product()
    start, other = cuda(1024, 1024), torch.cuda.Stream()
    x, y, copy = start.clone(), torch.empty_like(start), torch.zeros_like(start)

    def chain() -> None:
        for _ in range(8):
            product(order, x, out=y)
            other.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(other):
                torch.cuda._sleep(200_000)
                copy.copy_(y)
            torch.cuda.current_stream().wait_stream(other)
            product(order, copy, out=x)

    launch(chain, captured)
    assert torch.equal(x, torch.roll(start, 16, 0))


def test_the_current_stream_is_used():
    x, stream = cuda(1 << 20), torch.cuda.Stream()
    kgen.relu(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        x.fill_(3.0)
        y = kgen.relu(x)
    stream.synchronize()
    assert (y == 3.0).all()


def test_warm_calls_are_captured_in_a_graph():
    x, w = cuda(64, 64), cuda(64, 64)
    kgen.hgemm(kgen.gelu(x), w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = kgen.hgemm(kgen.gelu(x), w)
    x.copy_(cuda(64, 64))
    graph.replay()
    assert torch.equal(y, kgen.hgemm(kgen.gelu(x), w))


def test_devices_are_not_mixed():
    x = cuda(8)
    with pytest.raises(ArgumentError, match=r"b is on cpu, a on cuda:0"):
        kgen.add(x, x.cpu())
    kgen.add(x, x)
    with pytest.raises(ArgumentError, match=r"b is on cpu, a on cuda:0"):
        kgen.add(x, x.cpu())
    with pytest.raises(ArgumentError, match="out is on cpu"):
        kgen.add(x, x, out=x.cpu())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_gpu_than_the_current_one():
    for device in ("cuda:1", "cuda:0"):
        x = torch.randn(1000, device=device)
        assert torch.equal(kgen.relu(x), x.relu())
        assert torch.equal(kgen.relu(x), x.relu())


def test_the_untuned_warn_once_and_the_tuned_do_not(database, monkeypatch):
    monkeypatch.setattr(dispatch, "_warned", set())
    monkeypatch.setattr(dispatch, "_suggested", Counter())
    x = cuda(4096)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", KgenWarning)
        fresh(kgen.gelu)(x)
        fresh(kgen.gelu)(x)
    (warning,) = [w for w in caught if w.category is KgenWarning]
    assert "kgen tune gelu --shape ...=4096 --dtype f16" in str(warning.message)
    assert warning.filename == __file__
    outcome = kgen.tune(kgen.gelu, leading=4096, budget="3")
    assert outcome.measured
    monkeypatch.setattr(dispatch, "_warned", set())
    monkeypatch.setattr(dispatch, "_suggested", Counter())
    with warnings.catch_warnings():
        warnings.simplefilter("error", KgenWarning)
        tuned = fresh(kgen.gelu)
        tuned(x)
    with open_store(database) as store:
        assert dispatch.choose(kgen.gelu.problem(leading=4096), detect(0), store).config == outcome.config


def host_time(call, count=50):
    """Seconds of the host for one call, the least of 15 samples; the GPU is never behind, so that no queue fills up.

    The least: other processes take cores, and slices of the GPU that a full queue would wait for.
    """
    times = []
    for _ in range(15):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        times.append((time.perf_counter() - start) / count)
    return min(times)


def test_a_warm_call_costs_the_host_no_more_than_torch_mm():
    native.load()  # which a thread builds at the first use
    a, b, out = cuda(64, 64), cuda(64, 64), torch.empty(64, 64, device="cuda", dtype=torch.float16)
    calls = {"kgen": lambda: kgen.hgemm(a, b, out=out), "torch": lambda: torch.mm(a, b, out=out)}
    for call in calls.values():
        host_time(call)
    rounds = [{name: host_time(call) for name, call in calls.items()} for _ in range(5)]  # in turns
    kgen_time, torch_time = (min(times[name] for times in rounds) for name in ("kgen", "torch"))
    assert kgen_time <= torch_time, f"kgen {kgen_time * 1e6:.2f} us, torch.mm(out=) {torch_time * 1e6:.2f} us"

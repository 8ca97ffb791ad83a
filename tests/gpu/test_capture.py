"""First calls inside the capture of a CUDA graph: compiled and loaded there, with results that replays give."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kgen.gpu import driver

pytestmark = pytest.mark.skipif(driver.device_count() == 0, reason="needs a GPU")
torch = pytest.importorskip("torch")

import kgen  # noqa: E402
from kgen import KgenWarning, Tensor, f16  # noqa: E402
from kgen.cli.main import app  # noqa: E402
from kgen.codegen.settings import database  # noqa: E402
from kgen.codegen.source import Pointer  # noqa: E402
from kgen.dsl.family import normalised  # noqa: E402
from kgen.gpu import workspaces  # noqa: E402
from kgen.gpu.target import detect  # noqa: E402
from kgen.runtime import call, dispatch, native  # noqa: E402
from kgen.runtime.operator import KernelOperator  # noqa: E402
from kgen.tuner.candidates import Candidates  # noqa: E402
from kgen.tuning_db import open_store  # noqa: E402

M, N = kgen.dims("M N")


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[None]:
    """No kernel is loaded or compiled before a test."""
    monkeypatch.setattr(call, "_kernels", {})
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KgenWarning)
        yield


def fresh(operator: Any, config: Any = None) -> Any:
    return KernelOperator(operator.definition, config)


def drawn(*shape: int, dtype: Any = None) -> Any:
    return torch.randn(*shape, device="cuda", dtype=dtype or torch.float16)


def captured(work: Callable[[], Any], mode: str = "global") -> tuple[Any, Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        result = work()
    return graph, result


def config_with(operator: Any, access: str, **sizes: int) -> Any:
    """The first config by the model whose kernel has such workspaces."""
    problem = normalised(operator.problem(**sizes))
    for config in Candidates(problem, detect(0)).ranking:
        if any(isinstance(p, Pointer) and p.access == access for p in config.source(problem).params):
            return config
    raise AssertionError(f"no config for {problem} has {access}")


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_first_call(mode: str) -> None:
    op, x = fresh(kgen.softmax), drawn(100, 1000)
    graph, y = captured(lambda: op(x), mode)
    for _ in range(2):
        x.copy_(drawn(100, 1000))
        graph.replay()
        torch.testing.assert_close(y.float(), x.float().softmax(-1), rtol=2e-3, atol=1e-6)
    assert torch.equal(op(x), y)


@kgen.operator
def both_sums(x: Tensor[f16, M, N], w: Tensor[f16, N]) -> Tensor[f16, M, N]:
    """It takes several launches."""
    y = x * kgen.rsqrt(kgen.mean(x * x, axis=-1) + 1e-6) * w
    return y + kgen.sum(x, axis=-2)


def test_a_first_call_of_several_launches() -> None:
    op, x, w = fresh(both_sums), drawn(64, 128), drawn(128)
    assert len(op.launches) > 1
    graph, y = captured(lambda: op(x, w))
    x.copy_(drawn(64, 128))
    graph.replay()
    assert torch.equal(y, op(x, w))


def test_a_first_training_step() -> None:
    inputs = [t.requires_grad_() for t in (drawn(256, 512), drawn(512), drawn(512))]
    op, seed = fresh(kgen.layer_norm), drawn(256, 512)

    def step() -> Any:
        return torch.autograd.grad(op(*inputs), inputs, seed)

    graph, found = captured(step)
    with torch.no_grad():
        inputs[0].copy_(drawn(256, 512))
    graph.replay()
    for got, want in zip(found, step()):
        assert torch.equal(got, want)


@pytest.mark.skipif(driver.device_count() > 0 and detect(0).arch.sm < 90, reason="kernels overlap from sm_90")
@pytest.mark.parametrize("calls", [1, 5])
def test_a_captured_product_starts_early_after_its_like(calls: int) -> None:
    """After torch's kernels it would take longer so. By Python's first call, and by the extension."""
    ranking = Candidates(normalised(kgen.hgemm.problem(M=512, N=512, K=512)), detect(0)).ranking
    op, a, b = fresh(kgen.hgemm, next(config for config in ranking if config.pdl)), drawn(512, 512), drawn(512, 512)
    native.load()
    for _ in range(calls):
        op(a, b)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        found = op(op(op(a, b) + 1, b), b)
    graph.replay()
    torch.testing.assert_close(found, op(op(op(a, b) + 1, b), b), rtol=0, atol=0)
    api = driver.api()
    *_, data, _ = driver.check(api.cuGraphGetEdges(api.CUgraph(graph.raw_cuda_graph()), 3))
    programmatic = api.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
    assert sum(one.type == int(programmatic) for one in data) == 1


def test_counters_are_the_graphs_own_and_come_back() -> None:
    product = fresh(kgen.hgemm, config_with(kgen.hgemm, "counters", M=128, N=128, K=8192))
    a, b = drawn(128, 8192), drawn(8192, 128)
    graph, first = captured(lambda: product(a, b))
    lent = len(workspaces._lent)
    assert lent >= 1
    expected = product(a, b)
    for _ in range(3):
        graph.replay()
        product(a, b)  # beside it
    torch.cuda.synchronize()
    assert torch.equal(first, expected)
    del graph, first
    gc.collect()
    torch.cuda.synchronize()
    again, second = captured(lambda: product(a, b))
    assert len(workspaces._lent) == lent  # what the first graph gave back
    again.replay()
    torch.cuda.synchronize()
    assert torch.equal(second, expected)


def test_a_first_call_while_another_thread_captures() -> None:
    op, x, y = fresh(kgen.gelu), drawn(1000), drawn(1000)
    failed: list[BaseException] = []

    def first_call() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                op(x)
        except BaseException as error:
            failed.append(error)

    graph = torch.cuda.CUDAGraph()
    # Else torch's own allocations in another thread would end the capture.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        z = kgen.relu(y)
        thread = threading.Thread(target=first_call)
        thread.start()
        thread.join()
    graph.replay()
    torch.cuda.synchronize()
    assert not failed, failed
    assert torch.equal(z, y.relu())


@pytest.mark.parametrize("access", ["counters", "scratch"])
def test_reduce_overhead_with_workspaces(access: str) -> None:
    """The trees of CUDA graphs refuse memory of theirs that outlives a call."""
    torch._dynamo.reset()
    product = fresh(kgen.hgemm, config_with(kgen.hgemm, access, M=128, N=128, K=8192))
    a, b = drawn(128, 8192), drawn(8192, 128)
    run = torch.compile(lambda a, b: product(a, b) + 1, mode="reduce-overhead", fullgraph=True)
    for _ in range(4):
        got = run(a, b).clone()
    assert torch.equal(got, product(a, b) + 1)


def test_reduce_overhead_of_a_training_step() -> None:
    torch._dynamo.reset()
    inputs = [t.requires_grad_() for t in (drawn(256, 512), drawn(512), drawn(512))]
    op, seed = fresh(kgen.layer_norm), drawn(256, 512)
    run = torch.compile(lambda *given: op(*given), mode="reduce-overhead", fullgraph=True)
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        found = [g.clone() for g in torch.autograd.grad(run(*inputs), inputs, seed)]
    for got, want in zip(found, torch.autograd.grad(op(*inputs), inputs, seed)):
        assert torch.equal(got, want)


def test_what_is_captured_first_is_noted_and_tuned_later(monkeypatch: pytest.MonkeyPatch) -> None:
    op, x = fresh(kgen.gelu), drawn(4096)
    graph, y = captured(lambda: op(x))
    with open_store(database()) as store:
        (record,) = store.deferred()
    assert (record.place, record.gpu.name) == ("gelu", detect(0).name)
    with pytest.raises(SystemExit) as done:
        app(["tune", "--deferred", "--budget", "3"])
    assert not done.value.code
    dispatch.forget()
    with open_store(database()) as store:
        assert store.deferred() == []
        assert dispatch.choose(kgen.gelu.problem(leading=4096), detect(0), store).how == "tuned"
    graph.replay()
    assert torch.equal(y, fresh(kgen.gelu)(x))


def test_a_warmed_up_model_is_captured_without_a_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    # Sizes of its own: gradients of an operator are shared by all that are made of its definition.
    inputs = [t.requires_grad_() for t in (drawn(384, 640), drawn(640), drawn(640))]
    op, seed = fresh(kgen.layer_norm), drawn(384, 640)

    def step() -> Any:
        return torch.autograd.grad(op(*inputs), inputs, seed)

    report = kgen.warm(step)
    assert [met.name for met in report.problems] == ["layer_norm_train", "layer_norm_train_grad"]
    monkeypatch.setattr(call, "choose", None)
    graph, found = captured(step)
    graph.replay()
    for got, want in zip(found, step()):
        assert torch.equal(got, want)


def test_arrays_of_the_gpu() -> None:
    """What shows `__cuda_array_interface__` alone, as numba's arrays do; CuPy's come back as CuPy's."""
    x = drawn(1000, dtype=torch.float32)
    stream = torch.cuda.Stream()

    class Shown:
        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor
            self.__cuda_array_interface__ = {
                **tensor.__cuda_array_interface__,
                "version": 3,
                "stream": stream.cuda_stream,
            }

    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.fill_(3.0)
    y = kgen.relu(Shown(x))
    assert (y == 3.0).all()
    cupy = pytest.importorskip("cupy")
    z = kgen.relu(cupy.asarray([-1.0, 2.0], dtype="f4"))
    assert isinstance(z, cupy.ndarray)
    assert z.tolist() == [0.0, 2.0]


@pytest.mark.parametrize(("rows", "window"), [(1, None), (3, None), (1, (900, 0))])
def test_a_prefix_that_batches_share(rows: int, window: Any) -> None:
    """Three launches of kernels, and those that make ranges of lengths: right for the lengths that a replay finds."""
    q, k, v = drawn(3, 8, rows, 128), drawn(3, 2, 256, 128), drawn(3, 2, 256, 128)
    prefix = drawn(2, 1000, 128), drawn(2, 1000, 128)
    lengths = torch.tensor([0, 256, 7], dtype=torch.int32, device="cuda")

    def work() -> Any:
        return kgen.attention(q, k, v, prefix=prefix, lengths=lengths, causal=True, window=window, lse=True)

    work()
    graph, (out, lse) = captured(work)
    for given in ([0, 256, 7], [100, 0, 255]):
        lengths.copy_(torch.tensor(given))
        graph.replay()
        torch.cuda.synchronize()
        for b, n in enumerate(given):
            keys, values = (torch.cat([p, x[b, :, :n]], 1)[None] for p, x in zip(prefix, (k, v)))
            want, sums = kgen.attention(q[b : b + 1], keys, values, causal="lower_right", window=window, lse=True)
            torch.testing.assert_close(out[b : b + 1], want, rtol=0, atol=2e-3)
            torch.testing.assert_close(lse[b : b + 1], sums, rtol=1e-5, atol=1e-5)

"""Operators of several launches: called, pinned, tuned and looked at, whole and launch by launch."""

import threading
from importlib import import_module

import pytest
import torch

import kgen
from kgen import ArgumentError, ConfigError, Tensor, dims, dtype_var, f16, f32, ops
from kgen.dsl.program import launches_of, program_of
from kgen.gpu.compile import compile as nvrtc
from kgen.gpu.target import resolve
from kgen.runtime import dispatch
from kgen.runtime.call import choose, load_plan
from kgen.runtime.operands import problem_of
from kgen.runtime.plan import GpuPlan, ProgramPlan

B, C, S = dims("B C S")
T = dtype_var("T", f16, f32)
H200 = resolve("H200")


@kgen.operator
def softmax_of_axes(x: Tensor[T, B, C, S], scale: float = 1.0) -> Tensor[T, B, C, S]:
    e = kgen.exp(x * scale - kgen.amax(x * scale, (-2, -1)))
    return e / kgen.sum(e, (-2, -1))


def expected(x, scale=1.0):
    return torch.softmax((x.double() * scale).flatten(1), -1).view(x.shape)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_call_runs_all_launches(dtype):
    x = torch.randn(3, 7, 33).to(dtype)
    with kgen.emulate():
        y = softmax_of_axes(x)
        z = softmax_of_axes(x.mT.contiguous().mT, 2.0)
    torch.testing.assert_close(y.double(), expected(x), rtol=2e-3, atol=1e-6)
    torch.testing.assert_close(z.double(), expected(x, 2.0), rtol=4e-3, atol=1e-6)
    assert y.dtype == dtype


def test_results_that_are_values_between_launches_may_have_strides():
    x, w, b = torch.randn(5, 6, 7).half(), torch.ones(6, 1).half(), torch.zeros(6, 1).half()
    y, mean, variance = kgen.batch_norm_train(x, w, b)
    gaps = torch.full((6, 2), 7.0)
    out = (torch.empty_like(x), gaps[:, 0], torch.empty(6))
    assert kgen.batch_norm_train(x, w, b, out=out)[1] is out[1]
    assert torch.equal(gaps[:, 0], mean)
    assert (gaps[:, 1] == 7).all()
    assert torch.equal(out[0], y)
    torch.testing.assert_close(variance, x.float().var((0, 2), correction=0))


def test_an_output_may_be_no_input():
    """An input may be read by a launch after another wrote the output."""
    x = torch.randn(3, 7, 33)
    with pytest.raises(ArgumentError, match="out shares memory with x"):
        softmax_of_axes(x, out=x)


def test_nothing_to_compute():
    assert softmax_of_axes(torch.ones(0, 7, 33)).shape == (0, 7, 33)


def test_one_config_is_not_for_several_launches():
    several = r"takes 3 launches, each with a config of its own; name one of them: softmax_of_axes_1, softmax_of_axes_2"
    config = dispatch.default(softmax_of_axes.launches[0].problem(B=2, C=3, S=4), H200).config
    for call in (
        lambda: softmax_of_axes.using(config),
        lambda: softmax_of_axes.using(threads=128),
        lambda: softmax_of_axes.source(B=2, C=3, S=4, config=config),
        lambda: dispatch.default(softmax_of_axes.problem(B=2, C=3, S=4), H200),
        lambda: dispatch.choose(softmax_of_axes.problem(B=2, C=3, S=4), H200, None),
    ):
        with pytest.raises(ConfigError, match=several):
            call()


def test_launches_are_operators():
    first, second, third = softmax_of_axes.launches
    x = torch.randn(3, 7, 33).half()
    top = first(x)
    assert torch.equal(top, x.float().amax((-2, -1), keepdim=True))
    assert torch.equal(third(x, top, second(x, top)), softmax_of_axes(x))
    assert kgen.gelu.launches == (kgen.gelu,)
    assert kgen.group_norm_1.definition.graphs == kgen.group_norm.launches[0].definition.graphs


def test_the_source_has_all_kernels_and_compiles():
    text = softmax_of_axes.source(B=64, C=64, S=64, target="H200")
    assert [f"namespace softmax_of_axes_{n}_kernel {{" in text for n in (1, 2, 3)] == [True] * 3
    problem = softmax_of_axes.launches[0].problem(B=64, C=64, S=64)
    source = dispatch.default(problem, H200).config.source(problem)
    whole = text.split("\n\n", 1)
    one = type(source)("", (), whole[0], whole[1], source.entry, source.params, source.launch, source.arch)
    assert nvrtc(one, H200.arch).warnings == ()


def test_threads_share_a_plan():
    x = [torch.randn(3, 7, 33) for _ in range(4)]
    softmax_of_axes(x[0])
    found = [None] * 4

    def call(i):
        found[i] = [softmax_of_axes(x[i]) for _ in range(3)]

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        for y in found[i]:
            torch.testing.assert_close(y.double(), expected(x[i]), rtol=1e-5, atol=1e-7)


class Ordered(GpuPlan):
    """A launch that only notes what it is given."""

    index = 0

    def __init__(self, problem, noted):
        super(GpuPlan, self).__init__(problem, torch.device("cpu"))
        self.noted = noted

    def run(self, operands, results, addresses, values):
        self.noted.append((self.problem.graph.name, addresses, values))


def test_launches_follow_each_other_over_the_workspaces_of_a_stream(monkeypatch):
    streams = iter([7, 7, 8])
    monkeypatch.setattr("kgen.runtime.plan._raw_stream", lambda index: next(streams))
    monkeypatch.setattr("kgen.runtime.plan._capturing", lambda: False)
    monkeypatch.setattr("kgen.gpu.workspaces.of_stream", lambda device, stream, use, size: (stream << 20) + 4096)
    x = torch.randn(2, 3, 4)
    program = program_of(problem_of(softmax_of_axes.definition, (x,), ()))
    noted = []
    plan = ProgramPlan(program, x.device, [Ordered(launch, noted) for launch in program.launches])
    made = [plan((x,), [x.data_ptr()], {"scale": 3.0}) for _ in range(3)]
    assert [name for name, _, _ in noted[:3]] == [f"softmax_of_axes_{n}" for n in (1, 2, 3)]
    places = []
    for i, y in enumerate(made):
        (_, first, one), (_, second, two), (_, third, three) = noted[3 * i : 3 * i + 3]
        amax, total = second[1:]
        assert first == [x.data_ptr(), amax]
        assert second[0] == x.data_ptr()
        assert third == [x.data_ptr(), amax, total, y.data_ptr()]
        assert one == two == three == (3.0,)
        places.append((amax, total))
    assert places[0] == places[1]
    assert len({*places[0], *places[2]}) == 4


def test_a_plan_of_tensors_of_the_cpu_runs_on_the_emulator():
    x = torch.randn(2, 3, 4)
    plan = load_plan(choose(softmax_of_axes.definition, None, softmax_of_axes.restriction, (x,)))
    assert len(plan.runner.runners) == 3


def test_tuning_the_whole_tunes_each_launch(monkeypatch, tmp_path):
    monkeypatch.setenv("KGEN_DATABASE", str(tmp_path / "tuning.sqlite"))
    monkeypatch.setattr("kgen.tuner.modelled.COMPILED", 1)
    monkeypatch.setattr("kgen.tuner.modelled.VERIFIED", 1)
    monkeypatch.setattr("kgen.tuner.candidates.EXHAUSTIVE", 50)
    dispatch.forget()
    try:
        outcome = kgen.group_norm.tune(B=2, G=2, C=4, S=16, gpu="H200", budget="2")
        (first,) = outcome.earlier
        assert [first.problem.graph.name, outcome.problem.graph.name] == ["group_norm_1", "group_norm_2"]
        again = kgen.group_norm_1.tune(B=2, G=2, C=4, S=16, gpu="H200", budget="2")
        assert again.cached
        assert again.config == first.config
    finally:
        dispatch.forget()


def test_no_two_operators_have_one_name():
    """A launch's name is its operator's with a number, and none that another operator has."""
    shipped = [operator for module in ops.FILES for operator in import_module(f"kgen.ops.{module}").OPERATORS]
    names = [operator.name for operator in shipped]
    names += [launch.name for operator in shipped for launch in launches_of(operator) if launch is not operator]
    assert len(set(names)) == len(names)

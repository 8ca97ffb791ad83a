"""Operators under torch.compile, torch.export, make_fx and fake tensors, which nobody registered; torch's own checks of them."""

from __future__ import annotations

import functools
import gc
import subprocess
import sys

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import kgen
from kgen import ArgumentError, Tensor, f16, f32
from kgen.dsl.problem import Problem
from kgen.numerics.operands import make_operands, scalar_values
from kgen.ops import operators
from kgen.runtime.autograd import torch_op
from kgen.runtime.library import schema, untold
from kgen.runtime.operator import KernelOperator
from kgen.runtime.shipped import shipped

SIZES = {"M": 5, "N": 6, "K": 4, "G": 3, "D": 8, "P": 4, "S1": 2, "S2": 3, "S": 5, "OH": 7, "OW": 4}
#: torch cannot compare fp8.
FP8 = ("fp8gemm", "fp8gemm_blockwise", "fp8gemm_vectorwise")


@kgen.operator
def two_of_them(
    x: Tensor[f32, ...], y: Tensor[f32, ...], shift: float, times: int = 2
) -> tuple[Tensor[f32, ...], Tensor[f16, ...]]:
    return x + y + shift, kgen.cast(x * times, f16)


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()


def given_of(name):
    """What torch's operator takes: tensors, numbers, sizes."""
    definition = operators()[name]
    graph = definition.graphs[0]
    sizes = {dim: SIZES.get(dim, 4) for dim in graph.dims}
    lead = {"...": (2, 3)} if any(s.shape.leading for s in (*graph.inputs, *graph.outputs)) else {}
    tensors = make_operands(Problem.dense(graph, {**sizes, **lead}))
    numbers = {**scalar_values(graph), **{s.name: 0.25 for s in graph.scalars if s.name == "p"}}
    return [
        *(tensors[s.name].clone() for s in graph.inputs),
        *numbers.values(),
        *(sizes[d] for d in untold(definition)),
    ]


@pytest.mark.parametrize("name", sorted(set(operators()) - {*FP8}))
def test_shapes_without_memory_are_those_of_results(name):
    """For every operator, without computing anything: fake tensors of dynamic sizes."""
    given, op = given_of(name), torch_op(shipped(name))
    fakes = [x.to("meta") if isinstance(x, torch.Tensor) else x for x in given]
    found = op(*fakes)
    problem = Problem.dense(operators()[name].graphs[0], _sizes(name))
    for y, operand in zip(found if isinstance(found, tuple) else (found,), problem.outputs):
        assert tuple(y.shape) == operand.shape
        assert y.is_contiguous()


def _sizes(name):
    graph = operators()[name].graphs[0]
    lead = {"...": (2, 3)} if any(s.shape.leading for s in (*graph.inputs, *graph.outputs)) else {}
    return {**{dim: SIZES.get(dim, 4) for dim in graph.dims}, **lead}


@pytest.mark.parametrize(
    "name", ["gelu", "softmax", "layer_norm", "linear_gelu", "dropout", "embedding", "upsample_nearest", "nms_padded"]
)
def test_torchs_own_checks(name):
    given = given_of(name)
    torch.library.opcheck(torch_op(shipped(name)), given, test_utils=("test_schema", "test_faketensor"))
    wanting = [x.requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in given]
    torch.library.opcheck(
        torch_op(shipped(name)), wanting, test_utils=("test_autograd_registration", "test_aot_dispatch_dynamic")
    )


def test_several_results_and_numbers():
    given = torch.randn(3, 1), torch.randn(4), 0.5
    torch.library.opcheck(torch_op(two_of_them), given, test_utils=("test_schema", "test_faketensor"))
    for x, y in zip(torch_op(two_of_them)(*given), two_of_them(*given)):
        assert torch.equal(x, y)
    assert schema(two_of_them).endswith("(Tensor x, Tensor y, float shift, SymInt times=2) -> (Tensor, Tensor)")


def drawn(rows, wanted=True):
    shapes = (rows, 16), (16,), (16,)
    return [torch.randn(shape, requires_grad=wanted) for shape in shapes]


@pytest.mark.parametrize(("backend", "wanted"), [("eager", False), ("aot_eager", True)])
def test_one_graph_for_many_sizes(backend, wanted):
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(lambda *given: kgen.layer_norm(*given) * 2, backend=counter, fullgraph=True)
    for rows in (4, 5, 7, 9):
        given = drawn(rows, wanted)
        got, want = compiled(*given), F.layer_norm(given[0], (16,), *given[1:]) * 2
        torch.testing.assert_close(got, want)
        if wanted:
            seed = torch.randn_like(got)
            for x, y in zip(torch.autograd.grad(got, given, seed), torch.autograd.grad(want, given, seed)):
                torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 2  # one size, and any


def test_one_graph_for_many_seeds():
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(lambda x, seed: kgen.dropout(x, 0.5, seed=seed), backend=counter, fullgraph=True)
    x = torch.randn(3, 5)
    for seed in range(5):
        assert torch.equal(compiled(x, seed), kgen.dropout(x, 0.5, seed=seed))
    assert counter.frame_count == 2


@pytest.mark.parametrize("numbers", [(), (2.0,), (2.0, 1.0), (2.0, 1.0, 5.0)])
def test_gradients_with_numbers(numbers):
    """However many of them follow the tensors, given or left at their defaults."""

    @kgen.operator
    def scaled(
        x: Tensor[f32, ...], y: Tensor[f32, ...], a: float = 3.0, b: float = 1.0, c: float = 0.0
    ) -> Tensor[f32, ...]:
        return x * y * a * b + c

    x, y = torch.randn(4, requires_grad=True), torch.randn(4)
    (found,) = torch.autograd.grad(torch_op(scaled)(x, y, *numbers).sum(), x)
    torch.testing.assert_close(found, y * (numbers[0] if numbers else 3.0))


@pytest.mark.parametrize("out", [torch.empty(2, 3, 4), torch.empty(3, 4, dtype=torch.float64), [torch.empty(3, 4)] * 2])
def test_an_output_that_does_not_fit_is_refused(out):
    with pytest.raises(ArgumentError, match=r"^gelu"):
        torch.compile(lambda x: kgen.gelu(x, out=out), backend="eager")(torch.randn(3, 4))


def test_of_two_that_compute_the_same_one_may_go():
    def made():
        @kgen.operator
        def twin(x: Tensor[f32, ...]) -> Tensor[f32, ...]:
            return x * x

        return twin

    kept, gone = made(), made()
    assert kept.key == gone.key
    del gone
    gc.collect()
    x = torch.randn(4, requires_grad=True)
    torch.compile(kept, backend="aot_eager", fullgraph=True)(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_out_is_written_and_what_it_was_copied_from_is_not():
    def function(x, larger):
        before = x.clone()
        kgen.gelu(before, out=x)
        kgen.upsample_nearest(before, out=larger)
        return before, larger + 1

    x, larger = torch.randn(2, 4, 6), torch.empty(2, 8, 12)
    given = x.clone()
    before, moved = torch.compile(function, fullgraph=True, backend="aot_eager")(x, larger)
    assert torch.equal(before, given)
    torch.testing.assert_close(x, F.gelu(given, approximate="tanh"))
    torch.testing.assert_close(larger, F.interpolate(given[None], scale_factor=2)[0])
    assert torch.equal(moved, larger + 1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = (torch.nn.Parameter(torch.randn(16)) for _ in range(2))

    def forward(self, x):
        return kgen.layer_norm(x, self.weight, self.bias) + 1


@pytest.mark.parametrize("strict", [True, False])
def test_an_export_holds_it(strict):
    net, dim = Net(), torch.export.Dim("n", min=2)
    with torch.no_grad():
        program = torch.export.export(net, (torch.randn(4, 16),), dynamic_shapes=({0: dim},), strict=strict)
        assert kgen.layer_norm.key in str(program.graph)
        x = torch.randn(9, 16)
        assert torch.equal(program.module()(x), net(x))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_holds_it(mode):
    kgen.gelu(torch.randn(3, 5))  # known, so that a call would find its plan
    traced = make_fx(lambda x: kgen.gelu(x) * 2, tracing_mode=mode)(torch.randn(3, 5))
    x = torch.randn(3, 5)
    assert torch.equal(traced(x), kgen.gelu(x) * 2)


def test_tensors_without_memory():
    kgen.gelu(torch.randn(3, 5))
    mode = FakeTensorMode()
    with mode:
        assert kgen.gelu(torch.empty(3, 5)).shape == (3, 5)
    assert kgen.gelu(mode.from_tensor(torch.randn(3, 5))).shape == (3, 5)
    x = torch.empty(3, 16, device="meta", requires_grad=True)
    kgen.layer_norm(x, *torch.empty(2, 16, device="meta")).sum().backward()
    assert x.grad.is_meta


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("called", [False, True])
def test_fake_tensors_are_not_asked_for_their_address(called, request):
    """torch warns of it."""
    request.addfinalizer(functools.partial(torch.set_warn_always, torch.is_warn_always_enabled()))
    torch.set_warn_always(True)
    fresh = KernelOperator(kgen.gelu.definition)
    if called:
        fresh(torch.randn(3, 5))
    with FakeTensorMode():
        assert fresh(torch.empty(3, 5)).shape == (3, 5)


def test_functionalize():
    x = torch.randn(3, 5)
    assert torch.equal(torch.func.functionalize(kgen.gelu)(x), kgen.gelu(x))


def test_a_compiled_vmap():
    x = torch.randn(6, 4, 16)
    got = torch.compile(torch.vmap(kgen.softmax), fullgraph=True, backend="eager")(x)
    torch.testing.assert_close(got, torch.softmax(x, -1))


def test_a_compiled_functorch_gradient_is_never_wrong():
    """torch cannot trace it through an operator: it says so."""
    x = torch.randn(4, 16)
    function = torch.compile(torch.func.grad(lambda x: kgen.softmax(x).square().sum()), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="functorch transforms"):
        function(x)


def test_selective_checkpoints_see_it():
    given = drawn(3)
    contexts = functools.partial(create_selective_checkpoint_contexts, [torch_op(kgen.layer_norm.training)])
    y = checkpoint(lambda *given: kgen.layer_norm(*given) * 2, *given, use_reentrant=False, context_fn=contexts)
    want = F.layer_norm(given[0], (16,), *given[1:]) * 2
    for x, z in zip(torch.autograd.grad(y.sum(), given), torch.autograd.grad(want.sum(), given)):
        torch.testing.assert_close(x, z, rtol=1e-4, atol=1e-5)


def test_a_process_that_compiles_first():
    """Before any ordinary call: a plan made by the compiled one is asked as any other."""
    code = (
        "import kgen, torch\n"
        "from torch.fx.experimental.proxy_tensor import make_fx\n"
        "x = torch.randn(3, 5)\n"
        "y = torch.compile(lambda x: kgen.gelu(x), fullgraph=True, backend='eager')(x)\n"
        "traced = make_fx(lambda x: kgen.gelu(x))(x)\n"
        "assert torch.equal(traced(-x), kgen.gelu(-x)) and torch.equal(y, kgen.gelu(x))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

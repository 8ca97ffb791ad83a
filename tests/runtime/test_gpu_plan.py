"""GpuPlan with a kernel that only notes its launches: pointers, numbers, workspaces and streams, on tensors of the CPU."""

import threading

import pytest
import torch

import kgen
from kgen.codegen.source import Integer, Launch, Pointer, Scalar, Source, TensorMap
from kgen.dsl.size import Dim
from kgen.dsl.target import sm
from kgen.dsl.types import f32, i32
from kgen.gpu import tensor_map
from kgen.gpu.kernel import PreparedLaunch
from kgen.runtime import plan as plans
from kgen.runtime.operands import problem_of
from kgen.runtime.plan import GpuPlan, pointwise_inputs

COUNT, SCRATCH, COUNTERS = 5, 48, 4


class Noted:
    """A kernel: `launches` holds the stream and the arguments of each launch, in the order of the parameters."""

    device = 0

    def __init__(self, source):
        self.source = source
        self.launches = []

    def prepare(self, arguments, grid, maps):
        self.prepared = PreparedLaunch(self, arguments, grid, maps)
        return self.prepared

    def submitter(self, geometry, parameters):
        def submit(stream):
            launch = self.prepared
            self.launches.append((stream, [launch._slots[launch._place[i]] for i in range(len(self.source.params))]))
            return 0

        return submit


def source_of(*params):
    return Source("", (), "", "", "noted", params, Launch((1, 1, 1), (32, 1, 1)), sm(80))


def pointer(name, access="in", size=0, dtype=f32):
    return Pointer(name, dtype, name, access, size)


@pytest.fixture
def streams(monkeypatch):
    """The current stream's handle, and the number of its capture."""
    state = {"stream": 7, "capture": 0}
    monkeypatch.setattr(plans, "_raw_stream", lambda index: state["stream"])
    monkeypatch.setattr(plans, "_capturing", lambda: state["capture"] != 0)
    monkeypatch.setattr(plans.driver, "capture_id", lambda stream: state["capture"])
    return state


def made(operator, tensors, *params):
    """A plan for a call, and its kernel."""
    problem = problem_of(operator.definition, tensors, ())
    kernel = Noted(source_of(*params))
    return GpuPlan(problem, tensors[0].device, kernel, kernel.source, {"n": COUNT}), kernel


def call(plan, *tensors, **scalars):
    return plan(tensors, [x.data_ptr() for x in tensors], scalars)


def test_pointers_follow_the_parameters_not_the_signature(streams):
    a, b, out = torch.ones(COUNT), torch.ones(COUNT), torch.empty(COUNT)
    integer = Integer("n", Dim("n") * 2, 64)
    plan, kernel = made(kgen.add, (a, b), integer, pointer("out", "out"), pointer("b"), pointer("a"))
    assert call(plan, a, b, out) is out
    assert kernel.launches == [(7, [2 * COUNT, out.data_ptr(), b.data_ptr(), a.data_ptr()])]
    streams["stream"] = 9
    result = call(plan, b, a)
    assert result.shape == (COUNT,)
    assert kernel.launches[1] == (9, [2 * COUNT, result.data_ptr(), a.data_ptr(), b.data_ptr()])


def test_an_input_may_be_passed_twice_or_not_at_all(streams):
    a, b = torch.ones(COUNT), torch.ones(COUNT)
    plan, kernel = made(kgen.add, (a, b), pointer("a"), Pointer("again", f32, "a", "in"), pointer("out", "out"))
    out = call(plan, a, b)
    assert kernel.launches == [(7, [a.data_ptr(), a.data_ptr(), out.data_ptr()])]


def test_numbers_are_set_and_set_back(streams):
    x = torch.ones(COUNT)
    plan, kernel = made(kgen.elu, (x,), pointer("x"), Scalar("alpha", f32), pointer("out", "out"))
    for scalars in ({}, {"alpha": 2.0}, {"alpha": -0.0}, {"alpha": 0.0}, {}, {}):
        call(plan, x, **scalars)
    bits = [arguments[1] for _, arguments in kernel.launches]
    assert bits == [0x3F800000, 0x40000000, 0x80000000, 0, 0x3F800000, 0x3F800000]


def workspaces():
    scratch = pointer("scratch", "scratch", Dim("n") * SCRATCH)
    return pointer("x"), scratch, pointer("counters", "counters", COUNTERS, i32), pointer("out", "out")


def test_workspaces_belong_to_a_stream(streams):
    x = torch.ones(COUNT)
    plan, kernel = made(kgen.relu, (x,), *workspaces())
    call(plan, x)
    call(plan, x)
    streams["stream"] = 8
    call(plan, x)
    streams["stream"] = 7
    call(plan, x)
    places = [tuple(arguments[1:3]) for _, arguments in kernel.launches]
    assert places[0] == places[1] == places[3]
    assert len(set(places[0] + places[2])) == 4
    scratch, counters = plan.workspaces.of(7)
    assert (scratch.nbytes, counters.nbytes) == (COUNT * SCRATCH * 4, COUNTERS * 4)
    assert not counters.any()


def test_a_graph_gets_workspaces_of_its_own(streams):
    x = torch.ones(COUNT)
    plan, kernel = made(kgen.relu, (x,), *workspaces())
    for capture in (0, 1, 1, 2, 0):
        streams["capture"] = capture
        call(plan, x)
    outside, first, again, second, after = (tuple(arguments[1:3]) for _, arguments in kernel.launches)
    assert first == again  # they follow each other
    assert outside == after
    assert not {*outside} & {*first, *second}


def test_tensor_maps_show_operands_and_workspaces(streams, monkeypatch):
    moves = []

    def encode(location, *arguments):
        moves.append(arguments[2])
        return 0

    monkeypatch.setattr(tensor_map, "functions", lambda: (encode, lambda location, address: moves.append(address)))
    x, out = torch.ones(64), torch.empty(64)

    def shown(operand, access):
        return TensorMap(f"map_{operand}", f32, operand, access, (Dim("n") * 4,), (), (4,))

    scratch = pointer("scratch", "scratch", Dim("n") * SCRATCH)
    plan, kernel = made(kgen.relu, (x,), shown("out", "out"), scratch, shown("scratch", "in"), shown("x", "in"))
    assert call(plan, x, out) is out
    (held,) = plan.workspaces.of(7)
    expected = [out.data_ptr(), held.data_ptr(), held.data_ptr(), x.data_ptr()]
    assert kernel.launches == [(7, expected)]
    assert moves == [expected[0], *expected[2:]]
    other = call(plan, x)
    assert kernel.launches[1] == (7, [other.data_ptr(), *expected[1:]])
    assert moves[3:] == [other.data_ptr()]


def test_threads_do_not_mix_their_arguments(streams):
    tensors = [torch.ones(COUNT) for _ in range(4)]
    plan, kernel = made(kgen.elu, tensors[:1], pointer("x"), Scalar("alpha", f32), pointer("out", "out"))
    expected = set()

    def work(i):
        out = torch.empty(COUNT)
        expected.add((tensors[i].data_ptr(), out.data_ptr()))
        for _ in range(200):
            call(plan, tensors[i], out, alpha=float(i))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alphas = {0: 0, 1: 0x3F800000, 2: 0x40000000, 3: 0x40400000}
    owner = {x.data_ptr(): i for i, x in enumerate(tensors)}
    assert len(kernel.launches) == 800
    for _, (x, alpha, out) in kernel.launches:
        assert (x, out) in expected
        assert alpha == alphas[owner[x]]


def test_inputs_that_a_product_reads_are_not_pointwise():
    graph = kgen.gemm.definition.graphs[0]
    assert pointwise_inputs(graph) == {"c"}
    assert pointwise_inputs(kgen.linear.definition.graphs[0]) == {"bias"}
    assert pointwise_inputs(kgen.add.definition.graphs[0]) == {"a", "b"}

"""GpuPlan with a kernel that only notes its launches: pointers, numbers, workspaces and streams, on tensors of the CPU."""

import sys
import threading
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

import kgen
from kgen.codegen.source import Integer, Launch, Pointer, Scalar, Source, TensorMap
from kgen.dsl.errors import DeviceError
from kgen.dsl.size import Dim
from kgen.dsl.target import sm
from kgen.dsl.types import f32, i32
from kgen.gpu import tensor_map, workspaces
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

    def prepare(self, arguments, grid, maps, early=True):
        self.prepared = PreparedLaunch(self, arguments, grid, maps)
        return self.prepared

    def submitter(self, geometry, parameters, early):
        def submit(stream):
            launch = self.prepared
            self.launches.append((stream, [launch._slots[launch._place[i]] for i in range(len(self.source.params))]))
            return 0

        return submit


def source_of(*params):
    return Source("", (), "", "", "noted", params, Launch((1, 1, 1), (32, 1, 1)), sm(80))


def pointer(name, access="in", size=0, dtype=f32):
    return Pointer(name, dtype, name, access, size)


class HostBuffer:
    """A DeviceBuffer of the host's memory."""

    full: ClassVar[list[int]] = []

    def __init__(self, size, device):
        self.size, self.device, self.memory = size, device, torch.zeros(size, dtype=torch.uint8)
        self.address = self.memory.data_ptr()

    @classmethod
    def zeroed(cls, size, device):
        if cls.full:
            raise DeviceError("out of memory", cls.full.pop())
        return cls(size, device)


@pytest.fixture
def streams(monkeypatch):
    """The current stream's handle, and the number of its capture."""
    state = {"stream": 7, "capture": 0}
    monkeypatch.setattr(plans, "_raw_stream", lambda index: state["stream"])
    monkeypatch.setattr(plans, "_capturing", lambda: state["capture"] != 0)
    monkeypatch.setattr(
        workspaces.driver, "capture", lambda stream: workspaces.driver.Capture(state["capture"], None, ())
    )
    monkeypatch.setattr(workspaces, "Ending", lambda graph: SimpleNamespace(reached=False))
    monkeypatch.setattr(workspaces, "DeviceBuffer", HostBuffer)
    for name, empty in (("_of_streams", {}), ("_of_captures", {}), ("_lent", [])):
        monkeypatch.setattr(workspaces, name, empty)
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


def with_workspaces():
    scratch = pointer("scratch", "scratch", Dim("n") * SCRATCH)
    return pointer("x"), scratch, pointer("counters", "counters", COUNTERS, i32), pointer("out", "out")


def test_workspaces_belong_to_a_stream(streams):
    x = torch.ones(COUNT)
    plan, kernel = made(kgen.relu, (x,), *with_workspaces())
    other, its_kernel = made(kgen.gelu, (x,), *with_workspaces())
    call(plan, x)
    call(plan, x)
    streams["stream"] = 8
    call(plan, x)
    streams["stream"] = 7
    call(plan, x)
    call(other, x)
    places = [tuple(arguments[1:3]) for _, arguments in (*kernel.launches, *its_kernel.launches)]
    assert places[0] == places[1] == places[3]
    assert places[4] == places[0]  # launches on a stream follow each other, whoever's
    assert len(set(places[0] + places[2])) == 4
    scratch, counters = (workspaces._of_streams[0, 7, use] for use in ("scratch", "counters"))
    assert (scratch.address, counters.address) == places[0]
    assert scratch.size >= COUNT * SCRATCH * 4
    assert counters.size >= COUNTERS * 4


def test_workspaces_of_a_kernel_lie_apart(streams):
    x = torch.ones(COUNT)
    parts = [pointer(f"part{i}", "scratch", Dim("n") * size) for i, size in enumerate((SCRATCH, 1, 2000))]
    counted = [pointer(f"counters{i}", "counters", COUNTERS, i32) for i in range(2)]
    plan, kernel = made(kgen.relu, (x,), pointer("x"), *parts, *counted, pointer("out", "out"))
    for capture in (0, 1):
        streams["capture"] = capture
        call(plan, x)
        first, second, third, one, two = kernel.launches[-1][1][1:6]
        assert [second - first, third - second, two - one] == [1024, 512, 512]
        assert not first % 64
    assert workspaces._of_streams[0, 7, "scratch"].size >= 1536 + COUNT * 2000 * 4


def test_a_graph_gets_workspaces_of_its_own(streams):
    x = torch.ones(COUNT)
    plan, kernel = made(kgen.relu, (x,), *with_workspaces())
    for capture in (0, 1, 1, 2, 0):
        streams["capture"] = capture
        call(plan, x)
    outside, first, again, second, after = (tuple(arguments[1:3]) for _, arguments in kernel.launches)
    assert first[1] == again[1]  # they follow each other
    assert outside == after
    assert len({outside[1], first[1], second[1]}) == 3
    assert not {outside[0]} & {first[0], again[0], second[0]}


def test_scratch_of_a_graph_is_given_back_after_the_launch(streams, monkeypatch):
    """So that the graph's memory serves other launches, and nothing but results outlives the call."""
    taken = []
    empty = torch.empty

    def noted(*arguments, **named):
        taken.append(empty(*arguments, **named))
        return taken[-1]

    x = torch.ones(COUNT)
    plan, _ = made(kgen.relu, (x,), *with_workspaces())
    streams["capture"] = 1
    monkeypatch.setattr(torch, "empty", noted)
    call(plan, x, torch.zeros(COUNT))
    (scratch,) = taken
    assert scratch.nbytes == plan.workspaces.scratch
    assert sys.getrefcount(scratch) == 3  # `scratch`, `taken` and the count's own


def test_memory_that_torch_holds_is_given_back_for_a_workspace(streams, monkeypatch):
    emptied = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    x = torch.ones(COUNT)
    plan, kernel = made(kgen.relu, (x,), *with_workspaces())
    HostBuffer.full[:] = [2]
    call(plan, x)
    assert (len(emptied), len(kernel.launches)) == (1, 1)
    workspaces._of_streams.clear()
    for codes, count in (([2, 2], 2), ([700], 2)):
        HostBuffer.full[:] = codes
        with pytest.raises(DeviceError):
            call(plan, x)
        assert len(emptied) == count
    HostBuffer.full.clear()


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
    held = workspaces._of_streams[0, 7, "scratch"].address
    expected = [out.data_ptr(), held, held, x.data_ptr()]
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

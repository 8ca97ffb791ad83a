"""Launches of the extension for warm calls, with functions of ctypes in the place of the driver's."""

from __future__ import annotations

import ctypes
import itertools
import struct
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import kgen
from kgen.dsl.program import program_of
from kgen.gpu.kernel import RawLaunch
from kgen.runtime import autograd, emulated_plan, native, plan, registry
from kgen.runtime.operands import problem_of
from kgen.runtime.operator import KernelOperator

pytestmark = pytest.mark.skipif(
    not (Path(sysconfig.get_path("include")) / "Python.h").is_file(), reason="needs Python's headers"
)


@pytest.fixture(autouse=True)
def extension(monkeypatch):
    monkeypatch.setattr(registry, "extension", None)  # as it is after the test
    registry.extension = native.load()
    return registry.extension


class Config(ctypes.Structure):
    _fields_ = [
        *((f"grid_{axis}", ctypes.c_uint) for axis in "xyz"),
        *((f"block_{axis}", ctypes.c_uint) for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    ]


class Driver:
    """Takes launches of a kernel of addresses, a float and a long; its first address is a tensor map's."""

    def __init__(self, addressed=4):
        self.launches, self.shown, self.refuse, self.addressed = [], [], 0, addressed
        self.captures, self.attributes = False, []
        self.slots = (ctypes.c_uint64 * (addressed + 2))()
        self.map = (ctypes.c_char * 128)()
        self.config = Config(7, 1, 1, 32, 1, 1, 0)
        places = [ctypes.addressof(self.slots) + 8 * i for i in range(addressed + 2)]
        self.addresses = (ctypes.c_uint64 * len(places))(*places)
        pointer = ctypes.c_void_p
        self.launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Config), pointer, pointer, pointer)(self._launch)
        self.replace = ctypes.CFUNCTYPE(ctypes.c_int, pointer, ctypes.c_uint64)(self._replace)
        self.capturing = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(ctypes.c_int))(self._capturing)

    def _launch(self, config, function, parameters, extra):
        assert (function, parameters, extra) == (5, ctypes.addressof(self.addresses), None)
        assert (config[0].grid_x, config[0].block_x) == (7, 32)
        self.attributes.append(config[0].attribute_count)
        number, count = self.slots[self.addressed :]
        number = struct.unpack("<f", struct.pack("<Q", number)[:4])[0]
        self.launches.append((config[0].stream, [*self.slots[: self.addressed]], number, ctypes.c_int64(count).value))
        return self.refuse

    def _replace(self, tensor_map, address):
        self.shown.append(address)
        return 0 if tensor_map == ctypes.addressof(self.map) else 1

    def _capturing(self, stream, status):
        status[0] = self.captures
        return 0

    @property
    def raw(self):
        functions = ("launch", "replace", "capturing")
        address = {name: ctypes.cast(getattr(self, name), ctypes.c_void_p).value for name in functions}
        return RawLaunch(
            ctypes.addressof(self.config), 5, ctypes.addressof(self.addresses), ctypes.addressof(self.slots),
            ((0, ctypes.addressof(self.map), 64),), **address, overlaps=None, kept=self,
        )  # fmt: skip


@pytest.fixture
def driver():
    return Driver()


@pytest.fixture
def calls(extension, driver):
    """Calls of x and y with one output, whose plan raises its arguments."""
    launch = native.launch(
        extension, driver.raw, torch.device("cpu"), [((2, 3), torch.float16)], (2, 0, 1, 3), (24, 24, 12),
        [("factor", 4, "f", False, 0x40000000), ("shift", 5, "q", True, 0)], lambda index: 100 + index, 1,
        lambda stream: ([4096 + stream], None),
    )  # fmt: skip

    def plan(operands, addresses, named):
        raise LookupError(operands, addresses, named)

    made = extension.Calls(2, None)
    for x, out in itertools.product(kinds(), (None, torch.empty(2, 3, dtype=torch.float16))):
        made.keep((x, x), out, plan, launch)
    return made


def kinds():
    return torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.float64)[:, :]


def test_a_launch_has_its_addresses_numbers_and_stream(calls, driver):
    x, y = torch.zeros(2, 3), torch.zeros(2, 3)
    made = calls((x, y), None, {"shift": -7})
    assert (made.shape, made.dtype, made.is_contiguous()) == ((2, 3), torch.float16, True)
    out = torch.empty(2, 3, dtype=torch.float16)
    assert calls((x, y), out, {"shift": 2**40, "factor": 0.25}) is out
    assert driver.launches == [
        (101, [made.data_ptr(), x.data_ptr(), y.data_ptr(), 4197], 2.0, -7),
        (101, [out.data_ptr(), x.data_ptr(), y.data_ptr(), 4197], 0.25, 2**40),
    ]
    assert driver.shown == [made.data_ptr(), out.data_ptr()]
    calls((x, y), out, {"shift": 0})
    assert len(driver.shown) == 2  # it shows that one already


@pytest.mark.parametrize(
    "named",
    [{}, {"shift": 1.5}, {"shift": 2**63}, {"shift": True}, {"shift": 1, "factor": 1}, {"shift": 1, "factor": 1e39},
     {"shift": 1, "other": 2}],
)  # fmt: skip
def test_numbers_that_it_does_not_know_are_pythons(calls, driver, named):
    x = torch.zeros(2, 3)
    with pytest.raises(LookupError) as caught:
        calls((x, x), None, named)
    assert caught.value.args == ((x, x), [x.data_ptr()] * 2, named)
    assert driver.launches == []


def test_what_the_driver_refuses_is_pythons(calls, driver):
    driver.refuse = 400
    with pytest.raises(LookupError):
        calls((torch.zeros(2, 3),) * 2, None, {"shift": 1})


def test_captured_launches_ask_whether_they_may_start_early(extension, driver):
    driver.config.attribute_count, x, asked = 2, torch.zeros(4), []

    def overlaps(stream):
        asked.append(stream)
        if len(asked) == 3:
            raise LookupError
        return len(asked) == 2

    raw = RawLaunch(**{**vars(driver.raw), "maps": (), "overlaps": overlaps})
    launch = native.launch(
        extension, raw, torch.device("cpu"), [((4,), torch.float32)], (1, 0, 0), (16, 16), [], lambda index: 8, 0, None
    )
    made = extension.Calls(1, None)
    made.keep((x,), None, None, launch)
    for captures in (False, True, True, False):
        driver.captures = captures
        made((x,), None, {})
    assert (driver.attributes, asked) == ([2, 1, 2, 2], [8, 8])
    driver.captures = True
    with pytest.raises(LookupError):
        made((x,), None, {})


def test_shared_memory_is_pythons_until_it_has_found_it_sound(extension, driver):
    memory, found = torch.zeros(4, dtype=torch.float16), []
    launch = native.launch(
        extension, RawLaunch(**{**vars(driver.raw), "maps": ()}), torch.device("cpu"), [((4,), torch.float16)], (1, 0, 0),
        (8, 8), [], lambda index: 0, 0, None,
    )  # fmt: skip
    made = extension.Calls(1, None)
    made.keep((memory,), memory, lambda *given: found.append(given), launch)
    for _ in range(3):
        made((memory,), memory, {})
    assert (len(found), len(driver.launches)) == (1, 2)


def test_a_call_within_a_call_is_pythons(extension, driver):
    """As of another thread that comes in between."""
    x, inner = torch.zeros(4), []

    def stream_of(index):
        if not inner:
            inner.append(made((x,), None, {}))
        return 0

    launch = native.launch(
        extension, RawLaunch(**{**vars(driver.raw), "maps": ()}), torch.device("cpu"), [((4,), torch.float32)], (1, 0, 0),
        (16, 16), [], stream_of, 0, None,
    )  # fmt: skip
    made = extension.Calls(1, None)
    made.keep((x,), None, lambda *given: "python", launch)
    assert isinstance(made((x,), None, {}), torch.Tensor)
    assert inner == ["python"]
    assert len(driver.launches) == 1


def test_a_training_step_of_launches(extension, monkeypatch):
    """What is kept and what the gradients are made of goes from launch to launch."""
    drivers = {}

    def launch(self, module):
        if self not in drivers:
            count = len(self.problem.operands)
            driver = drivers[self] = Driver(count)
            outputs = [(shape, dtype) for shape, dtype, _ in self.outputs]
            self.launch = native.launch(
                module, RawLaunch(**{**vars(driver.raw), "maps": ()}), torch.device("cpu"), outputs, range(count), self.extents,
                [], lambda index: 0, 0, None,
            )  # fmt: skip
        return self.launch

    monkeypatch.setattr(emulated_plan.EmulatedPlan, "native", launch)
    operator, seed = KernelOperator(kgen.layer_norm.definition), torch.randn(2, 3, 8)
    inputs = [torch.nn.Parameter(torch.randn(shape)) for shape in ((2, 3, 8), (8,), (8,))]

    def step():
        y = operator(*inputs)
        return y, *torch.autograd.grad(y, inputs, seed)

    for _ in range(3):
        step()
    forward, backward = drivers.values()
    forward.launches.clear(), backward.launches.clear()
    monkeypatch.setattr(autograd.Step, "gradients", lambda *given: pytest.fail("by Python"))
    y, *grads = step()
    (given,), (taken,) = ([addresses for _, addresses, _, _ in driver.launches] for driver in (forward, backward))
    at = {name: x.data_ptr() for name, x in zip("xwby", (*inputs, y))}
    assert given[:4] == [at[name] for name in "xwby"]
    assert taken[-3:] == [grad.data_ptr() for grad in grads]
    kept = {seed.data_ptr(), at["x"], at["w"], *given[4:]}
    assert kept >= set(taken[:-3])
    assert [grad.shape for grad in grads] == [x.shape for x in inputs]


@pytest.fixture
def several(extension, monkeypatch):
    """group_norm, whose plan of two launches notes what Python makes of it; with the drivers of its launches."""
    given = torch.zeros(2, 2, 3, 5), torch.ones(2, 3, 1), torch.ones(2, 3, 1)
    program = program_of(problem_of(kgen.group_norm.definition, given, ()))
    drivers, parts = [], []
    for problem in program.launches:
        count = len(problem.operands)
        drivers.append(Driver(count))
        numbers = [("eps", count, "f", False, 0x40000000)] if problem.graph.scalars else []
        launch = native.launch(
            extension, RawLaunch(**{**vars(drivers[-1].raw), "maps": ()}), torch.device("cpu"), [], range(count), [], numbers,
            lambda index: 0, 0, None,
        )  # fmt: skip
        parts.append(SimpleNamespace(problem=problem, index=0, native=lambda module, launch=launch: launch))
    monkeypatch.setattr(plan, "_raw_stream", lambda index: 7)
    whole = plan.ProgramPlan(program, torch.device("cpu"), parts)
    monkeypatch.setattr(whole.workspaces, "of", lambda stream: ([1000 + stream, 2000 + stream], None))
    made = extension.Calls(3, None)
    made.keep(given, None, lambda *given: "python", whole.native(extension))
    return made, given, drivers, whole


def test_launches_one_after_another(several):
    calls, given, (sums, norm), _ = several
    result = calls(given, None, {"eps": 0.5})
    x, w, b = (t.data_ptr() for t in given)
    assert sums.launches == [(7, [x, 1007, 2007], 0.0, 0)]
    assert norm.launches == [(7, [x, w, b, 1007, 2007, result.data_ptr()], 0.5, 0)]
    calls(given, None, {})
    assert norm.launches[-1][2] == 2.0
    assert calls(given, None, {"other": 1.0}) == "python"


def test_launches_that_are_refused_or_in_use_are_pythons(several):
    calls, given, (sums, norm), whole = several
    with whole._launching:
        assert calls(given, None, {}) == "python"
    assert not sums.launches
    norm.refuse = 400
    assert calls(given, None, {}) == "python"
    norm.refuse = 0
    assert isinstance(calls(given, None, {}), torch.Tensor)
    assert not whole._launching.locked()


def test_launches_of_which_one_is_pythons_are_all_pythons(several, extension):
    *_, whole = several
    for found in (None, NotImplemented):
        whole._native, (first, *_), *_ = None, whole.steps
        first[0].native = lambda module, found=found: found
        assert whole.native(extension) is found

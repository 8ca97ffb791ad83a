"""Plan: all that one kind of call needs, worked out once. A warm call writes its addresses into a prepared launch.

Nothing on the way of a warm call waits for the GPU or allocates, but for the outputs, through torch. It can be captured in a CUDA
graph, and so can a first call: what that loads and allocates is part of no graph.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kgen.codegen.source import Integer, Pointer, Scalar, Source, TensorMap
from kgen.dsl.errors import DeviceError
from kgen.dsl.expr import walk
from kgen.dsl.family import has_kernel
from kgen.dsl.operator import Graph
from kgen.dsl.ops import POINTWISE
from kgen.dsl.problem import Problem
from kgen.dsl.program import Program
from kgen.dsl.types import f32, f64, i32, i64
from kgen.gpu import workspaces as memory
from kgen.gpu.kernel import Kernel, encode
from kgen.numerics.dtypes import torch_dtype
from kgen.runtime import native
from kgen.runtime.operands import check_shared_memory, check_tensor, scalar_values
from kgen.runtime.overlap import extent

if TYPE_CHECKING:
    from kgen.runtime.dispatch import Choice

# A call's fixed cost counts in tenths of microseconds: this is how torch's own wrappers get at them.
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_capturing: Any = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)
_grad_enabled = torch.is_grad_enabled
_increment_version = torch.autograd.graph.increment_version

#: Every workspace begins at a multiple of so many bytes, as memory of torch does.
_ALIGN = 512
#: CUDA_ERROR_OUT_OF_MEMORY
_OUT_OF_MEMORY = 2
#: The kinds of numbers that the extension for warm calls writes, as struct has them.
_KINDS = {f32: "f", f64: "d", i32: "i", i64: "q"}


@functools.lru_cache(maxsize=1024)
def pointwise_inputs(graph: Graph) -> frozenset[str]:
    """The inputs of which an element of the output needs just the element at its own index."""
    gathered = {
        leaf.attr
        for node in graph.nodes
        if node.args and node.op not in POINTWISE
        for leaf in walk(node.args)
        if leaf.op == "input"
    }
    return frozenset(spec.name for spec in graph.inputs) - gathered


class Plan:
    """The calls of one operator with tensors of one kind: same shapes, strides, dtypes, device and alignment.

    This class allocates and checks; `run` of a subclass computes. Used as it is, there is nothing to compute.
    """

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self.problem, self.device = problem, device
        self.inputs = len(problem.inputs)
        self.single = len(problem.outputs) == 1
        dtypes = [torch_dtype(o.dtype) for o in problem.operands]
        #: Shape and dtype; and an input of that dtype, if there is one: its `new_empty` is what allocates fastest.
        self.outputs = [
            (o.shape, dtype, dtypes.index(dtype) if dtype in dtypes[: self.inputs] else None)
            for o, dtype in zip(problem.outputs, dtypes[self.inputs :])
        ]
        # Of several launches a later one may read what an earlier one's output lies on.
        self.in_place = pointwise_inputs(problem.graph) if has_kernel(problem.graph) else frozenset()
        self.extents = [extent(o.shape, o.strides, o.dtype.bytes) for o in problem.operands]
        self._checked: list[int] = []  # the addresses found sound last: loops come back to the same ones
        # What a call's key does not show: a lazily negated view, which has strides of its own, and which of the devices
        # without an index it is on.
        self.suspects = [i for i, o in enumerate(problem.operands) if o.layout != "row" or device.type == "cpu"]
        required = any(s.default is None for s in problem.graph.scalars)
        self.defaults = None if required else scalar_values(problem.graph, {})
        #: The config of each launch, and how it was found.
        self.choices: Sequence[Choice] = ()
        #: Whether torch.autocast may cast these operands.
        self.castable = False
        #: What takes calls that want a gradient, or whose tensors have no memory.
        self.aside: Callable[[Sequence[Tensor], Mapping[str, Any]], Any] | None = None

    def shorten(self) -> None:
        """Has results that are declared with a last axis of 1 made without it, as an input was given."""
        ones = [spec.shape.dims[-1:] == (1,) for spec in self.problem.graph.outputs]
        self.outputs = [
            (shape[: len(shape) - one], dtype, like) for one, (shape, dtype, like) in zip(ones, self.outputs)
        ]

    def __call__(self, operands: Sequence[Tensor], addresses: list[int], scalars: Mapping[str, Any]) -> Any:
        """Computes the operator. `operands` are the inputs, and the outputs where they were given; `addresses` are theirs."""
        if _grad_enabled():
            for x in operands:
                if x.requires_grad and self.aside is not None:
                    return self.aside(operands, scalars)
        for i in self.suspects:
            if i < len(operands) and (operands[i].is_neg() or operands[i].device != self.device):
                if operands[i].is_meta and self.aside is not None:
                    return self.aside(operands, scalars)
                check_tensor(f"{self.problem.graph.name}: {self.problem.operands[i].name}", operands[i])
        results = operands[self.inputs :]
        if results:
            if addresses != self._checked:
                self._check_memory(addresses)
            for y in results:
                _increment_version(y)  # autograd may have saved it
        else:
            results = [
                torch.empty(shape, dtype=dtype, device=self.device) if like is None else operands[like].new_empty(shape)
                for shape, dtype, like in self.outputs
            ]
            for y in results:
                addresses.append(y.data_ptr())
        values = self.defaults
        if scalars or values is None:
            values = scalar_values(self.problem.graph, scalars)
        self.run(operands, results, addresses, values)
        return results[0] if self.single else tuple(results)

    def run(
        self, operands: Sequence[Tensor], results: Sequence[Tensor], addresses: list[int], values: tuple[float, ...]
    ) -> None:
        """Computes `results`. `values` are those of the operator's numbers."""

    def native(self, module: Any) -> Any:
        """Its launch for the extension of kgen.runtime.native: None where nothing runs on a GPU, NotImplemented before it has
        run.
        """
        return None

    def _check_memory(self, addresses: list[int]) -> None:
        """Whether the outputs may be written: a glance at the ranges of addresses, an exact look where they meet."""
        for i in range(self.inputs, len(addresses)):
            start, end = addresses[i], addresses[i] + self.extents[i]
            for at, length in zip(addresses[:i], self.extents):
                if at < end and start < at + length:
                    check_shared_memory(self.problem, addresses, self.in_place)
        self._checked = addresses.copy()


class Workspaces:
    """Memory beside the operands of a call: of so many bytes each, counters or not. `use`: who on a stream shares it."""

    def __init__(
        self, device: torch.device, index: int, needs: Sequence[tuple[int, bool]], use: str = "scratch"
    ) -> None:
        self.device, self.index, self.use = device, index, use
        self.scratch = self.counters = 0
        #: Whether they are counters, and their offset.
        self.places: list[tuple[bool, int]] = []
        for size, counters in needs:
            self.places.append((counters, self.counters if counters else self.scratch))
            whole = -(-max(size, 1) // _ALIGN) * _ALIGN
            self.counters, self.scratch = self.counters + whole * counters, self.scratch + whole * (not counters)

    def of(self, stream: int) -> tuple[list[int], Tensor | None]:
        """Their addresses for a launch on a stream, and what has to live until it is made.

        A captured launch takes scratch from the graph's own memory, which is free for others after it; of counters see
        `kgen.gpu.workspaces`.
        """
        held, scratch, counters = None, 0, 0
        if not _capturing():
            scratch = self._of_stream(stream, self.use, self.scratch) if self.scratch else 0
            counters = self._of_stream(stream, "counters", self.counters) if self.counters else 0
        else:
            if self.scratch:
                held = torch.empty(self.scratch, dtype=torch.uint8, device=self.device)
                scratch = held.data_ptr()
            counters = memory.of_graph(self.index, stream, self.counters) if self.counters else 0
        return [offset + (counters if counted else scratch) for counted, offset in self.places], held

    def _of_stream(self, stream: int, use: str, size: int) -> int:
        try:
            return memory.of_stream(self.index, stream, use, size)
        except DeviceError as error:
            if error.code != _OUT_OF_MEMORY:
                raise
        torch.cuda.empty_cache()  # what torch holds and does not use
        return memory.of_stream(self.index, stream, use, size)


class GpuPlan(Plan):
    """A kernel on a GPU, launched on torch's current stream. Threads may share it."""

    def __init__(
        self,
        problem: Problem,
        device: torch.device,
        kernel: Kernel,
        source: Source,
        symbols: Mapping[str, int],
    ) -> None:
        super().__init__(problem, device)
        self.index = kernel.device
        bound = source.bind(symbols)
        needs = [(need.bytes, need.zeroed) for need in bound.workspaces]
        self.workspaces = Workspaces(device, self.index, needs) if needs else None
        # The addresses of a call: those of the operands, then those of the workspaces.
        names = [o.name for o in problem.operands]
        places = {need.index: len(names) + i for i, need in enumerate(bound.workspaces)}
        scratch = {source.params[index].name: place for index, place in places.items()}
        order = [
            places[i] if i in places else names.index(p.operand) if p.operand in names else scratch[p.operand]
            for i, p in enumerate(source.params)
            if isinstance(p, (Pointer, TensorMap))
        ]
        self.order = None if order == list(range(len(names) + len(places))) else order
        scalars = [s.name for s in problem.graph.scalars]
        self.scalars = [(i, scalars.index(p.name)) for i, p in enumerate(source.params) if isinstance(p, Scalar)]
        self.current = self.defaults or (0,) * len(scalars)
        arguments: list[float] = [0] * len(source.params)
        for i, param in enumerate(source.params):
            if isinstance(param, Integer):
                arguments[i] = bound.integers[i]
        for i, place in self.scalars:
            arguments[i] = self.current[place]
        self.launch = kernel.prepare(arguments, bound.grid, bound.maps)
        self._lock = threading.Lock()
        self._again = functools.partial(kernel.prepare, arguments, bound.grid, bound.maps)
        self._params = source.params
        self._native: Any = None

    def native(self, module: Any) -> Any:
        """As of every plan, in memory of its own; None also where a number is of a kind that the extension has not."""
        kinds = [_KINDS.get(self._params[i].dtype) for i, _ in self.scalars]  # type: ignore[union-attr]
        if self._native is None and all(kinds):
            launch, specs = self._again(), self.problem.graph.scalars
            raw = launch.raw(self.launch)
            if raw is None:
                return NotImplemented
            numbers = []
            for kind, (i, place) in zip(kinds, self.scalars):
                default = specs[place].default
                bits = 0 if default is None else encode(self._params[i], default)
                numbers.append((specs[place].name, launch.slot(i), str(kind), default is None, bits))
            addressed = sum(isinstance(p, (Pointer, TensorMap)) for p in self._params)
            self._native = native.launch(
                module,
                raw,
                self.device,
                [(shape, dtype) for shape, dtype, _ in self.outputs],
                range(addressed) if self.order is None else self.order,
                self.extents,
                numbers,
                _raw_stream,
                self.index,
                None if self.workspaces is None else self.workspaces.of,
            )
        return self._native

    def run(
        self, operands: Sequence[Tensor], results: Sequence[Tensor], addresses: list[int], values: tuple[float, ...]
    ) -> None:
        stream = _raw_stream(self.index)
        if self.workspaces is not None:
            places, _held = self.workspaces.of(stream)
            addresses.extend(places)
        if self.order is not None:
            addresses = [addresses[i] for i in self.order]
        with self._lock:
            if values is not self.current:
                for i, place in self.scalars:
                    self.launch.set(i, values[place])
                self.current = values
            self.launch(*addresses, stream=stream)


class ProgramPlan(Plan):
    """Several launches in order on a GPU, over workspaces between them. Threads may share it."""

    #: All programs on a stream have the same workspaces: the launches of a call stay together.
    _launching = threading.Lock()

    def __init__(self, program: Program, device: torch.device, plans: Sequence[GpuPlan]) -> None:
        super().__init__(program.problem, device)
        self.index = plans[0].index
        needs = [(o.stored_bytes, False) for o in program.workspaces]
        self.workspaces = Workspaces(device, self.index, needs, "values of programs") if needs else None
        operands = [o.name for o in (*program.problem.operands, *program.workspaces)]
        scalars = [s.name for s in program.problem.graph.scalars]
        #: Of each launch its plan, the places of its operands, and of its numbers.
        self.steps = [
            (
                plan,
                [operands.index(o.name) for o in plan.problem.operands],
                [scalars.index(s.name) for s in plan.problem.graph.scalars],
            )
            for plan in plans
        ]
        self._native: Any = None

    def native(self, module: Any) -> Any:
        """As of every plan: None also where one of its launches has none."""
        if self._native is None:
            launches = [plan.native(module) for plan, _, _ in self.steps]
            if None in launches or NotImplemented in launches:
                return None if None in launches else NotImplemented
            self._native = native.several(
                module,
                [(launch, places) for launch, (_, places, _) in zip(launches, self.steps)],
                self.device,
                [(shape, dtype) for shape, dtype, _ in self.outputs],
                self.extents,
                _raw_stream,
                self.index,
                None if self.workspaces is None else self.workspaces.of,
                self._launching,
            )
        return self._native

    def run(
        self, operands: Sequence[Tensor], results: Sequence[Tensor], addresses: list[int], values: tuple[float, ...]
    ) -> None:
        with self._launching:
            places = addresses
            if self.workspaces is not None:
                own, _held = self.workspaces.of(_raw_stream(self.index))
                places = [*addresses, *own]
            for plan, taken, numbers in self.steps:
                plan.run((), (), [places[i] for i in taken], tuple(values[i] for i in numbers))

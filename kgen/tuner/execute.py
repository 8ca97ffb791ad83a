"""Runner: a Source's launch on tensors, or those of a program; the same for a kernel on a GPU and for one on the emulator."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Union

from kgen import emulator
from kgen.codegen.source import Pointer, Scalar, Source, TensorMap
from kgen.dsl.errors import ArgumentError
from kgen.emulator import Buffer, EmulatedKernel, Options
from kgen.gpu import driver
from kgen.gpu.kernel import Kernel, PreparedLaunch
from kgen.numerics.operands import extent, workspace

if TYPE_CHECKING:
    from torch import Tensor

    from kgen.dsl.program import Program
    from kgen.emulator import Report

AnyKernel = Union[Kernel, EmulatedKernel]

#: When asynchronous copies land, run after run: the two extremes first.
_MODES: tuple[Literal["eager", "late", "random"], ...] = ("late", "eager", "random")


class Runner:
    """A kernel with its launch for one problem.

    `symbols` are those of `Schedule.symbols(problem)` and SM_COUNT. Workspaces are allocated at the first run, beside the
    operands. `options` are the emulator's, which runs `blocks` of the grid alone where they are given; `report` is what it
    said about the last run.
    """

    def __init__(
        self,
        kernel: AnyKernel,
        source: Source,
        symbols: Mapping[str, int],
        options: Options | None = None,
        blocks: range | None = None,
    ) -> None:
        self.kernel = kernel
        self.source = source
        self.bound = source.bind(symbols)
        self.options = options or Options()
        self.blocks = blocks
        self.report: Report | None = None
        self._workspaces: dict[int, Tensor] = {}
        self._modes = itertools.cycle(_MODES)
        #: The workspaces by name: what a tensor map shows when it is no operand.
        self._scratch = {source.params[need.index].name: need.index for need in self.bound.workspaces}

    @property
    def emulated(self) -> bool:
        """Whether the kernel runs on the CPU."""
        return not isinstance(self.kernel, Kernel)

    def vary(self) -> None:
        """Has the emulator order warps, and let asynchronous copies land, in another way from here on."""
        if self.emulated:
            self.options = replace(self.options, seed=self.options.seed + 1, async_mode=next(self._modes))

    def run(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, float], stream: int = 0) -> None:
        """Launches on tensors by operand name; on a GPU it does not wait. EmulatorError, DeviceError where it fails."""
        self._allocate(tensors)
        if isinstance(self.kernel, Kernel):
            self.prepare(tensors, scalars)(stream=stream)
        else:
            buffers = self._buffers(tensors, scalars)
            self.report = self.kernel.launch(buffers, self.bound.grid, options=self.options, blocks=self.blocks)

    def prepare(
        self, tensors: Mapping[str, Tensor], scalars: Mapping[str, float], early: bool = True
    ) -> PreparedLaunch:
        """The launch on a GPU with these tensors, to be repeated as `launch(stream=...)`. The caller keeps them alive.

        Without `early` it does not start before the kernel before it has ended.
        """
        assert isinstance(self.kernel, Kernel), "the emulator has no prepared launches"
        self._allocate(tensors)
        arguments: list[int | float] = []
        for index, param in enumerate(self.source.params):
            if isinstance(param, (Pointer, TensorMap)):
                arguments.append(self._tensor(index, param, tensors).data_ptr())
            elif isinstance(param, Scalar):
                arguments.append(_scalar(param, scalars))
            else:
                arguments.append(self.bound.integers[index])
        return self.kernel.prepare(arguments, self.bound.grid, self.bound.maps, early)

    def synchronize(self) -> None:
        """Waits for the GPU. A kernel's fault comes up here, as DeviceError with its code."""
        if isinstance(self.kernel, Kernel):
            with driver.current(self.kernel.device):
                driver.check(driver.api().cuCtxSynchronize(), f"running {self.source.entry}")

    def close(self) -> None:
        """Unloads the kernel from its GPU and frees the workspaces."""
        self._workspaces.clear()
        if isinstance(self.kernel, Kernel):
            self.kernel.close()

    def _allocate(self, tensors: Mapping[str, Tensor]) -> None:
        if len(self._workspaces) < len(self.bound.workspaces):
            device = next(iter(tensors.values())).device
            for need in self.bound.workspaces:
                self._workspaces[need.index] = workspace(device, need.bytes, need.zeroed)

    def _tensor(self, index: int, param: Pointer | TensorMap, tensors: Mapping[str, Tensor]) -> Tensor:
        if index in self._workspaces:
            return self._workspaces[index]
        if param.operand in self._scratch and param.operand not in tensors:
            return self._workspaces[self._scratch[param.operand]]
        if param.operand not in tensors:
            raise ArgumentError(
                f"{self.source.entry} needs the operand {param.operand}; got {', '.join(tensors) or 'none'}"
            )
        return tensors[param.operand]

    def _buffers(
        self, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]
    ) -> list[int | float | Buffer | emulator.Map]:
        """The arguments as the emulator takes them: addresses with the memory that may be touched there."""
        uses: dict[int, set[str]] = {}
        for index, param in enumerate(self.source.params):
            if isinstance(param, Pointer) or (isinstance(param, TensorMap) and param.operand in tensors):
                uses.setdefault(self._tensor(index, param, tensors).data_ptr(), set()).add(param.access)
        arguments: list[int | float | Buffer | emulator.Map] = []
        for index, param in enumerate(self.source.params):
            if isinstance(param, Scalar):
                arguments.append(_scalar(param, scalars))
            elif isinstance(param, (Pointer, TensorMap)):
                tensor = self._tensor(index, param, tensors)
                # An output may be one of the inputs: then its memory is both written and known.
                access = uses[tensor.data_ptr()]
                size = extent(tuple(tensor.shape), tensor.stride()) * tensor.element_size()
                known = bool(access & {"in", "counters"})
                buffer = Buffer(tensor.data_ptr(), size, writable=access != {"in"}, initialized=known)
                shown = self.bound.maps.get(index)
                arguments.append(emulator.Map(buffer, shown.sizes, shown.strides) if shown else buffer)
            else:
                arguments.append(self.bound.integers[index])
        return arguments


class ProgramRunner:
    """The runners of a program's launches, one after another, over workspaces that are allocated at the first run."""

    def __init__(self, program: Program, runners: Sequence[Runner]) -> None:
        self.program, self.runners = program, runners
        self._workspaces: dict[str, Tensor] = {}

    @property
    def emulated(self) -> bool:
        """Whether the kernels run on the CPU."""
        return self.runners[0].emulated

    @property
    def options(self) -> Options:
        """The emulator's, of all launches."""
        return self.runners[0].options

    @options.setter
    def options(self, options: Options) -> None:
        for runner in self.runners:
            runner.options = options

    def vary(self) -> None:
        """As `Runner.vary`, of all launches."""
        for runner in self.runners:
            runner.vary()

    def run(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, float], stream: int = 0) -> None:
        """As `Runner.run`, of all launches in order."""
        if not self._workspaces:
            device = next(iter(tensors.values())).device
            self._workspaces = {
                o.name: workspace(device, o.stored_bytes, zeroed=False) for o in self.program.workspaces
            }
        for runner in self.runners:
            runner.run({**tensors, **self._workspaces}, scalars, stream)

    def synchronize(self) -> None:
        """Waits for the GPU, as `Runner.synchronize`."""
        self.runners[-1].synchronize()

    def close(self) -> None:
        """Unloads the kernels and frees the workspaces."""
        self._workspaces.clear()
        for runner in self.runners:
            runner.close()


AnyRunner = Union[Runner, ProgramRunner]


def _scalar(param: Scalar, scalars: Mapping[str, float]) -> int | float:
    if param.name not in scalars:
        raise ArgumentError(f"a value for {param.name} is needed; got {', '.join(scalars) or 'none'}")
    return scalars[param.name]

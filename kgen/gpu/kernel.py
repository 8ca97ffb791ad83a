"""Kernel: a Binary loaded on a GPU, and launches of it that are prepared once and repeated cheaply.

A launch through the bindings wants one array with the address of each parameter. PreparedLaunch keeps that array and
the parameters, eight bytes for each, in memory of its own. There the addresses come first, of pointers and of what
tensor maps show, whatever their place in the parameter list, so that a repeated launch writes them in one step and calls
the driver. A tensor map is renewed only when its address has changed.
The emulator's kernel has the same `launch`.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Union

from kgen.codegen.source import Extent, Integer, Param, Pointer, Source, TensorMap
from kgen.dsl.errors import ArgumentError, DeviceError
from kgen.gpu import driver, overlap
from kgen.gpu.binary import Binary
from kgen.gpu.tensor_map import REPLACE, EncodedMap

Number = Union[int, float]

#: Dynamic shared memory that a kernel may have without asking.
_SHARED_FREE = 48 * 1024
#: Blocks of a cluster that every GPU with clusters can place.
_PORTABLE_CLUSTER = 8
_GRID_LIMITS = (2**31 - 1, 65535, 65535)


def encode(param: Param, value: Number) -> int:
    """A parameter's bytes as the unsigned 64-bit number that holds them in its low end. Raises ArgumentError."""
    if isinstance(param, (Pointer, TensorMap)):
        kind, width = "unsigned", 64
    elif isinstance(param, Integer):
        kind, width = "signed", param.bits
    else:
        kind, width = ("float" if param.dtype.is_float else "signed"), param.dtype.bits
    try:
        if kind == "float":
            data = struct.pack("<d" if width == 64 else "<f", value)
        else:
            data = operator.index(value).to_bytes(width // 8, "little", signed=kind == "signed")  # type: ignore[arg-type]
    except (OverflowError, TypeError, struct.error) as error:
        raise ArgumentError(f"parameter {param.name} takes a {kind} {width}-bit number, got {value!r}") from error
    return int.from_bytes(data, "little")


@dataclass(frozen=True)
class RawLaunch:
    """What a prepared launch is in memory, by addresses: the driver's CUlaunchConfig, the kernel's CUfunction, the array with the
    address of each parameter, the parameters, eight bytes a slot; and the driver's functions. `maps`: of each tensor map the
    slot of its address, where it lies, and the address that it shows. `overlaps`: of a launch whose last attribute says that it
    may start early, the function that tells whether it may on a stream that is captured. All is there as long as `kept` is.
    """

    config: int
    function: int
    parameters: int
    slots: int
    maps: tuple[tuple[int, int, int], ...]
    launch: int
    replace: int
    capturing: int
    overlaps: Callable[[int], bool] | None
    kept: object


class PreparedLaunch:
    """A kernel with its grid and arguments. Called with new addresses and a stream, it writes them and launches.

    `maps` has the extent of each TensorMap parameter, whose argument is an address as a pointer's is. Without `early` none starts
    before the kernel before it has ended. Holds one set of arguments: one thread at a time may use it.
    """

    def __init__(
        self,
        kernel: Kernel,
        arguments: Sequence[Number],
        grid: Sequence[int],
        maps: Mapping[int, Extent] = MappingProxyType({}),
        early: bool = True,
    ) -> None:
        params, entry = kernel.source.params, kernel.source.entry
        if len(arguments) != len(params):
            names = ", ".join(param.name for param in params)
            raise ArgumentError(f"kernel {entry} takes {len(params)} arguments ({names}), got {len(arguments)}")
        x, y, z = (*grid, 1, 1)[:3]
        if min(x, y, z) < 1 or x > _GRID_LIMITS[0] or y > _GRID_LIMITS[1] or z > _GRID_LIMITS[2]:
            raise ArgumentError(f"kernel {entry}: a grid of {x} x {y} x {z} blocks is outside 1 to {_GRID_LIMITS}")
        cluster = kernel.source.launch.cluster
        if x % cluster[0] or y % cluster[1] or z % cluster[2]:
            raise ArgumentError(
                f"kernel {entry}: a grid of {x} x {y} x {z} blocks does not divide into clusters of "
                f"{' x '.join(map(str, cluster))}"
            )
        self._kernel = kernel
        addressed = [i for i, param in enumerate(params) if isinstance(param, (Pointer, TensorMap))]
        order = [*addressed, *(i for i in range(len(params)) if i not in addressed)]
        self._place = {index: slot for slot, index in enumerate(order)}
        self._pointers = slice(0, len(addressed))
        self._slots: Any = (ctypes.c_uint64 * max(1, len(params)))(*[encode(params[i], arguments[i]) for i in order])
        views = {i: EncodedMap(p, _extent(entry, p, i, maps)) for i, p in enumerate(params) if isinstance(p, TensorMap)}
        base = ctypes.addressof(self._slots)
        values = [views[i].location if i in views else base + 8 * self._place[i] for i in range(len(params))]
        self._addresses = (ctypes.c_uint64 * max(1, len(params)))(*values)
        geometry = (x, y, z, *kernel.source.launch.block, kernel.source.launch.shared_bytes)
        self._geometry, self._early = geometry, early and kernel.source.launch.pdl
        self._submit = kernel.submitter(geometry, ctypes.addressof(self._addresses), self._early)
        self._views = [(self._place[i], view) for i, view in views.items()]
        if views:
            self._submit = self._showing(self._submit)

    def raw(self, like: PreparedLaunch) -> RawLaunch | None:
        """The launch as C++ repeats it. Its tensor maps show what those of `like`, another of the kernel, do; None before."""
        if not all(view.address for _, view in like._views):
            return None
        for (_, view), (_, other) in zip(self._views, like._views):
            if refused := view.show(other.address):
                raise driver.failure(driver.api().CUresult(refused), f"a tensor map of {self._kernel.source.entry}")
        config = self._kernel.configuration(self._geometry, self._early)
        return RawLaunch(
            config=config.getPtr(),
            function=int(self._kernel._function),
            parameters=ctypes.addressof(self._addresses),
            slots=ctypes.addressof(self._slots),
            maps=tuple((slot, view.location, view.address) for slot, view in self._views),
            launch=driver.function("cuLaunchKernelEx"),
            replace=driver.function(REPLACE) if self._views else 0,
            capturing=driver.function("cuStreamIsCapturing"),
            overlaps=overlap.allowed if self._early else None,
            kept=(self, config),
        )

    def slot(self, index: int) -> int:
        """The slot of a parameter, by its place in the parameter list."""
        return self._place[index]

    def _showing(self, submit: Any) -> Any:
        """`submit`, once every tensor map shows the address in its slot."""
        slots, views, result = self._slots, self._views, driver.api().CUresult

        def shown(stream: int) -> Any:
            for slot, view in views:
                address = slots[slot]
                if address != view.address:
                    refused = view.show(address)
                    if refused:
                        return result(refused)
            return submit(stream)

        return shown

    def set(self, index: int, value: Number) -> None:
        """Replaces the argument of one parameter, by its place in the parameter list."""
        self._slots[self._place[index]] = encode(self._kernel.source.params[index], value)

    def set_pointer(self, index: int, address: int) -> None:
        """Replaces an address, by its place in the parameter list; unchecked, for the paths that are called often."""
        self._slots[self._place[index]] = address

    def __call__(self, *pointers: int, stream: int = 0) -> None:
        """Launches on a stream, with all addresses replaced, in the order of the parameters; with none given, as it is.

        Raises DeviceError when the driver refuses; faults of the kernel itself come up when its stream is waited for.
        """
        if pointers:
            try:
                self._slots[self._pointers] = pointers
            except (ValueError, TypeError) as error:
                raise ArgumentError(
                    f"kernel {self._kernel.source.entry} takes {self._pointers.stop} addresses, got {pointers}"
                ) from error
        result = self._submit(stream)
        if result:
            self._kernel.resubmit(self._submit, stream, result)


def _extent(entry: str, param: TensorMap, index: int, maps: Mapping[int, Extent]) -> Extent:
    if index not in maps:
        raise ArgumentError(f"kernel {entry}: the tensor map {param.name} needs its sizes and strides; pass Bound.maps")
    return maps[index]


class Kernel:
    """A kernel on one GPU. Unloaded by `close` alone: a graph that was captured with it must not lose it unawares."""

    def __init__(self, binary: Binary, source: Source, device: int) -> None:
        self.binary, self.source, self.device = binary, source, device
        launch = source.launch
        api = driver.api()
        what = f"loading {binary.entry} ({binary.arch}) on GPU {device}"
        with driver.current(device):
            self._module = driver.check(api.cuModuleLoadData(binary.cubin), what)
            try:
                self._function = driver.check(api.cuModuleGetFunction(self._module, binary.entry.encode()), what)
                attributes = api.CUfunction_attribute
                if launch.shared_bytes > _SHARED_FREE:
                    driver.check(
                        api.cuFuncSetAttribute(
                            self._function,
                            attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                            launch.shared_bytes,
                        ),
                        f"{binary.entry} asks for {launch.shared_bytes} bytes of shared memory a block",
                    )
                if launch.cluster[0] * launch.cluster[1] * launch.cluster[2] > _PORTABLE_CLUSTER:
                    allowed = attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
                    driver.check(api.cuFuncSetAttribute(self._function, allowed, 1), what)
                if launch.pdl:
                    overlap.add(int(self._function))
            except DeviceError:
                api.cuModuleUnload(self._module)
                raise

    def prepare(
        self,
        arguments: Sequence[Number],
        grid: Sequence[int],
        maps: Mapping[int, Extent] = MappingProxyType({}),
        early: bool = True,
    ) -> PreparedLaunch:
        """A launch with `arguments`, one for each parameter, over `grid` blocks; `grid` and `maps` are those of a Bound.

        Pointers and tensor maps take addresses; a map's may be 0 until the first launch.
        """
        if self.source.launch.persistent:
            size = self.source.launch.cluster[0]
            grid = (min(grid[0], self.clusters_at_once * size), *grid[1:])
        return PreparedLaunch(self, arguments, grid, maps, early)

    def launch(
        self,
        arguments: Sequence[Number],
        grid: Sequence[int],
        stream: int = 0,
        maps: Mapping[int, Extent] = MappingProxyType({}),
    ) -> None:
        """Launches once on a stream (a handle); does not wait."""
        self.prepare(arguments, grid, maps)(stream=stream)

    def submitter(self, geometry: tuple[int, ...], parameters: int, early: bool) -> Any:
        """A function of a stream's handle that launches and returns the CUresult; for PreparedLaunch."""
        api = driver.api()
        function = self._function
        if not self._attributes:
            launch = api.cuLaunchKernel
            x, y, z, block_x, block_y, block_z, shared = geometry
            return lambda stream: launch(function, x, y, z, block_x, block_y, block_z, shared, stream, parameters, 0)[0]
        config = self.configuration(geometry, early)
        plain = config.numAttrs - early

        def extended(stream: int) -> Any:
            config.hStream = stream
            if early:
                config.numAttrs = plain + overlap.allowed(stream)
            return api.cuLaunchKernelEx(config, function, parameters, 0)[0]

        return extended

    def configuration(self, geometry: tuple[int, ...], early: bool = True) -> Any:
        """The driver's CUlaunchConfig of grid, block and bytes of shared memory. An early start is the last attribute, and left
        out without `early`."""
        config, attributes = driver.api().CUlaunchConfig(), self._attributes
        config.gridDimX, config.gridDimY, config.gridDimZ = geometry[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = geometry[3:6]
        config.sharedMemBytes = geometry[6]
        config.attrs, config.numAttrs = attributes, len(attributes) - (self.source.launch.pdl and not early)
        return config

    @functools.cached_property
    def clusters_at_once(self) -> int:
        """Clusters that the GPU has room for at once. Its multiprocessors come in groups, which clusters do not cross."""
        api, launch = driver.api(), self.source.launch
        config = self.configuration((*launch.cluster, *launch.block, launch.shared_bytes))
        what = f"asking how many clusters of {self.binary.entry} fit GPU {self.device}"
        with driver.current(self.device):
            return max(1, int(driver.check(api.cuOccupancyMaxActiveClusters(self._function, config), what)))

    @functools.cached_property
    def _attributes(self) -> list[Any]:
        """What a launch needs beyond grid, block and shared memory."""
        api, launch = driver.api(), self.source.launch
        found = []
        if launch.cluster != (1, 1, 1):
            clustered = api.CUlaunchAttribute()
            clustered.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            cluster = clustered.value.clusterDim
            cluster.x, cluster.y, cluster.z = launch.cluster
            found.append(clustered)
        if launch.cooperative:
            cooperative = api.CUlaunchAttribute()
            cooperative.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            cooperative.value.cooperative = 1
            found.append(cooperative)
        if launch.pdl:
            attribute = api.CUlaunchAttribute()
            attribute.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            found.append(attribute)
        return found

    def resubmit(self, submit: Any, stream: int, result: Any) -> None:
        """After a refused launch: once more with this GPU as the current one, for a thread that has another or none."""
        results = driver.api().CUresult
        if result in (results.CUDA_ERROR_INVALID_CONTEXT, results.CUDA_ERROR_INVALID_HANDLE):
            with driver.current(self.device):
                result = submit(stream)
        if result:
            raise driver.failure(result, f"launching {self.binary.entry} on GPU {self.device}")

    def close(self) -> None:
        """Unloads the kernel. Nothing may launch or replay it afterwards."""
        if self._module is not None:
            with driver.current(self.device):
                driver.check(driver.api().cuModuleUnload(self._module))
            self._module = None


def load(binary: Binary, source: Source, device: int = 0) -> Kernel:
    """Loads a compiled kernel on a GPU. Raises DeviceError when it was built for another or asks for too much."""
    return Kernel(binary, source, device)

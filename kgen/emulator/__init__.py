"""Runs a generated kernel on the CPU, every CUDA thread a fiber, and finds the faults a GPU would hide.

    kernel = emulator.compile(source)
    report = kernel.launch([Buffer(a.data_ptr(), a.nbytes, writable=False), ..., m, n, alpha], grid)

`source.body` is compiled by the host's C++ compiler against headers of our own (`cpp/prelude.h` stands in for CUDA's) and
run by a runtime library that is built once. With checks on, a kernel that reads or writes out of bounds, reads memory
nobody has written, races on shared or global memory, diverges at a collective or deadlocks raises an EmulatorError that names the
block, the thread and the line. It says whether a kernel is right, never how fast it is.

TMA, mbarriers, clusters and wgmma are there too: copies arrive and products are ready as late as the kernel's waiting
allows, unless Options.async_mode says otherwise.

Races on global memory are those of the PTX memory model: accesses of two threads that no barrier, release and acquire, or
fences around atomics order, whatever order the blocks ran in (cpp/clock.h). A launch that overlaps with the kernel before it
may use no memory before griddepcontrol_wait, and no block of a cluster another's before that one is known to have started.

Not as on a GPU: the order in which a tensor core sums, what a weakly ordered load would have returned (the race is reported
instead), and blocks that wait for each other outside a cooperative launch (only as many as there are CPU threads run at a time).
"""

from kgen.emulator.buffer import Buffer
from kgen.emulator.coverage import Coverage
from kgen.emulator.kernel import EmulatedKernel, Options, compile, compile_together
from kgen.emulator.report import Report, Site
from kgen.emulator.tensor_map import Map

__all__ = ["Buffer", "Coverage", "EmulatedKernel", "Map", "Options", "Report", "Site", "compile", "compile_together"]

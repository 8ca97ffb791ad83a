"""Workspaces: memory of kernels beside their operands, such as counters, which are 0 before a launch and after it.

It comes from the driver. Torch's pools would not do: all that is taken from the pool of a CUDA graph, in its warm-up too, has
to be a result of the graph or given back. Launches on a stream follow each other, so they share its memory; a graph has counters
of its own, since it may run beside what the stream launches.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

from kgen.gpu import driver
from kgen.gpu.memory import DeviceBuffer

#: Bytes of a buffer at least: what the counters of most kernels need.
_LEAST = 4096
#: Bytes of a sem_t of Linux on 64-bit machines.
_SEM_BYTES = 32

_lock = threading.Lock()
#: By GPU, stream and use.
_of_streams: dict[tuple[int, int, str], DeviceBuffer] = {}
#: By GPU and stream: the last capture there, with its counters.
_of_captures: dict[tuple[int, int], tuple[int, DeviceBuffer]] = {}
#: The counters of graphs, each with what tells that its graph is gone.
_lent: list[tuple[Ending, DeviceBuffer]] = []


def of_stream(device: int, stream: int, use: str, size: int) -> int:
    """The address of `size` bytes that all launches on a stream share for that use; zeros at first."""
    found = _of_streams.get((device, stream, use))
    if found is None or found.size < size:
        with _lock:
            found = _of_streams[device, stream, use] = _larger(device, size, found)
    return found.address


def of_graph(device: int, stream: int, size: int) -> int:
    """The address of `size` bytes of counters that launches captured from this stream share.

    They are zeroed outside of the graph, and used again once it, and all that was instantiated of it, is destroyed.
    """
    number, graph, _ = driver.capture(stream)
    made_for, found = _of_captures.get((device, stream), (0, None))
    if made_for != number or found is None or found.size < size:
        with _lock:
            found = _spare(device, size) or _larger(device, size, found if made_for == number else None)
            _lent.append((Ending(graph), found))
            _of_captures[device, stream] = number, found
    return found.address


def _larger(device: int, size: int, before: DeviceBuffer | None) -> DeviceBuffer:
    """A buffer for what the one before is too small for. That one stays, for launches that use it."""
    return DeviceBuffer.zeroed(max(size, _LEAST, 2 * before.size if before else 0), device)


def _spare(device: int, size: int) -> DeviceBuffer | None:
    """Counters that a graph has given back. Its kernels left zeros."""
    for place, (ending, buffer) in enumerate(_lent):
        if buffer.device == device and buffer.size >= size and ending.reached:
            return _lent.pop(place)[1]
    return None


class Ending:
    """Whether a graph, with all that was instantiated of it, is destroyed: `reached`.

    The driver tells it by a user object's destructor, in a thread that must not wait, as Python would for the interpreter's
    lock. So the destructor is the C library's sem_post.
    """

    def __init__(self, graph: Any) -> None:
        api, libc = driver.api(), _libc()
        self._semaphore = ctypes.create_string_buffer(_SEM_BYTES)
        libc.sem_init(self._semaphore, 0, 0)
        destructor = api.CUhostFn(ctypes.cast(libc.sem_post, ctypes.c_void_p).value)
        flags = api.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC.value
        made = driver.check(api.cuUserObjectCreate(ctypes.addressof(self._semaphore), destructor, 1, flags))
        move = api.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE.value
        driver.check(api.cuGraphRetainUserObject(graph, made, 1, move), "a graph does not take its workspaces")

    @property
    def reached(self) -> bool:
        count = ctypes.c_int()
        _libc().sem_getvalue(self._semaphore, ctypes.byref(count))
        return count.value > 0


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)

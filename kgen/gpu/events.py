"""Streams, events and graphs: what it takes to time kernels on a GPU without torch."""

from __future__ import annotations

from collections.abc import Callable

from kgen.gpu import driver


class Stream:
    """A stream of its own on a GPU; `handle` is what launches take. It does not wait for the default stream."""

    def __init__(self, device: int = 0) -> None:
        api = driver.api()
        with driver.current(device):
            self._stream = driver.check(api.cuStreamCreate(api.CUstream_flags.CU_STREAM_NON_BLOCKING.value))
        self.device = device
        self.handle = int(self._stream)

    def synchronize(self) -> None:
        """Waits until all work on the stream is done. A kernel's fault comes up here, as DeviceError with its code."""
        driver.check(driver.api().cuStreamSynchronize(self._stream), "work on the stream failed")

    def close(self) -> None:
        """Ends the stream once its work is done."""
        driver.check(driver.api().cuStreamDestroy(self._stream))


class Event:
    """A point in a stream's work, with the time the GPU reached it."""

    def __init__(self, device: int = 0) -> None:
        self.device = device
        with driver.current(device):
            self._event = driver.check(driver.api().cuEventCreate(0))

    def record(self, stream: int) -> None:
        """Marks the present end of a stream's work; `stream` is a handle."""
        with driver.current(self.device):
            driver.check(driver.api().cuEventRecord(self._event, stream))

    def synchronize(self) -> None:
        """Waits until the GPU has reached the event."""
        driver.check(driver.api().cuEventSynchronize(self._event), "work before the event failed")

    def elapsed_ms(self, end: Event) -> float:
        """Milliseconds from this event to `end`, both recorded and reached."""
        return float(driver.check(driver.api().cuEventElapsedTime(self._event, end._event)))

    def close(self) -> None:
        driver.check(driver.api().cuEventDestroy(self._event))


class Graph:
    """Launches recorded once and replayed as one, which takes the host's cost of each launch out of a timing."""

    def __init__(self, executable: object, device: int) -> None:
        self._executable = executable
        self.device = device

    @classmethod
    def capture(cls, stream: Stream, work: Callable[[], object]) -> Graph:
        """What `work` launches on `stream`, as a graph. Nothing runs yet. An exception in `work` ends the capture."""
        api = driver.api()
        mode = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        with driver.current(stream.device):
            driver.check(api.cuStreamBeginCapture(stream._stream, mode))
            try:
                work()
            except BaseException:
                result, graph = api.cuStreamEndCapture(stream._stream)
                if result == 0:
                    api.cuGraphDestroy(graph)
                raise
            graph = driver.check(api.cuStreamEndCapture(stream._stream), "the stream could not be captured")
            try:
                return cls(driver.check(api.cuGraphInstantiate(graph, 0)), stream.device)
            finally:
                api.cuGraphDestroy(graph)

    def replay(self, stream: int) -> None:
        """Launches the graph on a stream, given by its handle."""
        with driver.current(self.device):
            driver.check(driver.api().cuGraphLaunch(self._executable, stream))

    def close(self) -> None:
        driver.check(driver.api().cuGraphExecDestroy(self._executable))

"""Overlap: whether a launch may start while the kernel before it ends (programmatic dependent launch).

On a stream it always may: on an H200 a product then takes 0.8 to 1.9 us less after any kernel. Captured in a CUDA graph it takes
0.6 to 1.4 us less after a kernel that lets the next one start, mostly 0.1 to 0.8 more after one that does not, such as torch's
(docs/notes/gemm_wgmma.md, "What a launch costs"). So a captured launch may where the graph's last node is such a kernel.
"""

from __future__ import annotations

from kgen.gpu import driver

#: The functions of kernels that let the next one start before they end.
_letting: set[int] = set()


def add(function: int) -> None:
    """Counts a function (a CUfunction) among those that let the next kernel start."""
    _letting.add(function)


def allowed(stream: int) -> bool:
    """Whether what is launched next on a stream may start early."""
    api = driver.api()
    result, status = api.cuStreamIsCapturing(stream)
    if result or status == api.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
        return True
    last = driver.capture(stream).last
    return len(last) == 1 and _function_of(last[0]) in _letting


def _function_of(node: object) -> int:
    """The function of a graph's node; 0 where it launches none."""
    api = driver.api()
    if driver.check(api.cuGraphNodeGetType(node)) != api.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
        return 0
    return int(driver.check(api.cuGraphKernelNodeGetParams(node)).func)

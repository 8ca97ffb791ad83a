"""Which launches may start early, by a driver that only says what is captured."""

from types import SimpleNamespace

import pytest

from kgen.gpu import driver, overlap

NONE, ACTIVE, KERNEL, MEMSET = range(4)


class Fake:
    """Captures the kernels and other nodes in `last`; None outside of a capture."""

    CUstreamCaptureStatus = SimpleNamespace(CU_STREAM_CAPTURE_STATUS_NONE=NONE, CU_STREAM_CAPTURE_STATUS_ACTIVE=ACTIVE)
    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_KERNEL=KERNEL)

    def __init__(self):
        self.last = None

    def cuStreamIsCapturing(self, stream):
        return 0, NONE if self.last is None else ACTIVE

    def cuStreamGetCaptureInfo(self, stream):
        return 0, ACTIVE, 1, "graph", self.last, [], len(self.last)

    def cuGraphNodeGetType(self, node):
        return 0, MEMSET if node == "memset" else KERNEL

    def cuGraphKernelNodeGetParams(self, node):
        assert node != "memset"
        return 0, SimpleNamespace(func=node)


@pytest.fixture
def fake(monkeypatch):
    made = Fake()
    monkeypatch.setattr(driver, "api", lambda: made)
    monkeypatch.setattr(overlap, "_letting", {7})
    return made


@pytest.mark.parametrize(
    ("last", "early"),
    [(None, True), ([], False), ([7], True), ([8], False), (["memset"], False), ([7, 7], False)],
)
def test_a_captured_launch_starts_early_after_a_kernel_that_lets_it(fake, last, early):
    fake.last = last
    assert overlap.allowed(5) is early


def test_it_may_where_the_driver_does_not_say(fake):
    """The legacy stream, while another one is captured."""
    fake.cuStreamIsCapturing = lambda stream: (906, None)
    assert overlap.allowed(0)

"""nms on a GPU: the list that torchvision keeps, for every kind of boxes at sizes of use, again and again, and in a graph."""

import warnings

import pytest
import torch

import kgen
from kgen import KgenWarning
from kgen.codegen.template_schedule import enumerate_space
from kgen.gpu.target import detect
from kgen.numerics.reference import evaluate
from kgen.ops import operator
from kgen.ops.nms import Nms
from kgen.runtime.operator import KernelOperator

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

GRAPH = operator("nms_padded").graphs[0]


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KgenWarning)
        yield


def boxes_of(kind, n):
    source = torch.Generator("cuda").manual_seed(n)
    corner, size = (torch.rand(n, 2, generator=source, device="cuda") for _ in range(2))
    scores = torch.randn(n, generator=source, device="cuda")
    boxes = torch.cat((corner * 1000, corner * 1000 + 10 + 60 * size), 1)
    if kind == "crowded":
        boxes = torch.cat((corner * 100, corner * 100 + size * 100), 1)
    elif kind == "ties":
        boxes = torch.randint(-6, 7, (n, 4), generator=source, device="cuda").float()
        scores = torch.randint(-9, 9, (n,), generator=source, device="cuda").float()
    elif kind == "same":
        boxes = torch.tensor([0.0, 0, 1, 1], device="cuda").repeat(n, 1)
    elif kind == "apart":
        boxes = torch.arange(n, device="cuda")[:, None] * 3 + torch.tensor([0.0, 0, 1, 1], device="cuda")
    elif kind == "special":
        scores[::3], scores[1::5], scores[2::5] = float("nan"), -0.0, 0.0
        boxes[::7, 2], boxes[3::11] = float("nan"), float("inf")
    return boxes, scores


def reference(boxes, scores, threshold):
    kept, count = evaluate(GRAPH, {"boxes": boxes, "scores": scores}, {"iou_threshold": threshold})
    return kept[: int(count)]


@pytest.mark.parametrize("kind", ["spread", "crowded", "ties", "same", "apart", "special"])
@pytest.mark.parametrize("n", [1, 64, 65, 1000, 20000])
def test_the_reference_again_and_again(kind, n):
    boxes, scores = boxes_of(kind, n)
    expected = reference(boxes, scores, 0.5)
    for _ in range(20):
        assert torch.equal(kgen.nms(boxes, scores, 0.5), expected)


@pytest.mark.parametrize("kind", ["spread", "crowded", "ties", "same", "apart", "special"])
@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7])
def test_torchvision_keeps_the_same(kind, threshold):
    theirs = pytest.importorskip("torchvision.ops").nms
    for n in (1, 63, 64, 65, 1000, 20000):
        boxes, scores = boxes_of(kind, n)
        assert torch.equal(kgen.nms(boxes, scores, threshold), theirs(boxes, scores, threshold)), n


def test_every_config():
    boxes, scores = boxes_of("spread", 3000)
    expected = reference(boxes, scores, 0.4)
    problem = KernelOperator(operator("nms_padded")).problem(N=3000)
    for config in enumerate_space(Nms, problem, detect(0)):
        kept, count = kgen.nms_padded.using(config)(boxes, scores, 0.4)
        assert torch.equal(kept[: int(count)], expected), config
        assert (kept[int(count) :] == -1).all(), config


def test_in_a_cuda_graph():
    boxes, scores = boxes_of("spread", 5000)
    kgen.nms_padded(boxes, scores, 0.5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept, count = kgen.nms_padded(boxes, scores, 0.5)
    for seed in range(3):
        other, ranks = boxes_of("crowded", 5000 + seed)
        boxes.copy_(other[:5000])
        scores.copy_(ranks[:5000])
        graph.replay()
        assert torch.equal(kept[: int(count)], reference(boxes, scores, 0.5))

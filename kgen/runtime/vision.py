"""Functions of torchvision's kind: operators whose result has a size that only the values tell, cut to that size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgen.runtime.shipped import shipped

if TYPE_CHECKING:
    from torch import Tensor


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Greedy non-maximum suppression, exactly as torchvision.ops.nms: the indices of the boxes that stay, as i64.

    `boxes` is [N, 4] (x1, y1, x2, y2) and `scores` [N], both f32. The indices are in descending order of score. Waits for the
    GPU; `kgen.nms_padded` does not, and can be captured in a CUDA graph.
    """
    kept, count = shipped("nms_padded")(boxes, scores, iou_threshold)
    return kept[: int(count)]  # type: ignore[no-any-return]

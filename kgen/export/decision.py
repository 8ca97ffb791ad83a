"""Decision: which kernel of several a call takes. Python evaluates it, and templates/export prints the same as C++.

First what may serve: the sizes, strides and addresses meet the kernel's requirements. Among those the one that was made for
the nearest sizes, as `kgen.tuning_db.distance` has it; the first of equals. Where none may, the first fallback that may.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kgen.export.requirements import Requirements
from kgen.tuning_db import distance


@dataclass(frozen=True)
class Decision:
    """`rows` are sizes that a kernel was chosen for, in the order of the names `sizes`, with the kernel's number.

    `strides` names the size that each stride is along: of a single element it does not matter, and is taken for 0.
    """

    sizes: tuple[str, ...]
    strides: Mapping[str, str]
    rows: tuple[tuple[tuple[int, ...], int], ...]
    fallbacks: tuple[int, ...]
    required: tuple[Requirements, ...]

    def pick(self, symbols: Mapping[str, int], alignment: Mapping[str, int]) -> int | None:
        """The kernel for a call with these sizes and strides, on operands at multiples of so many bytes; None where none serves.

        The C++ is `choose` in templates/export/launch.cu.j2.
        """
        known = {name: 0 if symbols.get(self.strides.get(name, "")) == 1 else n for name, n in symbols.items()}
        least, found = math.inf, None
        for row, kernel in self.rows:
            further = distance(dict(zip(self.sizes, row)), known)
            if further < least and self.required[kernel].hold(known, alignment):
                least, found = further, kernel
        if found is None:
            found = next((kernel for kernel in self.fallbacks if self.required[kernel].hold(known, alignment)), None)
        return found

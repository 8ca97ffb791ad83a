"""What all tests on a GPU share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def memory_given_back() -> Iterator[None]:
    """Many processes test on one GPU: none keeps memory that it does not use for another test of its own."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()

"""gemm_wgmma in tf32, e4m3, e5m2 and fp8 with scales of blocks: every value of every field for every layout, at ragged shapes."""

import pytest
from suite import names, run_and_compile

NAMES = names("WgmmaGemm", "tf32", "e4m3", "e5m2", "scaled")


@pytest.mark.parametrize("name", NAMES)
def test_cases(name: str) -> None:
    run_and_compile(name)

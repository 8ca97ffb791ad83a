"""gemm_simt in bf16, i8 and fp8: every value of every field for every layout, at ragged shapes."""

import pytest
from suite import names, run_and_compile

NAMES = names("SimtGemm", "bf16", "i8", "e4m3", "e5m2")


@pytest.mark.parametrize("name", NAMES)
def test_cases(name: str) -> None:
    run_and_compile(name)

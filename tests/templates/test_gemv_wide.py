"""gemv in f32, f64, f16 and bf16: every value of every field for every layout, at ragged shapes."""

import pytest
from suite import names, run_and_compile

NAMES = names("Gemv", "f32", "f64", "f16", "f16acc", "bf16")


@pytest.mark.parametrize("name", NAMES)
def test_cases(name: str) -> None:
    run_and_compile(name)

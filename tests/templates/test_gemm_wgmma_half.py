"""gemm_wgmma in f16, f16acc and bf16: every value of every field for every layout, at ragged shapes."""

import pytest
from suite import compile_some, emulate_all, names

NAMES = names("WgmmaGemm", "f16", "f16acc", "bf16")


@pytest.mark.parametrize("name", NAMES)
def test_on_the_emulator(name: str) -> None:
    emulate_all(name)


@pytest.mark.parametrize("name", NAMES)
def test_compiles(name: str) -> None:
    compile_some(name)

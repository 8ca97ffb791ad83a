"""gemm_wgmma in tf32, e4m3, e5m2 and fp8 with scales of blocks: every value of every field for every layout, at ragged shapes."""

import pytest
from suite import compile_some, emulate_all, names

NAMES = names("WgmmaGemm", "tf32", "e4m3", "e5m2", "scaled")


@pytest.mark.parametrize("name", NAMES)
def test_on_the_emulator(name: str) -> None:
    emulate_all(name)


@pytest.mark.parametrize("name", NAMES)
def test_compiles(name: str) -> None:
    compile_some(name)

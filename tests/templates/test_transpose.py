"""transpose: every value of every field for every dtype, tiles cut anywhere, lines of any alignment."""

import pytest
from suite import names, run_and_compile

import kgen
from kgen.dsl.family import normalised
from kgen.ops.elementwise.narrow import TransposeNarrow

NAMES = names("Transpose")


@pytest.mark.parametrize("name", NAMES)
def test_cases(name: str) -> None:
    run_and_compile(name)


@pytest.mark.parametrize("name", names("TransposeNarrow"))
def test_cases_of_few_columns(name: str) -> None:
    run_and_compile(name)


def test_rows_of_all_matrices_are_counted_in_64_bits_where_32_do_not_hold_them() -> None:
    config = TransposeNarrow(span="output", pack=1, vectors=1, threads=128)
    few, many = (normalised(kgen.transpose.problem(M=2, N=40000, dtype="i8", leading=b)) for b in (7, 70000))
    sources = [config.source(problem) for problem in (few, many)]
    assert ["using Index = unsigned;" in source.text for source in sources] == [True, False]
    assert ["using Index = unsigned long long;" in source.text for source in sources] == [False, True]
    assert not all(limit.holds(config.symbols(many)) for limit in sources[0].limits)
    assert all(limit.holds(config.symbols(few)) for limit in sources[0].limits)

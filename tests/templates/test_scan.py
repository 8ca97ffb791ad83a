"""scan: every value of every field for every dtype, at ragged sizes and with all kinds of operands."""

import pytest
from suite import names, run_and_compile


@pytest.mark.parametrize("name", names("Scan"))
def test_cases(name: str) -> None:
    run_and_compile(name)


@pytest.mark.parametrize("name", names("ScanSplit"))
def test_cases_of_shared_rows(name: str) -> None:
    run_and_compile(name)


@pytest.mark.parametrize("name", names("ScanSpan"))
def test_cases_of_spans(name: str) -> None:
    run_and_compile(name)


@pytest.mark.parametrize("name", names("ScanThread"))
def test_cases_of_rows_of_a_thread(name: str) -> None:
    run_and_compile(name)

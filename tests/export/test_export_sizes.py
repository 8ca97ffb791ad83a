"""Sizes as C++: few parentheses, and the same value."""

from __future__ import annotations

import random

import pytest

from kgen.codegen.source import SM_COUNT
from kgen.dsl.size import Dim, Size, ceil_div, dims, evaluate, maximum, minimum
from kgen.export.sizes import cxx, factors, wrapped

M, N = dims("M N")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (7, "7"),
        (M, "M"),
        (ceil_div(M, 128) * ceil_div(N, 64), "ceil_div(M, 128) * ceil_div(N, 64)"),
        (ceil_div(M, 1) * N, "M * N"),
        ((M + N) * 2, "(M + N) * 2"),
        (M + N * 2, "M + N * 2"),
        (M - (N - 1), "M - (N - 1)"),
        (M + (N + 1), "M + N + 1"),
        (M // (N * 2), "M / (N * 2)"),
        ((M * N) // 2 % 3, "M * N / 2 % 3"),
        (minimum(ceil_div(M, 512), SM_COUNT * 4), "std::min<int64_t>(ceil_div(M, 512), sm_count * 4)"),
        (maximum(M, 1), "std::max<int64_t>(M, 1)"),
    ],
)
def test_text(size: Size, text: str) -> None:
    assert cxx(size) == text


def test_random_expressions_keep_their_value() -> None:
    rng = random.Random(0)

    def grow(depth: int) -> Size:
        if depth == 0:
            return rng.choice([M, N, Dim("P"), rng.randint(1, 9)])
        a, b = grow(depth - 1), grow(depth - 1)
        forms = [a + b, a * b, ceil_div(a, 4), minimum(a, b), maximum(a, b), (a + b) - a]
        return rng.choice(forms)

    symbols = {"M": 7, "N": 12, "P": 5}
    for _ in range(300):
        size = grow(rng.randint(1, 4))
        text = cxx(size).replace("std::min<int64_t>", "min").replace("std::max<int64_t>", "max").replace("/", "//")
        assert interpreted(text, symbols) == evaluate(size, symbols), text


def interpreted(text: str, symbols: dict[str, int]) -> int:
    """The value of a size as text, read by the grammar that C++ and Python share."""
    import ast

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant):
            return int(node.value)
        if isinstance(node, ast.Name):
            return symbols[node.id]
        if isinstance(node, ast.BinOp):
            a, b = value(node.left), value(node.right)
            kind = type(node.op)
            return {ast.Add: a + b, ast.Sub: a - b, ast.Mult: a * b, ast.FloorDiv: a // b if b else 0}[kind]
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Name)
        a, b = map(value, node.args)
        return {"min": min(a, b), "max": max(a, b), "ceil_div": -(-a // b) if b else 0}[node.func.id]

    return value(ast.parse(text, mode="eval").body)


def test_factors() -> None:
    assert factors(M * N * Dim("K")) == (M, N, Dim("K"))
    assert factors(M + N) == (M + N,)


def test_wrapped_lines_fit_and_align() -> None:
    text = wrapped("call(", [f"argument{i}" for i in range(20)], ");", width=60)
    lines = text.split("\n")
    assert len(lines) > 1
    assert all(len(line) <= 60 for line in lines)
    assert all(line.startswith("     argument") for line in lines[1:])
    assert wrapped("call(", [], ");") == "call();"

"""Several problems in one export: the kernels, the fallback, and a decision that C++ and Python make alike."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from export_host import picks
from export_samples import H200, TARGET, bias_gelu, problem

from kgen.dsl.errors import ArgumentError
from kgen.dsl.problem import Problem
from kgen.dsl.types import bf16, f16, f32
from kgen.export import Entry, export_many
from kgen.export.collection import collect
from kgen.export.interface import Interface
from kgen.export.project import texts
from kgen.export.variants import Served
from kgen.runtime import dispatch


def entries(problems: Sequence[Problem]) -> list[Entry]:
    return [Entry(of, dispatch.default(of, H200).config, f"of {of}") for of in problems]


def products(*shapes: tuple[int, int, int], layouts: Sequence[dict[str, str]] = ({},)) -> list[Problem]:
    return [problem("hgemm", {"a": f16}, dict(zip("MNK", shape)), layout) for layout in layouts for shape in shapes]


def interface(problems: Sequence[Problem]) -> Interface:
    return Interface(collect(entries(problems), H200))


def product_call(rng: random.Random) -> dict[str, int]:
    """Sizes and strides of a product in one of the layouts NN and TN, or, now and then, in none."""

    def size() -> int:
        return max(1, int(2 ** rng.uniform(0, 14)) // rng.choice([1, 8, 64]) * rng.choice([1, 8, 64]))

    m, n, k = size(), size(), size()
    pad = rng.choice([0, 0, 1, 8])
    transposed = rng.random() < 0.5
    unit = 1 if rng.random() < 0.9 else 2
    a = {"a_sm": unit, "a_sk": m + pad} if transposed else {"a_sm": k + pad, "a_sk": unit}
    return {"M": m, "N": n, "K": k, **a, "b_sk": n + pad, "out_sm": n + pad, "out_sn": 1}


def rows_call(rng: random.Random) -> dict[str, int]:
    n0, n1 = int(2 ** rng.uniform(0, 14)), int(2 ** rng.uniform(0, 14))
    n1 = n1 // 8 * 8 + rng.choice([0, 0, 1, 4]) or 1
    return {"n0": n0, "n1": n1, "x_s0": n1 + rng.choice([0, 8, 1]), "out_s0": n1}


SHAPES = [(128, 128, 128), (1, 4096, 4096), (1024, 1024, 1024), (4096, 4096, 4096), (128, 128, 32768)]
MANY: dict[str, Any] = {
    "NN and TN": (lambda: products(*SHAPES, layouts=({}, {"a": "col"})), product_call, 1000),
    "rows": (
        lambda: [problem(bias_gelu, {"x": f16}, {"...": (m,), "N": n}) for m, n in ((8, 64), (4096, 4096), (64, 5001))],
        rows_call,
        500,
    ),
}


@functools.cache
def many(name: str) -> Interface:
    return interface(MANY[name][0]())


def own_symbols(f: Interface, entry: Entry) -> dict[str, int]:
    """The sizes and strides of a problem, as its own call has them."""
    symbols = entry.config.symbols(Served(entry.config, entry.problem, H200).problem)
    return {name: symbols[name] for name in f.symbols}


@pytest.mark.parametrize("name", MANY)
def test_cpp_decides_as_python_does(name: str, tmp_path: Path) -> None:
    f, (_, call, count) = many(name), MANY[name]
    rng = random.Random(name)
    calls, wanted = [], []
    for symbols in (*(own_symbols(f, entry) for entry, _ in f.collection.rows), *(call(rng) for _ in range(count))):
        assert set(symbols) == set(f.symbols)
        steps = [8] if len(calls) < len(f.collection.rows) else [1, 2, 8, 8, 8, 8, 8]
        aligned = {p.operand: p.dtype.bytes * rng.choice(steps) for p in f.operands}
        calls.append([*(4096 + n for n in aligned.values()), *(symbols[s] for s in f.symbols)])
        wanted.append(f.decision.pick(symbols, aligned))
    found = picks(f, texts(f, [H200.arch]), calls, tmp_path)
    assert [kernel if kernel >= 0 else None for kernel, _, _ in found] == wanted
    assert all((result == 0) == (kernel >= 0) for kernel, result, _ in found)
    scratch = {k.number for k in f.kernels if k.workspaces}
    assert all((size > 0) == (kernel in scratch) for kernel, _, size in found)
    assert {*wanted} >= {*range(len(f.kernels))}  # each kernel is taken by some call
    assert (None in wanted) == (name == "NN and TN")


@pytest.mark.parametrize("name", MANY)
def test_the_problems_themselves_get_their_own_kernels(name: str) -> None:
    f = many(name)
    for entry, number in f.collection.rows:
        assert f.collection.kernels[number].config == entry.config
        assert f.decision.pick(own_symbols(f, entry), {p.operand: 16 for p in f.operands}) == number


def test_between_two_shapes_the_nearer_one_decides() -> None:
    f = interface(products((256, 256, 256), (4096, 4096, 4096)))
    aligned = dict.fromkeys(("a", "b", "out"), 16)

    def pick(n: int) -> int | None:
        return f.decision.pick({"M": n, "N": n, "K": n, "a_sm": n, "b_sk": n, "out_sm": n}, aligned)

    assert (pick(1000), pick(1024), pick(1040)) == (0, 0, 1)  # the first of equals, at 1024


def test_a_fallback_takes_any_size_stride_and_address() -> None:
    f = interface(products((256, 256, 256), (4096, 4096, 4096), layouts=({}, {"b": "col"})))
    assert len(f.collection.fallbacks) == 2
    least = dict.fromkeys(("a", "b", "out"), 2)
    for number in f.collection.fallbacks:
        assert f.kernels[number].requirements.alignment == least
        assert not [r for r in f.kernels[number].requirements.sizes if r.along is None and not r.is_bound]
    odd = {"M": 131, "N": 83, "K": 197, "a_sm": 199, "b_sk": 85, "b_sn": 1, "out_sm": 87}
    assert f.decision.pick(odd, least) in f.collection.fallbacks
    assert f.decision.pick({**odd, "b_sn": 2}, least) is None


def test_equal_kernels_are_there_once() -> None:
    shapes = [(4096, 4096, 4096), (4096, 4096, 8192)]
    config = dispatch.default(products(shapes[0])[0], H200).config
    found = collect([Entry(of, config) for of in (*products(*shapes), *products(shapes[0]))], H200)
    assert [kernel for _, kernel in found.rows] == [0, 0]
    assert len(found.kernels) == 1 + len({*found.fallbacks} - {0})


def test_the_stride_of_a_single_row_does_not_matter() -> None:
    f = interface(products((1, 4096, 4096), (64, 4096, 4096)))
    call = {"M": 1, "N": 4096, "K": 4096, "a_sm": 7, "b_sk": 4096, "out_sm": 3, "out_sn": 1}
    assert f.decision.pick(call, dict.fromkeys(("a", "b", "out"), 16)) == 0


def test_one_problem_is_exported_as_ever(tmp_path: Path) -> None:
    (of,) = products((256, 256, 256))
    written = export_many(entries([of]), H200, tmp_path)
    text = written[0].read_text()
    assert "choose(" not in text
    assert "namespace hgemm_kernel {" in text


def test_of_each_kernel_it_says_what_is_known(tmp_path: Path) -> None:
    problems = products((256, 256, 256), (4096, 4096, 4096))
    first, *_ = export_many(entries(problems), H200, tmp_path)
    lines = first.read_text().splitlines()
    for number, entry in enumerate(entries(problems)):
        place = lines.index(f"// {number}: {entry.config!r}")
        assert lines[place + 1] == f"//    {entry.problem}: of {entry.problem}."


def test_what_cannot_be_one_export() -> None:
    (of,) = products((256, 256, 256))
    other = problem("hgemm", {"a": bf16}, {"M": 256, "N": 256, "K": 256})
    with pytest.raises(
        ArgumentError, match=r"cannot export .* and .* as one; expected one operator in the same dtypes"
    ):
        collect(entries([of, other]), H200)
    batch = problem("hgemm", {"a": f16}, {"...": (4,), "M": 256, "N": 256, "K": 256})
    with pytest.raises(ArgumentError, match=r"dimensions that lie densely.*export them apart"):
        collect(entries([of, batch]), H200)
    flat, rows = (problem(bias_gelu, {"x": f32}, {"...": (m,), "N": 512}) for m in (1, 64))
    with pytest.raises(ArgumentError, match="export them apart"):
        collect(entries([rows, flat]), H200)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"entries": []}, "entries is empty; expected at least one Entry"),
        ({"entries": [1]}, r"entries\[0\] is a int; expected an Entry"),
        ({"form": "ptx"}, "unknown form 'ptx'; expected cuda, cubin, fatbin, torch"),
    ],
)
def test_wrong_arguments(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    right: dict[str, Any] = {"entries": entries(products((64, 64, 64))), "target": TARGET, "out": tmp_path / "out"}
    with pytest.raises(ArgumentError, match=message):
        export_many(**{**right, **given})
    assert not (tmp_path / "out").exists()

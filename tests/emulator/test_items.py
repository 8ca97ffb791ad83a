"""Which vectors a thread has, and where they are (templates/common: items, index, operand)."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_kernels import aligned, make, read, write

from kgen import emulator
from kgen.codegen.library import functions_used

_VISITS = """
using Index = unsigned;
extern "C" __global__ void __launch_bounds__(32) visits(int* visits, int* firsts, int count) {{
  using Items = ThreadItems<{items}, {shared}, 32>;
  {blocks}<Items::SPAN>::for_each(static_cast<Index>(count), [&](Index start) {{
    const Index first = start + threadIdx.x;
    const Index places = count;
    Items::for_each(first, places, [&](int i, Index place) {{ visits[place * {shared} + i % {shared}] += 1; }});
    Items::for_each_place(first, places, [&](int i, Index place) {{ firsts[place] += i % {shared} + 1; }});
  }});
}}
"""

_INDICES = """
using Index = unsigned;
extern "C" __global__ void __launch_bounds__(32) indices(int* found, int count) {
  const long long inverse = 0x7fffffffffffffffll / 5;
  for (unsigned n = threadIdx.x; n < count; n += 32)
    unravel(n, found[3 * n + 2], Divisor<Index>(7), found[3 * n + 1], FastDivisor(5, inverse), found[3 * n]);
}
"""

_OPERANDS = """
extern "C" __global__ void __launch_bounds__(32) operands(const short* from, short* to, int count) {{
  using Items = {read}::Items;
  const Items items = {read}::load(from, 3, count);
  Vector<short, 4> made = {{}};
  for (int e = 0; e < 4; ++e) made[e] = {element};
  if (threadIdx.x == 0) {written}::store(to, made, 2, count);
}}
"""


@pytest.mark.parametrize("blocks", ["OnePass", "GridStride"])
@pytest.mark.parametrize(("items", "shared"), [(1, 1), (4, 1), (4, 2), (4, 4)])
def test_every_item_of_every_place_is_visited_once(items: int, shared: int, blocks: str) -> None:
    count = 32 * items // shared * 2 + 5
    text = _VISITS.format(items=items, shared=shared, blocks=blocks)
    visits, firsts = aligned(np.zeros(count * shared, np.int32)), aligned(np.zeros(count, np.int32))
    source = make(functions_used("common", text) + text, 32, 0, 90)
    grid = 3 if blocks == "OnePass" else 2
    emulator.compile(source).launch([write(visits, True), write(firsts, True), count], (grid, 1, 1))
    assert (visits == 1).all()
    assert (firsts == 1).all()


def test_indices_row_by_row() -> None:
    found = aligned(np.zeros((1000, 3), np.int32))
    source = make(functions_used("common", _INDICES) + _INDICES, 32, 0, 90)
    emulator.compile(source).launch([write(found), 1000], (1, 1, 1))
    expected = np.stack(np.unravel_index(np.arange(1000), (100, 5, 7)), -1)
    assert (found == expected).all()


@pytest.mark.parametrize("count", [4, 3])
@pytest.mark.parametrize("written", ["UnitOutput<short, 4>", "StridedOutput<short, 4>"])
@pytest.mark.parametrize(
    "read_by", ["UnitInput<short, 4>", "HalfInput<short, 4>", "StridedInput<short, 4>", "BroadcastInput<short>"]
)
def test_operands(read_by: str, written: str, count: int) -> None:
    given = aligned(np.arange(10, 22, dtype=np.int16))
    if "Unit" in read_by:
        element, values = "items[e]", given[:4].copy()
    elif "Half" in read_by:
        element, values = "items[e / 2]", given[[0, 0, 1, 1]] * (np.arange(4) // 2 < count // 2)
    elif "Strided" in read_by:
        element, values = "items[e]", given[[0, 3, 6, 9]]
    else:
        element, values = "items", given[[0, 0, 0, 0]]
    text = _OPERANDS.format(read=read_by, written=written, element=element)
    found = aligned(np.full(8, -1, np.int16))
    source = make(functions_used("common", text) + text, 32, 0, 90)
    emulator.compile(source).launch([read(given), write(found), count], (1, 1, 1))
    step = 1 if "Unit" in written else 2
    expected = np.full(8, -1, np.int16)
    expected[: count * step : step] = values[:count]
    assert found.tolist() == expected.tolist()

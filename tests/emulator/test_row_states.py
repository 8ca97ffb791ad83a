"""The states of reductions and what threads add up before (templates/common: row_state, batch, state_memory, row_columns)."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_kernels import aligned, make, read, write

from kgen import emulator
from kgen.codegen.library import functions_used
from kgen.ops.common.row_state import state_bytes

THREADS = 64

_ROW = """
using State = RowState<{state}>;
using Batches = RowBatch<{batch}>;
extern "C" __global__ void __launch_bounds__(64) row(const {ctype}* values, double* found, int length) {{
  extern __shared__ __align__(1024) unsigned char shared[];
  State state;
  for (int tile = 0; tile < length; tile += 2 * 64) {{
    reduce_batch<Batches>(state, [&](const auto& update) {{
      for (int at = tile + threadIdx.x; at < tile + 2 * 64; at += 64)
        if (at < length) update(RowElement<true>{{at}}, values[at]{more});
    }});
  }}
  {reduce}(state, reinterpret_cast<State*>(shared));
  state.complete(length);
  if (threadIdx.x == 0) {{
    {results}
  }}
}}
"""

_SIZES = """
{states}
extern "C" __global__ void sizes(int* found) {{
  {lines}
}}
"""


def launched(text: str, buffers, threads: int = THREADS, shared: int = 0) -> None:
    functions = functions_used("common", text)
    source = make(functions + text, threads, shared, 90)
    emulator.compile(source).launch(buffers, (1, 1, 1))


def row(values: np.ndarray, state: str, batch: str, members, reduce: str, more: str = "") -> list[float]:
    """The members of the state of a row of values."""
    ctype = {"f4": "float", "f8": "double", "i4": "int"}[values.dtype.str[1:]]
    results = "\n    ".join(f"found[{i}] = {member};" for i, member in enumerate(members))
    text = _ROW.format(state=state, batch=batch, ctype=ctype, reduce=reduce, results=results, more=more)
    given, found = aligned(values), aligned(np.zeros(len(members)))
    launched(text, [read(given), write(found), len(values)], shared=THREADS * 64)
    return found.tolist()


REDUCTIONS = ["reduce_block<2>", "reduce_block_sequential<64>", "reduce_block_interleaved<64>"]
DTYPES = {"float": np.float32, "double": np.float64}


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("ctype", ["float", "double"])
@pytest.mark.parametrize("length", [1, 50, 64, 129, 1000])
def test_the_largest_and_the_sum_of_exponentials(length: int, ctype: str, reduce: str) -> None:
    values = (np.random.default_rng(length).standard_normal(length) * 10).astype(DTYPES[ctype])
    of = f"{ctype}, PreciseExp"
    members = ("get<0>(state).max", "get<0>(state).sum")
    largest, total = row(values, f"SoftmaxState<{of}>", f"SoftmaxBatch<{of}>", members, reduce)
    assert largest == values.max()
    assert total == pytest.approx(np.exp(values.astype(np.float64) - values.max()).sum(), rel=1e-5)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize(
    ("length", "even"), [(1, "false"), (129, "false"), (1000, "false"), (128, "true"), (1024, "true")]
)
def test_mean_and_variance(length: int, even: str, reduce: str) -> None:
    values = (np.random.default_rng(length).standard_normal(length) + 100).astype(np.float32)
    members = ("get<0>(state).mean", "get<0>(state).variance")
    mean, variance = row(values, f"WelfordState<float, {even}>", "WelfordBatch<float>", members, reduce)
    assert mean == pytest.approx(values.mean(dtype=np.float64), rel=1e-6)
    assert variance == pytest.approx(values.var(dtype=np.float64), rel=1e-4)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("length", [1, 64, 777])
def test_states_of_several_reductions(length: int, reduce: str) -> None:
    values = np.random.default_rng(length).integers(-100, 100, length).astype(np.float32)
    kinds = ["SumState<float>", "MeanState<float>", "MaxState<float>", "MinState<float>", "ArgmaxState<float, int>"]
    members = [f"get<{i}>(state).value" for i in range(5)] + ["get<4>(state).at"]
    more = ", values[at]" * 4
    found = row(values, ", ".join(kinds), ", ".join(["DirectBatch"] * 5), members, reduce, more)
    expected = [values.sum(), values.mean(), values.max(), values.min(), values.max(), values.argmax()]
    assert found == pytest.approx([float(x) for x in expected])


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_integers_begin_below_and_above_all(reduce: str) -> None:
    values = np.array([-(2**31), -5, -(2**31)], np.int32)
    kinds, members = "MaxState<int>, MinState<int>", ["get<0>(state).value", "get<1>(state).value"]
    direct = "DirectBatch, DirectBatch"
    assert row(values, kinds, direct, members, reduce, ", values[at]") == [-5, -(2**31)]
    assert row(~values, kinds, direct, members, reduce, ", values[at]") == [2**31 - 1, 4]


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_nan_is_the_largest_and_infinities_give_none(reduce: str) -> None:
    inf, nan = np.inf, np.nan
    argmax, members = "ArgmaxState<float, int>", ["get<0>(state).at"]
    for values, at in (([1, nan, 2, nan], 1), ([-inf] * 70, 0), ([-inf] * 69 + [-1.0], 69), ([3] * 200, 0)):
        assert row(np.array(values, np.float32), argmax, "DirectBatch", members, reduce) == [at]
    of, members = "float, PreciseExp", ["get<0>(state).max", "get<0>(state).sum"]
    for values in ([-inf] * 70, [1, nan], [1, inf]):
        found = row(np.array(values, np.float32), f"SoftmaxState<{of}>", f"SoftmaxBatch<{of}>", members, reduce)
        assert np.isnan(found[1])
    found = row(np.array([-inf, 2, -inf], np.float32), f"SoftmaxState<{of}>", f"SoftmaxBatch<{of}>", members, reduce)
    assert found == [2, 1]


def test_the_size_of_a_state_is_known() -> None:
    kinds = {
        "SumState<double>": [8],
        "MaxState<float>": [4],
        "ArgmaxState<float, int>": [4, 4],
        "ArgmaxState<float, unsigned long long>": [4, 8],
        "MomentState<double>": [8, 8, 8],
        "WelfordState<float, true>": [4, 4, 4],
    }
    rows = [[a, b, c] for a in kinds for b in kinds for c in kinds]
    states = "\n".join(f"using State{i} = RowState<{', '.join(row)}>;" for i, row in enumerate(rows))
    lines = "\n  ".join(f"found[{i}] = sizeof(State{i});" for i in range(len(rows)))
    found = aligned(np.zeros(len(rows), np.int32))
    launched(_SIZES.format(states=states, lines=lines), [write(found)], 1)
    assert found.tolist() == [state_bytes([kinds[k] for k in row]) for row in rows]


_MEMORY = """
using State = RowState<MomentState<double>, ArgmaxState<float, int>, SumState<float>>;
extern "C" __global__ void __launch_bounds__(32) memory(double* sums, double* squares, double* counts, float* values, int* at,
                                                        float* totals, float* found) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const SharedStates<State, 32> states{shared};
  const GlobalStates<State, 6> partials{{sums, squares, counts, values, at, totals}};
  const int i = threadIdx.x;
  State state;
  get<0>(state) = {i + 0.25, i + 0.5, i + 0.75};
  get<1>(state).value = i;
  get<1>(state).at = i + 100;
  get<2>(state).value = i + 200;
  states.store((i + 1) % 32, state);
  __syncthreads();
  partials.store((i + 1) % 32, states.load((i + 1) % 32));
  __syncthreads();
  const State back = partials.load((i + 1) % 32);
  found[i] = static_cast<float>(get<0>(back).sum + get<0>(back).squares + get<0>(back).count + get<1>(back).value) +
             get<1>(back).at + get<2>(back).value;
}
"""


def test_states_come_back_from_memory_by_their_members() -> None:
    i = np.arange(32)
    arrays = [aligned(np.zeros(32, t)) for t in (np.float64, np.float64, np.float64, np.float32, np.int32, np.float32)]
    found = aligned(np.zeros(32, np.float32))
    launched(_MEMORY, [*(write(a) for a in arrays), write(found)], 32, 32 * 40)
    for array, offset in zip(arrays, (0.25, 0.5, 0.75, 0, 100, 200)):
        np.testing.assert_array_equal(np.roll(array, -1), i + offset)
    np.testing.assert_array_equal(found, 6 * i + 301.5)


_COLUMNS = """
constexpr int VECTORS = {vectors}, STEP = 32 * 4, PACK = 4;
extern "C" __global__ void __launch_bounds__(32) visit(int* seen, int head, int length) {{
  const int first = threadIdx.x * PACK;
  const {columns};
  for (int tile = 0; tile < {end}; tile += VECTORS * STEP)
    columns.for_each(tile, [&]({width}int v, int column) {{
      for (int e = 0; e < {count}; ++e)
        if (column + e < length) seen[column + e] += 1 + v - v;
    }});
}}
"""


@pytest.mark.parametrize("vectors", [1, 3])
@pytest.mark.parametrize("length", [5, 100, 128, 250, 384])
@pytest.mark.parametrize("kind", ["RowColumns", "RowColumnsByFour", "ShiftedColumns", "tiled ShiftedColumns"])
def test_every_column_is_one_threads(kind: str, length: int, vectors: int) -> None:
    tiled, shifted = kind.startswith("tiled") or vectors == 1, "Shifted" in kind
    head = min(3, length) if shifted else 0
    flag = "true" if tiled else "false"
    columns = f"{kind}<VECTORS, STEP, false> columns{{first, length}}"
    if shifted:
        columns = f"ShiftedColumns<VECTORS, STEP, PACK, {flag}> columns{{first, head, length}}"
    count, width = ("decltype(width)::value", "auto width, ") if shifted else ("PACK", "")
    text = _COLUMNS.format(vectors=vectors, columns=columns, end="length" if tiled else "1", width=width, count=count)
    seen = aligned(np.zeros(length, np.int32))
    launched(text, [write(seen, True), head, length], 32)
    assert seen.tolist() == [1] * length

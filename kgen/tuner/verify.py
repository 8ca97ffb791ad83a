"""The gate before timing: whether a kernel computes what its operator means, and nothing else happens.

Three sets of inputs. "integers": whole numbers so small that every order of summation is exact; where the reference proves that
(`evaluate_exactly`), results must equal it bit for bit after rounding (the sign of zero aside). "normal": standard normal
values (once more where a scalar's range ends, with its largest value, and where one only begins, with its least), judged
element by element against the float64 reference r with

    allowed = min(2 * E + 2 * ulp(r), cap)

E is the largest error of torch's own kernels in the operator's dtypes (`native`) over that output, or what the rounding of
weights comes to that a kernel of linear attention need not make (`regrouped`); ulp(r) is the spacing of the output's dtype at r.
`cap` does not trust torch: 8 ulp(r) + 64 * 2^-24 |r| + 1e-5 for pointwise graphs (2^-53 and 1e-12 in f64),
4 ulp(r) + 5% of the root mean square of r where sums are involved. At the end of the dtype's range an error that is allowed may
lead to infinity, or back. Integers must be equal; those from floats that were computed may differ by 2 E + 1. Infinities and
NaN must be where the rounded reference has them. Where a product's weights are computed and rounded to 8 bits the last bits of
a score decide between neighbours an eighth apart, which `cap` does not know: what one such rounding of the largest comes to is
allowed beside (`next_rounding`). So it is where attention's weights are rounded to 16 bits and its result is not: kernels
round exponentials, and divide by their sum afterwards. Nor does it know large values that nearly cancel, a function of a large
argument, or a condition that rounding decides: once an element is off by more, what that comes to there is allowed beside, by
a running error analysis of the graph (`kgen.numerics.rounding`).

torch adds pairwise, kernels also in runs: of f32 results with sums E is at least 2^-21 of that root mean square, some 8 ulp.
The K terms of a product they add one after another, which errs by some sqrt(K) units of roundoff of what the sum has come to
(Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019): of f32 products E is at least sqrt(K) * 2^-24
of that root mean square, with sqrt(K) ulp(r). Tensor cores do not round but cut, towards zero, after every 16 terms of 16 bits
(Fasi, Higham, Mikaitis and Pranesh, Numerical behavior of NVIDIA tensor cores, 2021; docs/notes/gate.md), which adds up: of
factors that they take K / 16 stands for sqrt(K) where it is more. Where the output is f64, so is the reference, and torch's error
no measure: `cap` alone holds for pointwise graphs, and of sums E is at least 2^-46 of that root mean square, with 8 ulp(r);
but what is made of floats that the definition computes in f32 is judged as f32 (`coarser`).

"special", on the emulator alone (see `Gate`): normal values with NaN, infinities, zeros of both signs, denormals and the
largest numbers among them, and ids at and beyond both ends. An element is right where it is, in the same sense, as one of:
the float64 reference; the same with infinity beyond the range of the dtype that each step is computed in; torch's own
result where that is infinite or NaN. Where the order of a sum decides whether it overflows, or rounding decides what is
left, an element is not judged (`evaluate_ranged`). Sums may also err by 5% of themselves, within 2 E. So NaN must come out
where it does of torch, and an infinity with its sign. External computations have such inputs where they say which
(`External.special`).

An operator of whose results none is finite, on any inputs, is refused: nothing of it would have been compared (the check
"nothing").

On the emulator every run has another order of warps, and asynchronous copies that come late, at once, or at random.

Before each run outputs are poisoned. Afterwards the guard bands and the inputs must be what they were, and repeated runs must
give equal bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kgen.dsl.errors import EmulatorError
from kgen.dsl.expr import Expr
from kgen.dsl.operator import Graph
from kgen.dsl.ops import OPS, accumulator
from kgen.dsl.problem import Problem
from kgen.dsl.types import DType, compute_dtype, f32, f64
from kgen.numerics.dtypes import round_to, torch_dtype, ulp
from kgen.numerics.operands import (
    End,
    Kind,
    guards_intact,
    ids_of,
    low_end,
    make_operands,
    poison,
    same_bits,
    scalar_values,
    special_seeds,
)
from kgen.numerics.reference import evaluate, evaluate_exactly, evaluate_ranged, native, next_rounding, regrouped
from kgen.numerics.rounding import is_narrow, is_pointwise, rounding, units_of_sum
from kgen.numerics.terms import longest_product
from kgen.tuner.execute import AnyRunner

#: Runs for each kind of inputs: on a GPU of the problem that is tuned, and of its variants; on the emulator.
GPU_REPEATS, VARIANT_REPEATS = 10, 4
EMULATOR_REPEATS = 2
#: Runs on one set of inputs end, after three, when they have taken so many seconds.
_LONG = 1.0
_CHUNK = 1 << 24


@dataclass(frozen=True)
class Verdict:
    """Whether a kernel is right, with what was seen, as JSON holds it.

    `evidence` has `max_error` and `allowed` (at the worst element) where all is well; else `check`, the check that failed
    (exact, tolerance, guards, inputs, repeats, emulator, slow, nothing), and where it did: `inputs`, `output`, `index`, `got`,
    `expected`.
    """

    ok: bool
    evidence: dict[str, Any] = field(hash=False)


@dataclass
class _Case:
    """One set of inputs with what is to come of it."""

    kind: Kind
    tensors: dict[str, Tensor]
    scalars: dict[str, float]
    saved: dict[str, Tensor]
    expected: list[Tensor]  # the rounded results where they are exact, else the reference in float64 or int64
    exact: bool
    native_errors: list[float]
    once: bool = False  # run no more than once
    #: For each result the error, at each element, that is allowed beside: other roundings of weights; where there are none, once
    #: an element was off by more than is allowed without, what `rounding` says. Or nothing.
    beside: tuple[Tensor, ...] = ()
    #: Further references that a result may agree with, and where it may be anything.
    others: list[tuple[Tensor, ...]] = field(default_factory=list)
    free: tuple[Tensor, ...] = ()
    analysed: bool = False  # `beside` has what `rounding` says


class Gate:
    """The gate for one problem: inputs, references and tolerances are made once and serve every kernel.

    Tensors have the shapes of the problem as the caller put it: where an element stands may be part of its value. Without
    `special`, and on a GPU, no inputs of that kind are among them: a GPU's compiler joins products and sums, so that other
    intermediate results overflow than in any of the references. Without `ends` no scalar is where its range only begins.
    """

    def __init__(
        self,
        problem: Problem,
        device: str | torch.device = "cpu",
        seed: int = 0,
        special: bool = True,
        ends: bool = True,
    ) -> None:
        problem = problem.origin or problem
        self.problem = problem
        #: Floats that are added in any order, by atomics, differ from run to run.
        graph = problem.graph
        scatters = (n for n in graph.nodes if OPS[n.op].kind == "scatter")
        self.unordered = graph.unordered or any(accumulator(n).is_float for n in scatters)
        made = [_make_case(problem, "integers", device, seed), _make_case(problem, "normal", device, seed)]
        if any(math.isfinite(scalar.high) for scalar in graph.scalars):
            made.append(_make_case(problem, "normal", device, seed, "high"))
        if ends and low_end(graph):
            low = _make_case(problem, "normal", device, seed, "low")
            made.append(low and replace(low, once=True))
        if torch.device(device).type != "cpu":
            special = False
        if special and any(o.dtype.is_float or o.name in ids_of(problem) for o in problem.inputs):
            made += [_make_special(problem, device, seed + i) for i in range(special_seeds(problem))]
        self.cases = [case for case in made if case]
        finite = any(bool(value.double().isfinite().any()) for case in self.cases for value in case.expected)
        self.comparable = finite or problem.empty

    def check(self, runner: AnyRunner, repeats: int | None = None, patience: float | None = None) -> Verdict:
        """Runs the kernel on all inputs and judges it. DeviceError where it faults on a GPU.

        A kernel that takes longer than `patience` seconds for one run is not looked at further: the check "slow".
        """
        if repeats is None:
            repeats = EMULATOR_REPEATS if runner.emulated else GPU_REPEATS
        seen: dict[str, Any] = {"exact": any(case.exact for case in self.cases), "repeats": repeats}
        if not self.comparable:
            told = "no result is finite, whatever the inputs: nothing can be compared"
            return Verdict(False, {"check": "nothing", "message": told})
        for case in self.cases:
            try:
                failure = self._run(case, runner, 1 if case.once else repeats, patience, seen)
            except EmulatorError as error:
                failure = {"check": "emulator", "message": str(error)[:2000]}
            if failure:
                return Verdict(False, {"inputs": case.kind, **failure})
        return Verdict(True, seen)

    def _run(
        self, case: _Case, runner: AnyRunner, repeats: int, patience: float | None, seen: dict[str, Any]
    ) -> dict[str, Any] | None:
        """What is wrong, or None."""
        outputs = {o.name: case.tensors[o.name] for o in self.problem.outputs}
        first: dict[str, Tensor] = {}
        spent = 0.0
        for run in range(repeats):
            if run >= 3 and spent > _LONG:
                seen["repeats"] = min(run, seen["repeats"])
                break
            for tensor in outputs.values():
                poison(tensor)
            runner.vary()
            begun = time.perf_counter()
            runner.run(case.tensors, case.scalars)
            runner.synchronize()
            taken = time.perf_counter() - begun
            spent += taken
            if patience is not None and taken > patience:
                return {"check": "slow", "seconds": taken, "patience": patience}
            if run == 0 or self.unordered:
                failure = self._judge(case, outputs, seen)
                if failure and not case.exact and not case.analysed:
                    found = rounding(self.problem.graph, case.tensors | case.saved, case.scalars)
                    own = case.beside or tuple(map(torch.zeros_like, found))
                    case.beside = tuple(torch.where(x > 0, x, analysed) for x, analysed in zip(own, found))
                    case.analysed = True
                    failure = self._judge(case, outputs, seen)
                if failure:
                    return failure
                first = {name: tensor.clone() for name, tensor in outputs.items()}
            for name, tensor in outputs.items() if case.exact or not self.unordered else ():
                if not same_bits(tensor, first[name]):
                    return {"check": "repeats", "output": name, "run": run + 1} | _first_difference(tensor, first[name])
        for name, tensor in case.tensors.items():
            if not guards_intact(tensor):
                return {"check": "guards", "operand": name, "message": "bytes around the operand were written"}
        for name, tensor in case.saved.items():
            if not same_bits(case.tensors[name], tensor):
                _restore(case.tensors[name], tensor)
                return {"check": "inputs", "operand": name, "message": "the input was changed"}
        return None

    def _judge(self, case: _Case, outputs: dict[str, Tensor], seen: dict[str, Any]) -> dict[str, Any] | None:
        for k, ((name, got), expected, error, operand, node) in enumerate(
            zip(outputs.items(), case.expected, case.native_errors, self.problem.outputs, self.problem.graph.results)
        ):
            if case.exact:
                wrong = ~((got == expected) | ((got != got) & (expected != expected)))
                if bool(wrong.any()):
                    return {"check": "exact", "output": name, "wrong": int(wrong.sum())} | _first_bad(
                        wrong, got, expected
                    )
                continue
            worst = (-1.0, 0.0, 0.0)
            scale = _scale(self.problem.graph, expected)
            dtype = coarser(operand.dtype, node)
            for offset, part, reference, *others in _chunks(
                got, expected, *(o[k] for o in case.others), *case.free[k : k + 1], *case.beside[k : k + 1]
            ):
                beside = others.pop() if case.beside else 0.0
                how = (operand.dtype, dtype, error, scale, case.kind == "special", beside)
                right, difference, allowed = self._compare(part, reference, *how)
                free = others.pop() if case.free else None
                for other in others:
                    right |= self._compare(part, other, *how)[0]
                wrong = ~right if free is None else ~(right | free)
                if bool(wrong.any()):
                    at = int(wrong.int().argmax())
                    return {
                        "check": "tolerance",
                        "output": name,
                        "index": _index(offset + at, got),
                        "got": _plain(part[at]),
                        "expected": _plain(reference[at]),
                        "error": _plain(difference[at]),
                        "allowed": _plain(allowed[at]),
                    }
                share = torch.where(reference.isfinite() & (allowed > 0), difference / allowed, 0.0)
                if share.numel() and case.kind != "special":
                    at = int(share.argmax())
                    worst = max(worst, (float(share[at]), float(difference[at]), float(allowed[at])))
            if worst[0] >= seen.get("share", -1.0):
                seen |= {"share": round(worst[0], 4), "max_error": worst[1], "allowed": worst[2]}
        return None

    def _compare(
        self,
        got: Tensor,
        reference: Tensor,
        stored: DType,
        dtype: DType,
        error: float,
        scale: float,
        special: bool,
        beside: Tensor | float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Where results agree with a reference; how far off they are, and may be."""
        allowed = allowed_error(reference, dtype, error, self.problem, scale) + beside
        if special and not is_pointwise(self.problem.graph):  # some are larger than others by far
            allowed = torch.maximum(allowed, (0.05 * reference.abs().double()).clamp_max(2 * error))
        rounded, own = round_to(reference, stored).to(reference.dtype), got.to(reference.dtype)
        if stored.is_float:  # what saturates is as far off as from the largest value
            beyond = reference.abs() > torch.finfo(torch_dtype(stored)).max
            difference = (own - torch.where(beyond & rounded.isfinite(), rounded, reference)).abs().double()
        else:
            difference = (own - reference).abs().double()
        right = (own == rounded) | (own == reference) | (own.isnan() & rounded.isnan())
        right |= reference.isfinite() & (difference <= allowed)
        if stored.is_float:  # an error that is allowed may be the one that leads beyond the range
            largest = torch.finfo(torch_dtype(stored)).max
            right |= own.isinf() & (own.sign() == reference.sign()) & (reference.abs() + allowed > largest)
        return right, difference, allowed


def verify(
    runner: AnyRunner,
    problem: Problem,
    *,
    device: str | torch.device = "cpu",
    seed: int = 0,
    repeats: int | None = None,
    ends: bool = True,
) -> Verdict:
    """Runs a kernel's runner on inputs made for the (normalised) problem and judges it; see the module's docstring."""
    return Gate(problem, device, seed, ends=ends).check(runner, repeats)


def _make_case(problem: Problem, kind: Kind, device: str | torch.device, seed: int, end: End = "") -> _Case | None:
    graph = problem.graph
    tensors, scalars = make_operands(problem, kind, seed, device), scalar_values(graph, kind, end)
    saved = {o.name: tensors[o.name].clone() for o in problem.inputs}
    if kind == "integers":
        exact = evaluate_exactly(graph, tensors, scalars)
        if exact is None:
            return None
        expected = [round_to(value, o.dtype) for value, o in zip(exact, problem.outputs)]
        return _Case(kind, tensors, scalars, saved, expected, True, [0.0] * len(expected))
    reference = [_numbers(r) for r in evaluate(graph, tensors, scalars)]
    errors = [_largest_error(own, value) for value, own in zip(reference, native(graph, tensors, scalars))]
    exact = regrouped(graph, tensors, scalars)
    if exact is not None:
        errors = [max(e, _largest_error(x, value)) for e, x, value in zip(errors, exact, reference)]
    beside = beside_of(graph, tensors, scalars, reference)
    return _Case(kind, tensors, scalars, saved, reference, False, errors, kind == "special", beside)


def beside_of(
    graph: Graph, tensors: dict[str, Tensor], scalars: dict[str, float], reference: list[Tensor]
) -> tuple[Tensor, ...]:
    """What other roundings of weights come to at each element of a graph's results, where they may be others."""
    other = next_rounding(graph, tensors, scalars) or ()
    return tuple((x.double() - r.double()).abs().nan_to_num(0.0, 0.0) for x, r in zip(other, reference))


def _make_special(problem: Problem, device: str | torch.device, seed: int) -> _Case | None:
    graph = problem.graph
    externals = [node.attr for node in graph.nodes if node.op == "external"]
    if externals:
        return _make_case(problem, "special", device, seed) if all(e.special for e in externals) else None
    tensors, scalars = make_operands(problem, "special", seed, device), scalar_values(graph, "special")
    saved = {o.name: tensors[o.name].clone() for o in problem.inputs}
    reference = [_numbers(r) for r in evaluate(graph, tensors, scalars)]
    ranged, free = evaluate_ranged(graph, tensors, scalars)
    limited = tuple(_numbers(r) for r in ranged)
    own = native(graph, tensors, scalars)
    torchs = tuple(torch.where(o.to(r.dtype).isfinite(), r, o.to(r.dtype)) for o, r in zip(own, limited))
    errors = [_largest_error(o, r) for o, r in zip(own, limited)]
    beside = beside_of(graph, tensors, scalars, list(limited))
    others = [limited, torchs]
    return _Case("special", tensors, scalars, saved, reference, False, errors, True, beside, others, free)


def _numbers(result: Tensor) -> Tensor:
    """A result of the reference; bools are judged as the integers 0 and 1."""
    return result.long() if result.dtype is torch.bool else result


def _largest_error(own: Tensor, reference: Tensor) -> float:
    """The largest finite difference of torch's own result to a reference."""
    found = [
        float(
            torch.where(part.to(r.dtype).isfinite(), (part.to(r.dtype) - r).abs().double(), 0.0)
            .nan_to_num(0.0, 0.0)
            .max()
        )
        for _, part, r in _chunks(own, reference)
    ]
    return max(found, default=0.0)


#: What sums err at least, in one order or another, as a share of the root mean square.
_LEAST = {f32: 2.0**-21, f64: 2.0**-46}


def coarser(dtype: DType, node: Expr) -> DType:
    """What a result is rounded to: its dtype in memory, or that in which a float that it is made of is computed, whichever has
    fewer digits.
    """
    if not dtype.is_float:
        return dtype
    found, seen, stack = dtype, set[int](), [node]
    while stack:
        at = stack.pop()
        if id(at) not in seen and at.dtype.is_float:  # comparisons and ids, whatever of, are right or wrong
            seen.add(id(at))
            stack.extend(at.args)
            if _rounds(at):
                found = min(found, compute_dtype(at.dtype), key=lambda t: t.digits)
    return found


def allowed_error(reference: Tensor, dtype: DType, native_error: float, problem: Problem, scale: float) -> Tensor:
    """The error allowed at each element of the float64 reference; `scale` is its root mean square."""
    graph = problem.graph
    if not dtype.is_float:
        rounds = any(map(_rounds, graph.nodes))
        return torch.full_like(reference, 2 * native_error + (1.0 if rounds else 0.0), dtype=torch.float64)
    spacing = ulp(reference, dtype)
    if not is_pointwise(graph):
        cap = 4 * spacing + 0.05 * scale
        native_error = max(native_error, _LEAST.get(dtype, 0.0) * scale)
        if dtype is f32:
            terms = longest_product(problem)
            in_turn = units_of_sum(terms, any(map(is_narrow, graph.nodes)))
            native_error = max(native_error, in_turn * 2.0**-24 * scale)
            spacing = max(1.0, in_turn / 2) * spacing
        if dtype is f64:  # the reference's own sums are f64: they err as much, and differently
            spacing = 4 * spacing
    else:
        whole = dtype is f64 and all(spec.dtype is f64 for spec in graph.outputs)
        digits, smallest = (53, 1e-12) if whole else (24, 1e-5)
        cap = 8 * spacing + 64 * 2.0**-digits * reference.abs() + smallest
        if dtype is f64:
            return cap
    return torch.minimum(2 * native_error + 2 * spacing, cap)


def _rounds(node: Expr) -> bool:
    """Whether a float is computed there, so that it may be rounded; comparing and choosing among floats is exact."""
    return node.dtype.is_float and OPS[node.op].exactness not in ("moved", "chosen")


def _scale(graph: Graph, reference: Tensor) -> float:
    """The root mean square of the finite values of a reference; 0 where no sum needs it."""
    if not reference.numel() or not reference.is_floating_point() or is_pointwise(graph):
        return 0.0
    finite = torch.where(reference.isfinite(), reference, 0.0)
    return math.sqrt(float(finite.square().mean()))


def _chunks(*tensors: Tensor) -> Iterator[Any]:
    """Pieces of tensors of one shape, flat, after the offset of each: bounds the memory that judging takes."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    for offset in range(0, flat[0].numel(), _CHUNK):
        yield offset, *(tensor[offset : offset + _CHUNK] for tensor in flat)


def _index(flat: int, tensor: Tensor) -> list[int]:
    index = []
    for size in reversed(tensor.shape):
        index.append(flat % size)
        flat //= size
    return index[::-1]


def _first_bad(wrong: Tensor, got: Tensor, expected: Tensor) -> dict[str, Any]:
    at = int(wrong.reshape(-1).int().argmax())
    index = _index(at, got)
    return {"index": index, "got": _plain(got[tuple(index)]), "expected": _plain(expected[tuple(index)])}


def _first_difference(got: Tensor, first: Tensor) -> dict[str, Any]:
    wrong = (got != first) & ~((got != got) & (first != first))
    return _first_bad(wrong, got, first) if bool(wrong.any()) else {}


def _plain(value: Tensor) -> float | str:
    """A number as JSON holds it; NaN and infinities as text."""
    number = float(value)
    return number if math.isfinite(number) else str(number)


def _restore(tensor: Tensor, saved: Tensor) -> None:
    """Puts an input back after a kernel changed it, so that the next kernel is judged by its own doings."""
    unique = [1 if s == 0 else n for n, s in zip(tensor.shape, tensor.stride())]
    start = tuple(slice(0, n) for n in unique)
    tensor[start].copy_(saved[start])

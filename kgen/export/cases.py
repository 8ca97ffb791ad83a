"""Cases: the problems an exported test runs: the tuned ones where they are not too large, and ragged ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kgen.dsl.ops import PRODUCTS
from kgen.dsl.problem import WIDEST_ACCESS, Operand, Problem
from kgen.export.interface import Interface
from kgen.export.launches import ServedLaunches
from kgen.export.requirements import STEPS
from kgen.export.variants import Served, axes, resized

#: The largest case, in bytes of all operands.
_LARGEST = 2**27
#: The largest that is run where nothing less would take a kernel.
_HUGE = 2**31
_PRIMES = (3, 5, 7, 11)
_ROWS, _COLUMNS = 37, 1009
_CONTRACTED = (131, 197, 83)


@dataclass(frozen=True)
class Case:
    """One call of the launch function: its problem in the caller's shapes, and the value of each symbol."""

    problem: Problem
    symbols: dict[str, int]


def cases(f: Interface) -> tuple[Case, ...]:
    """For each kernel the problem it was tuned for or a smaller one, then ragged ones that it serves.

    Of several kernels each is seen at least once, if need be at a large problem.
    """
    found: dict[str, Case] = {}
    for number, served in enumerate(f.collection.kernels):
        problems = f.collection.problems(number) or [served.origin]
        own = [c for c in (_case(served, p) for p in (_moderate(served), _ragged(served, 0), _ragged(served, 1))) if c]
        if f.decides and number not in {_chosen(f, c) for c in own}:
            own += [
                c for c in (_case(served, p) for p in sorted(problems, key=_bytes)) if c and _bytes(c.problem) <= _HUGE
            ][:1]
        for case in own:
            found.setdefault(case.problem.key, case)
    return tuple(found.values())


def _case(served: Served, problem: Problem | None) -> Case | None:
    symbols = served.symbols(problem) if problem else None
    return Case(problem, symbols) if problem and symbols is not None else None


def _chosen(f: Interface, case: Case) -> int | None:
    """The kernel that a case runs, on operands as cudaMalloc gives them."""
    whole = dict.fromkeys((o.name for o in case.problem.operands), WIDEST_ACCESS)
    return f.decision.pick({name: case.symbols[name] for name in f.symbols}, whole)


def _bytes(problem: Problem) -> int:
    """The memory that the operands of a problem take."""
    return sum(extent(o) * o.dtype.bytes for o in problem.operands)


def extent(operand: Operand) -> int:
    """The number of elements from the first to the last of an operand, gaps included."""
    return 1 + sum((n - 1) * s for n, s in zip(operand.shape, operand.strides)) if operand.elements else 0


def _moderate(served: Served) -> Problem:
    """The problem itself, with its largest sizes halved while it is too large, as far as the source serves it."""
    problem, sizes = served.origin, axes(served.origin)
    while _bytes(problem) > _LARGEST:
        name = max(sizes, key=lambda name: sizes[name])
        sizes[name] = (sizes[name] + 1) // 2
        smaller = resized(served.origin, sizes)
        if served.symbols(smaller) is None:
            break
        problem = smaller
    return problem


def _ragged(served: Served, gap: int) -> Problem | None:
    """Sizes that are no multiple of any tile, with `gap` elements between rows: small ones, else near the tuned ones."""
    near = {name: max(1, n - n // 16 - 13) if n > 1 else 1 for name, n in axes(served.origin).items()}
    return _rounded(served, _odd_sizes(served.origin), gap) or _rounded(served, near, gap)


def _rounded(served: Served, odd: Mapping[str, int], gap: int) -> Problem | None:
    """The sizes, each rounded up as little as the source allows; None where it serves none of them."""

    def rounded(steps: Mapping[str, int], pitch: int) -> Problem | None:
        sizes = {name: -(-size // steps[name]) * steps[name] for name, size in odd.items()}
        gaps = {o.name: gap for o in served.origin.operands}
        dense = isinstance(served, ServedLaunches)  # which take no other tensors
        problem = resized(served.origin, sizes, pitch=1 if dense else pitch, gaps=gaps)
        return problem if served.symbols(problem) is not None else None

    for pitch in STEPS:
        steps = dict.fromkeys(odd, pitch)
        if rounded(steps, pitch) is None:
            continue
        for name in odd:
            steps[name] = next(step for step in STEPS if rounded(steps | {name: step}, pitch) is not None)
        return rounded(steps, pitch)
    return None


def _odd_sizes(origin: Problem) -> Mapping[str, int]:
    """A small prime for every size but 1."""
    names = [name for name, size in axes(origin).items() if size != 1]
    if any(n.op in PRODUCTS for n in origin.graph.nodes):
        heads = [n for n in names if n.startswith("...")]
        inner = [n for n in names if not n.startswith("...")]
        return dict(zip(heads, _PRIMES)) | {n: _CONTRACTED[i % 3] for i, n in enumerate(inner)}
    *outer, last = names or ("",)
    rows = {name: _ROWS if i == len(outer) - 1 else _PRIMES[i % 4] for i, name in enumerate(outer)}
    return (rows | {last: _COLUMNS if outer else _ROWS * _COLUMNS}) if names else {}

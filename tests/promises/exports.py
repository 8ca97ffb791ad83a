"""What is exported of an operator in the tests: its command's own choice, at ragged sizes too."""

from __future__ import annotations

from kgen.dsl.errors import KgenError
from kgen.dsl.problem import Problem
from kgen.dsl.target import Target
from kgen.export.collection import Entry, collect
from kgen.export.project import contents
from kgen.export.variants import axes, resized
from kgen.runtime import dispatch


def ragged(of: Problem, target: Target) -> Problem:
    """The problem with every size an odd one, each another; by as much more as it takes where the operator has none."""
    for place, (name, size) in enumerate(axes(of).items()):
        for more in (2 * place + 1, 1, 2, 4, 8, 16, 32, 64, 128):
            try:
                odd = resized(of, {name: size + more})
                dispatch.default(odd, target)
            except KgenError:
                continue
            of = odd
            break
    return of


def exported(of: Problem, target: Target, fallback: bool = False) -> dict[str, str]:
    """The files that the command exports for torch where nothing is tuned, by name; in other forms they have no `fallback`."""
    choice = dispatch.choose(of, target, None)
    found = contents(collect([Entry(of, choice.config, choice.origin)], target, fallback), [target.arch], "torch")
    return {name: text for name, text in found.items() if isinstance(text, str)}

"""What is exported of an operator in the tests: its command's own choice, at ragged sizes too."""

from __future__ import annotations

from kgen.dsl.errors import KgenError
from kgen.dsl.problem import Problem
from kgen.dsl.program import program_of
from kgen.dsl.target import Target
from kgen.export.collection import Entry, collect
from kgen.export.project import contents, contents_of_launches
from kgen.export.variants import axes, resized
from kgen.runtime import dispatch


def ragged(of: Problem, target: Target) -> Problem:
    """The problem with every size an odd one, each another; by as much more as it takes where the operator has none."""
    for place, (name, size) in enumerate(axes(of).items()):
        for more in (2 * place + 1, 1, 2, 4, 8, 16, 32, 64, 128):
            try:
                odd = resized(of, {name: size + more})
                for launch in program_of(odd).launches:
                    dispatch.default(launch, target)
            except KgenError:
                continue
            of = odd
            break
    return of


def exported(of: Problem, target: Target, fallback: bool = False) -> dict[str, str]:
    """The files that the command exports for torch where nothing is tuned, by name; in other forms they have no `fallback`."""
    launches = program_of(of).launches
    choices = [dispatch.choose(launch, target, None) for launch in launches]
    entries = [Entry(launch, choice.config, choice.origin) for launch, choice in zip(launches, choices)]
    collections = [collect([entry], target, fallback) for entry in entries]
    if len(launches) == 1:
        found = contents(collections[0], [target.arch], "torch")
    else:
        found = contents_of_launches(of, collections, [target.arch], "torch")
    return {name: text for name, text in found.items() if isinstance(text, str)}

"""What every architecture claims, compiled: defaults of every dtype and layout, every value of every field."""

import itertools
import random

import pytest
from compiled import compile_for

from kgen.dsl.family import family_of
from kgen.dsl.problem import Problem
from kgen.gpu.target import resolve
from kgen.ops import operators
from kgen.tuner.space import Space

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")
#: The oldest, the one with the most schedules, the newest.
SOME = ("sm_75", "sm_90a", "sm_120")
#: Large enough for split-K, ragged against every tile.
SIZES = {"M": 200, "N": 136, "K": 1160}
MATRICES = ("hgemm", "hgemm_f16acc", "sgemm", "dgemm", "tf32gemm", "igemm", "fp8gemm", "linear_gelu", "gemm")
#: The first architectures that have their dtypes.
FIRST = {"tf32gemm": 80, "fp8gemm": 89}
#: Draws without a new value after which the valid configs are taken to have no more.
PATIENCE = 100


def problem_of(name, graph, layouts=None, few=False):
    """`few`: five rows, which gemv serves."""
    sizes = (
        {**SIZES, "M": 5} if few else SIZES if name in MATRICES else {"...": (1000,), **dict.fromkeys(graph.dims, 64)}
    )
    return family_of(graph).normalise(Problem.dense(graph, sizes, layouts))


def covering(space, seed):
    """Valid configs that together have every value that a valid config has (as far as drawing finds them)."""
    source, seen, found, misses = random.Random(seed), set(), [], 0
    while misses < PATIENCE:
        config = space.draw(source)
        new = set(config.values.items()) - seen
        misses = 0 if new else misses + 1
        if new:
            seen |= new
            found.append(config)
    return found


def assert_compile(configs, target) -> None:
    """Configs, each with its problem."""
    binaries = compile_for(target.arch, [config.source(problem) for config, problem in configs])
    for (config, _), binary in zip(configs, binaries):
        assert binary.warnings == (), (target.arch, config)
        assert binary.registers > 0, (target.arch, config)


@pytest.mark.parametrize("arch", SOME)
@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("hgemm", "MmaGemm"),
        ("sgemm", "SimtGemm"),
        ("bias_gelu", "Elementwise"),
        ("transpose", "Transpose"),
        ("hgemm", "Gemv"),
    ],
)
def test_every_value_of_every_field(name, schedule, arch, monkeypatch):
    target, graph = resolve(arch), operators()[name].graphs[0]
    problem = problem_of(name, graph, few=schedule == "Gemv")
    kind = next(s for s in family_of(graph).schedules if s.__name__ == schedule)
    monkeypatch.setattr(kind, "worth_searching", lambda problem, target: True)
    configs = covering(Space.searched(kind, problem, target), seed=7)
    seen = {(field, value) for config in configs for field, value in config.values.items()}
    assert {field for field, _ in seen} == kind.fields.keys()
    assert len(seen) >= len(kind.fields) + 8
    some = configs[SOME.index(arch) :: len(SOME)]  # the draws of the architectures are alike
    assert_compile([(config, problem) for config in some], target)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", MATRICES)
def test_the_default_of_every_dtype_and_layout(name, arch):
    target = resolve(arch)
    found = []
    for graph in operators()[name].graphs:
        matrices = [s.name for s in graph.inputs if len(s.shape.dims) == 2][:2]
        for transposed, few in itertools.product(([], matrices), (False, True)):
            problem = problem_of(name, graph, dict.fromkeys(transposed, "col"), few)
            for kind in family_of(graph).schedules:
                there = kind.target.runs_on(target.arch)
                if there and kind.applies(problem) and not unknown_there(kind, problem, target):
                    found.append((kind, problem))
    assert len(found) >= 4 if target.arch.sm >= FIRST.get(name, 75) else not found
    # A sixth of them, another one for the next architecture: each is compiled at least once.
    some = found[ARCHITECTURES.index(arch) % 6 :: 6]
    assert_compile([(kind.default(problem, target), problem) for kind, problem in some], target)


def unknown_there(kind, problem, target):
    """Whether the problem's dtypes do not exist on the target: the rule that says so decides before any field is chosen."""
    decides = kind.rules.get("dtype_of_the_target")
    return decides is not None and not decides(kind.partial({}), problem, target)

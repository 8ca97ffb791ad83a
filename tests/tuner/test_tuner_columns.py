"""Configs as columns are those of the decision diagram, with the times that the model gives each by itself."""

import random

import pytest

import kgen
from kgen.dsl.errors import ConfigError
from kgen.dsl.family import normalised
from kgen.dsl.target import TARGETS
from kgen.dsl.vector import at_least, at_most, ceil_div, chosen, each, maximum, minimum, negated, rounded, where
from kgen.tuner.best import best, by_columns
from kgen.tuner.candidates import Candidates
from kgen.tuner.columns import Labels, ProblemClass, Table, problem_class, scored, searched, table_of
from kgen.tuner.space import Space

H200, A100, T4 = (TARGETS[name] for name in ("H200", "A100-SXM4-80GB", "T4"))


def product(m, n, k, dtype="f16", layouts=None):
    return normalised(kgen.hgemm.problem(M=m, N=n, K=k, dtype=dtype, layouts=layouts))


#: What has many configs, few, none of one wave, odd rows, a transposed operand, 8 vectors.
CASES = [
    (kgen.WgmmaGemm, product(200, 2560, 4992, "bf16"), H200),
    (kgen.WgmmaGemm, product(16, 512, 4096, layouts={"b": "col"}), H200),
    (kgen.WgmmaGemm, product(1001, 333, 777), H200),
    (kgen.WgmmaGemm, normalised(kgen.hgemm.problem(M=64, N=640, K=512, leading=3)), H200),
    (kgen.Gemv, product(3, 4096, 1000), T4),
    (kgen.Gemv, product(4096, 8, 1024, layouts={"b": "col"}), H200),
    (kgen.MmaGemm, product(100, 8192, 512), A100),
    (kgen.SimtGemm, normalised(kgen.sgemm.problem(M=512, N=1024, K=64)), A100),
]


def transpose(m, n, dtype="f16", batch=1):
    return normalised(kgen.transpose.problem(M=m, N=n, dtype=dtype, leading=batch))


def embedding(rows, c, dtype="f16"):
    return normalised(kgen.embedding.problem(V=1000, C=c, dtype=dtype, leading=rows))


#: Of schedules whose search has more than a default is taken from: lines that are aligned, and not, on both sides.
SHORTLISTED = [
    (kgen.Transpose, transpose(1024, 512), H200),
    (kgen.Transpose, transpose(333, 1001, "f32", batch=3), H200),
    (kgen.Transpose, transpose(1000, 77, "i8"), A100),
    (kgen.Gather, embedding(4096, 768), H200),
    (kgen.Gather, embedding(777, 43, "f32"), T4),
]


def listed(schedule, problem, target):
    return [(t.config(row), seconds[row]) for t, seconds in scored(schedule, problem, target) for row in range(t.count)]


@pytest.mark.parametrize(("schedule", "problem", "target"), CASES[:4])
def test_columns_are_the_configs_that_a_search_considers(schedule, problem, target):
    found = [config for config, _ in listed(schedule, problem, target)]
    space = Space.searched(schedule, problem, target)
    assert len(found) == len(set(found)) == space.count > 0
    assert all(config in space for config in found)


@pytest.mark.parametrize(("schedule", "problem", "target"), CASES)
def test_a_search_has_all_that_rules_leave_whether_columns_tell_it_or_not(schedule, problem, target):
    space, modelled = searched(schedule, problem, target)
    whole = Space.searched(schedule, problem, target)
    assert space.count == whole.count > 0
    assert modelled or space.count > 300_000, "so many that no search looks at all of them"
    assert not modelled or {*modelled} == {*whole}
    for config in [*modelled][:: max(1, len(modelled) // 20)]:
        assert modelled[config] == pytest.approx(config.estimate(problem, target), rel=1e-12)


@pytest.mark.parametrize(("schedule", "problem", "target"), CASES + SHORTLISTED)
def test_columns_have_the_times_and_the_rules_of_each_config(schedule, problem, target):
    found = listed(schedule, problem, target)
    for config, seconds in random.Random(0).sample(found, min(40, len(found))):
        assert seconds == pytest.approx(config.estimate(problem, target), rel=1e-12)
        assert not config.rejections(problem, target)
    chosen_from = schedule.shortlist(problem, target)
    assert all(config in chosen_from for config, _ in found)


@pytest.mark.parametrize(("schedule", "problem", "target"), CASES + SHORTLISTED)
def test_a_default_is_the_best_of_the_columns(schedule, problem, target):
    least = min(seconds for _, seconds in listed(schedule, problem, target))
    config = schedule.default(problem, target)
    # Of the `last` fields only the best of all others have all values.
    assert least <= config.estimate(problem, target) <= 1.01 * least
    assert not config.rejections(problem, target)


@pytest.mark.parametrize("schedule", [kgen.WgmmaGemm, kgen.Gemv])
def test_a_class_serves_all_of_its_sizes(schedule):
    """What is prepared for one problem is right for the others: the same as prepared for each."""
    source = random.Random(1)
    for _ in range(6):
        m, n = (source.randint(1, 8) if schedule is kgen.Gemv else 8 * source.randint(1, 90), 64)
        k = source.choice((16, 64))  # odd multiples: all rows begin with lines of 128 bytes, or not all
        sizes = [product(m, n * source.randint(1, 99), k * source.randrange(1, 999, 2), "bf16") for _ in range(3)]
        kinds = {schedule.class_of(problem) for problem in sizes}
        assert len(kinds) == 1
        for problem in sizes:
            assert not schedule.default(problem, H200).rejections(problem, H200)


def products(source, dtype):
    sizes = (16, 40, 64, 256, 304, 1024, 1536, 2848, 4096, 8192)
    shapes = [(source.randint(1, 3000), source.choice(sizes), source.choice(sizes)) for _ in range(25)]
    return [product(*shape, dtype, source.choice((None, {"b": "col"}))) for shape in shapes]


def transposes(source, dtype):
    return [transpose(source.randint(1, 3000), source.randint(1, 3000), dtype) for _ in range(25)]


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(("schedule", "drawn"), [(kgen.WgmmaGemm, products), (kgen.Transpose, transposes)])
def test_what_is_found_once_a_class_does_not_change_a_choice(schedule, drawn, dtype, monkeypatch):
    """Shapes one after another, of a few classes, choose as where every function of a config is asked anew."""
    asked = drawn(random.Random(dtype), dtype)
    known = [by_columns(schedule, problem, H200, 32, 3) for problem in asked]
    monkeypatch.setattr(
        Table, "once", lambda table, function, rest, level: function(table.schedule.partial(table), *rest)
    )
    monkeypatch.setattr(ProblemClass, "_kept", lambda known, place, mask: known.tables[place].kept(mask))
    assert [by_columns(schedule, problem, H200, 32, 3) for problem in asked] == known


def test_classes_differ_where_rules_do():
    plain = product(512, 512, 512)
    for other in (
        product(512, 512, 512, "bf16"),
        product(512, 512, 512, layouts={"b": "col"}),
        product(512, 516, 512),
        product(512, 512, 1),
        product(512, 512, 96),
    ):
        assert kgen.WgmmaGemm.class_of(other) != kgen.WgmmaGemm.class_of(plain)
    assert kgen.WgmmaGemm.class_of(product(80, 1024, 192)) == kgen.WgmmaGemm.class_of(plain)
    assert problem_class(kgen.WgmmaGemm, product(80, 1024, 192), H200) is problem_class(kgen.WgmmaGemm, plain, H200)


def test_candidates_are_ranked_by_columns():
    problem = product(64, 640, 4992, "bf16")
    candidates = Candidates(problem, H200)
    wgmma = next(space for space in candidates.spaces if space.schedule is kgen.WgmmaGemm)
    ranking = [config for config in candidates.ranking if type(config) is kgen.WgmmaGemm]
    assert wgmma.count == len(ranking) == len(set(ranking))
    modelled = [config.estimate(problem, H200) for config in ranking]
    assert modelled == pytest.approx([candidates.estimate(config) for config in ranking], rel=1e-12)
    assert modelled == pytest.approx(sorted(modelled), rel=1e-12)
    assert all(config in wgmma for config in ranking)
    assert set(wgmma) == set(Space.searched(kgen.WgmmaGemm, problem, H200))


def test_where_nothing_is_valid_the_error_says_so():
    with pytest.raises(ConfigError, match="no WgmmaGemm config is valid"):
        best(kgen.WgmmaGemm, product(64, 64, 64), A100)
    with pytest.raises(ConfigError, match="no Gemv config is valid"):
        best(kgen.Gemv, product(64, 64, 64), A100)


def test_configs_that_are_given_make_a_table():
    problem = product(200, 2560, 4992, "bf16")
    configs = [c for c in best(kgen.WgmmaGemm, problem, H200, 40) if c.swap_ab]
    table = table_of(configs)
    assert [table.config(row) for row in range(table.count)] == configs
    seconds = kgen.WgmmaGemm.partial(table).estimate(problem, H200)
    assert list(seconds) == pytest.approx([c.estimate(problem, H200) for c in configs], rel=1e-12)


def test_arithmetic_is_the_same_of_numbers_and_of_arrays():
    np = pytest.importorskip("numpy")
    a, b = [7, 8, 9, 2**40 + 1], [2, 4, 10, 3]
    for function in (ceil_div, minimum, maximum, lambda x, y: where(x > y, x, y), lambda x, y: negated(x > y)):
        assert list(function(np.array(a), np.array(b))) == [function(x, y) for x, y in zip(a, b)]
    table = {1: 0.5, 4: 2.0}
    assert (
        list(chosen(np.array([4, 1, 3]), table, 9.0)) == [chosen(x, table, 9.0) for x in (4, 1, 3)] == [2.0, 0.5, 9.0]
    )
    values = (2, 4, 16)
    assert (
        [at_most(x, values, 1) for x in (1, 2, 5, 99)]
        == [1, 2, 4, 16]
        == list(at_most(np.array([1, 2, 5, 99]), values, 1))
    )
    assert (
        [at_least(x, values, 7) for x in (1, 2, 5, 99)]
        == [2, 2, 16, 7]
        == list(at_least(np.array([1, 2, 5, 99]), values, 7))
    )
    assert rounded(2.5) == 2 == rounded(np.array([2.5]))[0]
    assert each(divmod, 7, 2) == (3, 1)
    assert list(each(pow, np.array([2, 3]), 2)) == [4, 9]
    texts = Labels(("m", "n"), np.array([1, 0, 1], dtype=np.uint8))
    assert list(texts == "n") == [True, False, True] == list(texts != "m")
    assert not (texts == "k").any()
    assert list(chosen(texts, {"n": 3})) == [3, 0, 3]

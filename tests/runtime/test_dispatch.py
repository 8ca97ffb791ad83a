"""Which config a call gets: tuned, nearest, default; and the warnings on the way. No GPU: the choice is made for a named one."""

import os
import re
import warnings
from collections import Counter
from dataclasses import replace

import pytest

import kgen
from kgen import ConfigError, KgenWarning, Tensor, dims, f16
from kgen.codegen.template_schedule import enumerate_space
from kgen.dsl.family import family_of
from kgen.dsl.target import TARGETS
from kgen.ops.scatter import ScatterAdd, ScatterRows
from kgen.runtime import dispatch
from kgen.tuner import records
from kgen.tuner.candidates import Candidates
from kgen.tuning_db import TrialRecord, open_store

H200, A10, T4 = TARGETS["H200"], TARGETS["A10"], TARGETS["T4"]
N = dims("N")[0]


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "tuning.sqlite") as opened:
        yield opened


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    """Nothing comes with kgen but what a test ships."""
    monkeypatch.setattr(dispatch, "shipped", lambda gpu, digest, sizes: ())


def ship(monkeypatch, store, gpu=H200):
    """Ships all that is in the store for one GPU, as a pack is read: none of it verified here."""
    facts = records.gpu_facts(gpu)
    packed = tuple(
        replace(record, trial=replace(record.trial, verified=False)) for record in store.all_best(facts, "measured")
    )

    def shipped(asked, digest, sizes):
        known = (r for r in packed if asked.same_card(facts) and r.problem.digest == digest)
        return tuple(r for r in known if r.problem.sizes == sizes)

    monkeypatch.setattr(dispatch, "shipped", shipped)


@pytest.fixture(autouse=True)
def forgetful(monkeypatch):
    monkeypatch.setattr(dispatch, "_warned", set())
    monkeypatch.setattr(dispatch, "_suggested", Counter())
    dispatch.forget()
    yield
    dispatch.forget()


def normal(problem):
    return family_of(problem.graph).normalise(problem)


def another(problem, target, skip=0):
    """A valid config that is not the default, by the model nearly as fast."""
    default = dispatch.default(problem, target).config
    configs = (c for c in Candidates(normal(problem), target).ranking if c != default)
    for _ in range(skip):
        next(configs)
    return next(configs)


def put(store, problem, target, config, measured=True, digest=None, gain=None, **changes):
    """Stores `config` as the best of `problem`, `gain` times as fast as the default."""
    problem = normal(problem)
    times = {"seconds": 1e-5, "lower": 1e-5, "upper": 1e-5, "samples": 9} if measured else {"modelled_seconds": 1e-5}
    values = {"status": "ok", "origin": "measured" if measured else "modelled", **times, **changes}
    trial = TrialRecord(records.config_text(config), source_digest=digest or config.source(problem).digest, **values)
    number = store.add_trial(records.gpu_facts(target), records.toolchain(), records.problem_key(problem), trial)
    store.set_best(number, {} if gain is None else {"speedup_over_default": gain})
    return number


def test_without_a_database_the_default_serves():
    problem = kgen.hgemm.problem(M=512, N=512, K=512)
    choice = dispatch.choose(problem, H200, None)
    assert choice.how == "default"
    assert choice.config in [
        s.default(normal(problem), H200) for s in family_of(problem.graph).schedules if s.applies(normal(problem))
    ]
    assert not choice.config.rejections(normal(problem), H200)


def test_the_best_known_config_serves(store):
    problem = kgen.gelu.problem(leading=4096)
    config = another(problem, H200)
    put(store, problem, H200, config)
    choice = dispatch.choose(problem, H200, store)
    assert (choice.how, choice.config) == ("tuned", config)
    assert choice.record.trial.seconds == 1e-5
    assert re.fullmatch(r"measured on H200, \d{4}-\d\d-\d\d", choice.origin)
    assert re.fullmatch(r"tuned: measured on H200, .*, by kgen [\d.]+", choice.told)


def test_measured_comes_before_modelled(store):
    problem = kgen.gelu.problem(leading=4096)
    measured, modelled = another(problem, H200, 3), another(problem, H200, 5)
    put(store, problem, H200, modelled, measured=False)
    assert dispatch.choose(problem, H200, store).config == modelled
    put(store, problem, H200, measured)
    assert dispatch.choose(problem, H200, store).config == measured


def test_the_nearest_shape_serves_where_its_config_is_valid(store):
    near, far = kgen.gelu.problem(leading=2**20), kgen.gelu.problem(leading=2**12)
    default = dispatch.default(near, H200).config
    first, second = default.replace(store="streaming"), default.replace(load="no_allocate")
    put(store, near, H200, first)
    put(store, far, H200, second)
    for size, expected in ((2**19, first), (2**21, first), (2**13, second), (2**11, second)):
        choice = dispatch.choose(kgen.gelu.problem(leading=size), H200, store)
        assert (choice.how, choice.config) == ("nearest", expected)
    # What was worth nothing there is not looked at for a shape that is far.
    assert dispatch.choose(kgen.gelu.problem(leading=2**23), H200, store).how == "default"


def test_a_nearest_config_that_breaks_a_rule_is_passed_over(store):
    tuned = kgen.gelu.problem(leading=2**20)
    wide = next(c for c in enumerate_space(type(another(tuned, H200)), normal(tuned), H200) if c.pack == 8)
    put(store, tuned, H200, wide)
    problem = normal(kgen.gelu.problem(leading=2**20))
    assert dispatch.choose(problem, H200, store).config == wide
    misaligned = problem.collapsed(
        [type(o)(o.name, o.dtype, o.shape, o.strides, 2) for o in problem.operands], problem.leading, problem.sizes
    )
    choice = dispatch.choose(misaligned, H200, store)
    assert choice.how == "default"
    assert choice.config.pack == 1


def test_a_nearest_config_that_the_model_finds_slow_is_passed_over(store):
    tuned, few = kgen.hgemm.problem(M=4096, N=4096, K=4096), kgen.hgemm.problem(M=16, N=4096, K=4096)
    put(store, tuned, H200, dispatch.default(tuned, H200).config)
    choice = dispatch.choose(few, H200, store)
    assert (choice.how, choice.config) == ("default", dispatch.default(few, H200).config)


def test_a_nearest_config_may_cost_by_the_model_what_it_gained_and_less_from_afar(store):
    tuned, near, far = (kgen.hgemm.problem(M=4096, N=4096, K=K) for K in (4096, 4608, 8192))

    def modelled(config, problem):
        shortest = dispatch.default(problem, H200).config.estimate(normal(problem), H200)
        return config.estimate(normal(problem), H200) / shortest

    ranking = Candidates(normal(tuned), H200).ranking
    config = next(c for c in ranking if all(1.01 < modelled(c, p) < 1.1 for p in (near, far)))
    from_near, from_far = modelled(config, near) ** 1.125, modelled(config, far) ** 2  # shapes so many times apart
    assert from_near < from_far
    for gain, served in (
        (1.0, [0, 0]),
        (0.999 * from_near, [0, 0]),
        (1.001 * from_near, [1, 0]),
        (1.001 * from_far, [1, 1]),
    ):
        put(store, tuned, H200, config, gain=gain)
        found = [dispatch.choose(p, H200, store) for p in (near, far)]
        assert [choice.how == "nearest" and choice.config == config for choice in found] == served


def test_other_gpus_operators_dtypes_and_layouts_are_none_of_it(store):
    problem = kgen.hgemm.problem(M=512, N=512, K=512)
    put(store, problem, H200, another(problem, H200), gain=1.1)
    assert dispatch.choose(problem, H200, store).how == "tuned"
    assert dispatch.choose(problem, A10, store).how == "default"
    assert dispatch.choose(kgen.hgemm.problem(M=512, N=512, K=512, dtype="bf16"), H200, store).how == "default"
    assert dispatch.choose(kgen.hgemm.problem(M=512, N=512, K=512, layouts={"b": "col"}), H200, store).how == "default"
    assert dispatch.choose(kgen.hgemm_f16acc.problem(M=512, N=512, K=512), H200, store).how == "default"
    assert dispatch.choose(kgen.hgemm.problem(M=512, N=512, K=528), H200, store).how == "nearest"


def test_a_result_whose_kernel_has_changed_since_counts_as_near(store):
    problem = kgen.gelu.problem(leading=4096)
    put(store, problem, H200, another(problem, H200), digest="0123456789abcdef")
    assert dispatch.choose(problem, H200, store).how == "nearest"


def test_unverified_results_are_not_used(store):
    problem = kgen.gelu.problem(leading=4096)
    config = another(problem, H200)
    number = put(store, problem, H200, config, verified=False)
    assert dispatch.choose(problem, H200, store).how == "default"
    store.mark_verified(number)
    assert dispatch.choose(problem, H200, store).config == config


def test_what_comes_with_kgen_serves_its_problem_on_its_card(monkeypatch, store):
    problem = kgen.hgemm.problem(M=4096, N=4096, K=4096)
    config = another(problem, H200)
    put(store, problem, H200, config)
    ship(monkeypatch, store)
    choice = dispatch.choose(problem, H200, None)
    assert (choice.config, choice.how) == (config, "shipped")
    assert dispatch.choose(problem, A10, None).how == "default"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monkeypatch.setenv("KGEN_DATABASE", "there-is-none.sqlite")
        assert dispatch.serve(problem, H200).config == config


@pytest.mark.parametrize("layouts", [{}, {"b": "col"}], ids=["NN", "TN"])
def test_the_suite_of_products_comes_tuned_for_an_h200(monkeypatch, layouts):
    from kgen.ops.gemm.problem import suites
    from kgen.tuning_db import shipped
    from kgen.tuning_db.packs import _Shipped

    facts, graphs = records.gpu_facts(H200), kgen.hgemm.definition.graphs
    packed = [found for graph in graphs for found in _Shipped(facts).bests(graph.digest).values()]
    assert all(records.read_config(record.trial.config) for found in packed for record in found)
    monkeypatch.setattr(dispatch, "shipped", shipped)
    for sizes in suites(graphs[0])["gemm"]:
        assert dispatch.choose(kgen.hgemm.problem(sizes, layouts=layouts), H200, None).how != "default", sizes


def test_what_was_tuned_here_comes_before_what_is_shipped(monkeypatch, tmp_path, store):
    problem, other = kgen.hgemm.problem(M=4096, N=4096, K=4096), kgen.hgemm.problem(M=4096, N=4096, K=8192)
    config = another(problem, H200)
    put(store, problem, H200, another(problem, H200, skip=1))
    ship(monkeypatch, store)
    with open_store(tmp_path / "here.sqlite") as here:
        put(here, other, H200, config)
        assert dispatch.choose(problem, H200, here).how == "shipped"  # not the nearest of those tuned here
        put(here, problem, H200, config, measured=False)
        assert dispatch.choose(problem, H200, here).how == "shipped"  # which was measured
        put(here, problem, H200, config)
        choice = dispatch.choose(problem, H200, here)
    assert (choice.config, choice.how) == (config, "tuned")


def test_a_shipped_result_whose_kernel_has_changed_since_serves_its_own_shape_still(monkeypatch, store):
    problem = kgen.hgemm.problem(M=4096, N=4096, K=4096)
    config = another(problem, H200)
    put(store, problem, H200, config, digest="0" * 16)
    ship(monkeypatch, store)
    choice = dispatch.choose(problem, H200, None)
    assert (choice.config, choice.how) == (config, "nearest")
    assert dispatch.choose(kgen.hgemm.problem(M=4224, N=4096, K=4096), H200, None).how == "default"


@pytest.mark.parametrize("text", ["Elementwise(pack=3)", "NoSuch(a=1)", "not a config", "__import__('os')"])
def test_a_stored_text_that_is_no_config_is_passed_over(store, text):
    problem = kgen.gelu.problem(leading=4096)
    good = records.config_text(another(problem, H200))
    number = put(store, problem, H200, another(problem, H200))
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE configs SET text = ?", (text,))
    store.refresh()
    assert dispatch.choose(problem, H200, store).how == "default"
    assert number
    assert good.text != text


def test_what_only_tuning_may_choose_is_no_default():
    problem = kgen.embedding_backward.problem(N=64, V=100, C=32)
    problem = family_of(problem.graph).normalise(problem)
    assert ScatterRows.applies(problem)
    assert isinstance(dispatch.default(problem, H200).config, ScatterAdd)
    candidates = Candidates(problem, H200)
    assert isinstance(candidates.default, ScatterAdd)
    assert ScatterRows in map(type, candidates.ranking)


def test_no_schedule_for_an_old_gpu():
    with pytest.raises(ConfigError, match=r"no config serves fp8gemm.* on T4"):
        dispatch.choose(kgen.fp8gemm.problem(M=64, N=64, K=64), T4, None)
    assert dispatch.choose(kgen.hgemm.problem(M=64, N=64, K=64, dtype="bf16"), A10, None).how == "default"


def test_a_config_of_another_family_is_refused():
    config = dispatch.choose(kgen.gelu.problem(leading=64), H200, None).config
    with pytest.raises(ConfigError, match=r"Elementwise\(.*does not serve hgemm.*MmaGemm"):
        dispatch.check(config, normal(kgen.hgemm.problem(M=64, N=64, K=64)), H200)


def serve(problem, target=H200):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        choice = dispatch.serve(problem, target)
    return choice, [w for w in caught if w.category is KgenWarning]


def test_one_warning_for_each_untuned_problem_names_the_command(monkeypatch, tmp_path):
    monkeypatch.setenv("KGEN_DATABASE", str(tmp_path / "tuning.sqlite"))
    _, first = serve(kgen.hgemm.problem(M=100, N=200, K=300, layouts={"b": "col"}))
    (warning,) = first
    assert "kgen tune hgemm --shape M=100,K=300,N=200 --dtype f16 --transposed b" in str(warning.message)
    assert "not tuned for H200" in str(warning.message)
    assert warning.filename == __file__
    assert serve(kgen.hgemm.problem(M=100, N=200, K=300, layouts={"b": "col"}))[1] == []
    assert len(serve(kgen.hgemm.problem(M=101, N=200, K=300))[1]) == 1


def test_the_warning_tells_the_nearest_shape_and_a_tuned_one_gives_none(monkeypatch, tmp_path):
    monkeypatch.setenv("KGEN_DATABASE", str(tmp_path / "tuning.sqlite"))
    problem = kgen.hgemm.problem(M=512, N=512, K=512)
    with open_store(tmp_path / "tuning.sqlite") as store:
        put(store, problem, H200, another(problem, H200), gain=1.2)
    assert serve(problem)[1] == []
    choice, (warning,) = serve(kgen.hgemm.problem(M=512, N=512, K=1024))
    assert choice.how == "nearest"
    assert "tuned for M=512, N=512, K=512" in str(warning.message)


def test_the_warning_for_an_operator_of_the_user_names_the_call():
    @kgen.operator
    def mine(x: Tensor[f16, ..., N]) -> Tensor[f16, ..., N]:
        return x * 2

    _, (warning,) = serve(mine.problem(leading=(2, 3), N=128))
    assert "kgen.tune(mine, N=128, leading=(2, 3), dtype='f16')" in str(warning.message)


def test_an_operator_of_the_user_with_a_shipped_name_is_not_the_shipped_one():
    @kgen.operator
    def gelu(x: Tensor[f16, ..., N]) -> Tensor[f16, ..., N]:
        return x * 2

    _, (warning,) = serve(gelu.problem(leading=8, N=128))
    assert "kgen.tune(gelu, N=128" in str(warning.message)


def test_no_database_is_made_by_asking(monkeypatch, tmp_path):
    monkeypatch.delenv("KGEN_DATABASE", raising=False)
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path / "cache"))
    assert dispatch.default_store() is None
    assert serve(kgen.gelu.problem(leading=64))[0].how == "default"
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("kind", ["corrupt", "folder", "malformed", "foreign"])
def test_a_database_that_cannot_be_read_costs_one_warning(monkeypatch, tmp_path, kind):
    path = tmp_path / "tuning.sqlite"
    if kind == "corrupt":
        path.write_bytes(b"not a database" * 1000)
    elif kind == "folder":
        path.mkdir()
    elif kind == "foreign":
        import sqlite3

        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE mine (a)")
    monkeypatch.setenv("KGEN_DATABASE", "nosuch://x" if kind == "malformed" else str(path))
    before = path.read_bytes() if path.is_file() else None
    choice, caught = serve(kgen.gelu.problem(leading=64))
    assert choice.how == "default"
    assert sorted(("database" in str(w.message), "not tuned" in str(w.message)) for w in caught) == [
        (False, True),
        (True, False),
    ]
    assert len(serve(kgen.gelu.problem(leading=128))[1]) == 1  # that it is not tuned; the database was told of
    assert before is None or path.read_bytes() == before


def test_a_database_that_breaks_later_costs_one_warning(monkeypatch, tmp_path):
    path = tmp_path / "tuning.sqlite"
    monkeypatch.setenv("KGEN_DATABASE", str(path))
    open_store(path).close()
    assert dispatch.default_store() is not None
    path.write_bytes(b"x" * 10000)
    choice, caught = serve(kgen.gelu.problem(leading=64))
    assert choice.how == "default"
    assert any("read the tuning database" in str(w.message) for w in caught)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_database_without_permission_costs_one_warning(monkeypatch, tmp_path):
    path = tmp_path / "tuning.sqlite"
    open_store(path).close()
    path.chmod(0)
    monkeypatch.setenv("KGEN_DATABASE", str(path))
    assert dispatch.default_store() is None


def test_a_few_shapes_of_an_operator_are_warned_of():
    problems = [kgen.hgemm.problem(M=8 * i, N=512, K=256) for i in range(1, 12)]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for problem in problems:
            dispatch.serve(problem, H200)
    told = [str(w.message) for w in seen if "is not tuned" in str(w.message)]
    assert len(told) == 8
    assert [("of further shapes nothing is said" in text) for text in told] == [False] * 7 + [True]

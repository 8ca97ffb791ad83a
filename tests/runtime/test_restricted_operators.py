"""Operators with a tiling space: defined, pinned, called, tuned and dispatched within it, on the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import kgen
from kgen import Tensor, choice, dims, f16, f32
from kgen.dsl.errors import ArgumentError, ConfigError, DefinitionError
from kgen.dsl.family import family_of, schedules
from kgen.gpu.target import resolve
from kgen.runtime import dispatch
from kgen.tuner.budget import Budget
from kgen.tuner.records import config_text, gpu_facts, problem_key, toolchain
from kgen.tuner.tune import tune
from kgen.tuning_db import Store, TrialRecord, open_store

M, N, K = dims("M N K")
H200 = resolve("H200")


@kgen.operator(space=kgen.MmaGemm.where(BM=(64, 128), stages=(3, 4), swizzle="xor"))
def ffn(x: Tensor[f16, M, K], w: Tensor[f16, K, N]) -> Tensor[f16, M, N]:
    return kgen.gelu(x @ w)


class Tall(kgen.Elementwise):
    threads = choice(1024, 128)


@kgen.operator(schedules=[Tall])
def tall(x: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
    return x * 2


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "tuning.sqlite") as opened:
        yield opened


def test_calls_run_with_configs_of_the_space() -> None:
    x, w = torch.randn(33, 40).half(), torch.randn(40, 24).half()
    expected = torch.nn.functional.gelu(x.double() @ w.double())
    for operator in (ffn, ffn.using(BM=128, stages=4), ffn.using(kgen.MmaGemm.where(BM=64))):
        torch.testing.assert_close(operator(x, w).double(), expected, rtol=2e-3, atol=2e-3)
    assert "MmaGemm(instruction='mma', BM=128," in ffn.using(BM=128).source(M=64, N=64, K=64, target="H200")
    assert torch.equal(tall(x.float()), x.float() * 2)
    assert "Tall(" in tall.source(M=4, N=4, target="H200")


def test_pins_compose_and_leave_the_operator_as_it_was() -> None:
    fast = ffn.using(BM=128).using(stages=4)
    assert str(fast.restriction) == "MmaGemm(BM=64|128, stages=3|4, swizzle='xor'), BM=128, stages=4"
    assert repr(fast).endswith(f"of {fast.restriction}>")
    assert str(ffn.restriction) == "MmaGemm(BM=64|128, stages=3|4, swizzle='xor')"
    found = dispatch.default(fast.problem(M=256, N=256, K=256), H200, fast.restriction).config
    assert (found.BM, found.stages, found.swizzle) == (128, 4, "xor")
    assert fast.using(found).pinned == found


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda: ffn.using(BM=256), r"BM=256 is not in MmaGemm\(BM=64\|128"),
        (lambda: ffn.using(kgen.WgmmaGemm), "ffn has no WgmmaGemm; it is restricted to MmaGemm"),
        (lambda: ffn.using(TM=4), "MmaGemm has no field TM"),
        (lambda: ffn.using("MmaGemm(BM=64)", stages=3), "a whole config leaves stages no choice"),
        (lambda: kgen.gelu.using(kgen.MmaGemm), "MmaGemm does not serve gelu; expected one of Elementwise"),
        (lambda: kgen.gelu.using([]), "expected one or several schedules, each once, got none"),
        (lambda: kgen.gelu.using([int]), "a space is a schedule such as kgen.MmaGemm"),
        (lambda: kgen.gelu.using(None), "a config is a Schedule or its printed form, got NoneType"),
    ],
)
def test_wrong_pins_are_refused_by_name(use, told: str) -> None:
    with pytest.raises((ConfigError, DefinitionError), match=told):
        use()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"space": kgen.MmaGemm}, "MmaGemm does not serve double"),
        ({"space": 3}, "a space is a schedule such as kgen.MmaGemm"),
        ({"schedules": [kgen.Elementwise, kgen.Elementwise]}, "each once, got Elementwise, Elementwise"),
        ({"space": kgen.Elementwise, "schedules": [kgen.Elementwise]}, "space and schedules were both given"),
        ({"schedules": [type("Transpose", (kgen.Elementwise,), {})]}, "a schedule named Transpose comes with kgen"),
    ],
)
def test_wrong_definitions_name_the_line(options, told: str) -> None:
    def double(x: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
        return x * 2

    with pytest.raises(DefinitionError, match=told) as error:
        kgen.operator(**options)(double)
    assert "test_restricted_operators.py:" in str(error.value)


def test_an_empty_space_says_which_rule_emptied_it() -> None:
    empty = kgen.hgemm.using(kgen.MmaGemm.where(BM=256, BN=256, BK=128, stages=5))
    with pytest.raises(ConfigError, match=r"MmaGemm\(.*\) is emptied by registers_of_the_block"):
        empty(torch.zeros(8, 8).half(), torch.zeros(8, 8).half())


def measured(config, source_digest: str) -> TrialRecord:
    times = dict.fromkeys(("seconds", "lower", "upper"), 1e-6)
    return TrialRecord(config_text(config), "ok", "measured", source_digest=source_digest, samples=9, **times)


def test_what_is_found_in_a_space_is_never_the_best_of_the_whole(store: Store) -> None:
    problem = family_of(kgen.gelu.definition.graphs[0]).normalise(kgen.gelu.problem(leading=1 << 20))
    narrow = kgen.gelu.using(threads=512)
    run = {"target": H200, "store": store, "device": None, "budget": Budget.parse("4")}
    within = narrow.restriction.within(problem, H200)
    outcome = tune(problem, within=within, **run)
    assert outcome.config.threads == 512
    key, gpu = problem_key(problem), gpu_facts(H200)
    assert store.best(key, gpu) is None
    assert dispatch.choose(problem, H200, store).how == "default"
    found = dispatch.choose(problem, H200, store, narrow.restriction)
    assert (found.config, found.how) == (outcome.config, "tuned")
    # The space of another pin is another; and what is known of this one is known.
    assert dispatch.choose(problem, H200, store, kgen.gelu.using(threads=256).restriction).config.threads == 256
    assert tune(problem, within=within, **run).cached
    # The best of the whole is not taken where it is outside; where it is inside it is the best there too.
    for config in (outcome.config.replace(threads=128), outcome.config.replace(items=2)):
        stored = measured(config, config.source(problem).digest)
        store.set_best(store.add_trial(gpu, toolchain(), key, stored))
        assert dispatch.choose(problem, H200, store).config == config
        chosen = dispatch.choose(problem, H200, store, kgen.gelu.using(threads=512, items=2).restriction)
        assert (chosen.how == "tuned") == (config.threads == 512)
        assert chosen.config.threads == 512


def test_a_schedule_of_ones_own_is_stored_and_read_by_its_name(store: Store) -> None:
    problem = family_of(tall.definition.graphs[0]).normalise(tall.problem(M=64, N=64))
    within = tall.restriction.within(problem, H200)
    outcome = tune(problem, target=H200, store=store, device=None, budget=Budget.parse("2"), within=within)
    assert type(outcome.config) is Tall
    # Another of its name, as from another file, changes nothing for this operator.
    kgen.gelu.using(type("Tall", (kgen.Elementwise,), {}))
    assert schedules()["Tall"] is not Tall
    assert dispatch.choose(problem, H200, store, tall.restriction).config == outcome.config
    assert not isinstance(dispatch.choose(problem, H200, store).config, Tall)


def test_a_template_of_ones_own_serves_its_operator_alone(tmp_path: Path) -> None:
    (tmp_path / "twice.cu.j2").write_text(
        """extern "C" __global__ void {{ entry }}({{ signature }}) {
  const long long i = blockIdx.x * {{ config.threads }}ll + threadIdx.x;
  if (i < M * N) out[i / N * out_s0 + i % N * out_s1] = factor * x[i / N * x_s0 + i % N * x_s1];
}
"""
    )

    class Twice(kgen.TemplateSchedule):
        template = str(tmp_path / "twice.cu.j2")
        threads = choice(64, 128)

        def launch(self, problem):
            return kgen.Launch((kgen.ceil_div(M * N, self.threads), 1, 1), (self.threads, 1, 1))

    @kgen.operator(schedules=[Twice])
    def twice(x: Tensor[f32, M, N], factor: float = 2.0) -> Tensor[f32, M, N]:
        return x * factor

    (tmp_path / "twice.cu.j2").rename(tmp_path / "moved")
    with pytest.raises(DefinitionError, match=r"cannot read the template .*twice\.cu\.j2"):
        twice.source(M=4, N=4)
    (tmp_path / "moved").rename(tmp_path / "twice.cu.j2")
    x = torch.randn(5, 60)[:, ::2]
    for operator in (twice, twice.using(threads=128)):
        assert torch.equal(operator(x), x * 2)
        assert torch.equal(operator(x, factor=3.0), x * 3)
    assert "Twice(threads=128)" in twice.using(threads=128).source(M=4, N=4)
    assert torch.equal(tall(x), x * 2)
    with pytest.raises(ConfigError, match="Twice: threads=32 is outside its domain 64, 128"):
        twice.using(threads=32)
    with pytest.raises(ConfigError, match="does not serve"):
        tall.using(Twice(threads=64))(x)
    with pytest.raises(ArgumentError):
        twice(x.double())

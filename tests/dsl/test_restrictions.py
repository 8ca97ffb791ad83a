"""Search spaces and restrictions: what they hold, that they compose, and wrong uses refused by name."""

from __future__ import annotations

import itertools

import pytest

import kgen
from kgen.dsl.choice import choice, rule
from kgen.dsl.errors import ConfigError, DefinitionError
from kgen.dsl.family import family_of
from kgen.dsl.restriction import UNRESTRICTED
from kgen.dsl.schedule import SearchSpace
from kgen.gpu.target import resolve
from kgen.tuner.candidates import Candidates
from kgen.tuner.space import Space

H200 = resolve("H200")
GRAPH = kgen.hgemm.definition.graphs[0]


def normal(**sizes: int):
    problem = kgen.hgemm.problem(**{"M": 512, "N": 512, "K": 512, **sizes})
    return family_of(problem.graph).normalise(problem)


class Square(kgen.MmaGemm):
    BM = choice(96, 192)
    BN = choice(96, 192)

    @rule
    def square(self, problem, target):
        """tiles are square here"""
        return self.BM == self.BN


def test_a_space_is_named_by_what_it_changes() -> None:
    space = kgen.MmaGemm.where(stages=3, BM=(128, 64), swizzle="xor")
    assert str(space) == "MmaGemm(BM=64|128, stages=3, swizzle='xor')"
    assert space == kgen.MmaGemm.where(BM=(64, 128, 64), swizzle=["xor"]).where(stages=(3,))
    assert hash(space) == hash(kgen.MmaGemm.where(BM=(64, 128), stages=3, swizzle="xor"))
    assert space.fields["BM"] == (64, 128)
    assert space.fields["BN"] == kgen.MmaGemm.fields["BN"].values
    assert str(kgen.MmaGemm.where()) == "MmaGemm()"


def test_a_space_holds_just_the_valid_configs_with_its_values() -> None:
    space = kgen.MmaGemm.where(BM=(64, 128), BN=64, BK=32, WM=32, WN=32, pack=8, blocks_per_sm=1, group=1, raster="m")
    found = list(Space.valid(space, normal(), H200))
    whole = kgen.MmaGemm.where(BN=64, BK=32, WM=32, WN=32, pack=8, blocks_per_sm=1, group=1, raster="m")
    assert found == [config for config in Space.valid(whole, normal(), H200) if config in space]
    assert found
    assert {config.values["BM"] for config in found} == {64, 128}
    assert kgen.WgmmaGemm.default(normal(), H200) not in space


def test_values_beside_the_domain_are_there_for_who_asks() -> None:
    assert 96 not in kgen.MmaGemm.fields["BM"].values
    space = kgen.MmaGemm.where(BM=96)
    config = next(iter(Space.valid(space, normal(), H200)))
    assert (config.BM, config in space) == (96, True)
    assert 96 not in {c.BM for c in itertools.islice(Space.valid(kgen.MmaGemm, normal(), H200), 100)}
    assert kgen.dsl.config_text.parse_config(repr(config), {"MmaGemm": kgen.MmaGemm}) == config


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"BX": 64}, "MmaGemm has no field BX; its fields are instruction, BM, "),
        ({"BM": 100}, "MmaGemm: BM=100 is outside its domain 64, 16, .*; its template also takes 16, 32, ... 256"),
        ({"BM": (64, 1 << 70)}, "BM=1180591620717411303424 is outside its domain"),
        ({"swizzle": "none"}, "swizzle='none' is outside its domain 'xor', 'pad'$"),
        ({"stages": True}, "stages=True is outside its domain"),
        ({"stages": ()}, "stages is given no value"),
        ({"stages": None}, "stages=None is outside its domain"),
        ({"stages": [[3]]}, r"stages=\[3\] is outside its domain"),
    ],
)
def test_wrong_fields_and_values_are_refused(fields: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        kgen.MmaGemm.where(**fields)


def test_a_space_is_only_narrowed() -> None:
    space = kgen.MmaGemm.where(BM=(64, 128))
    assert space.where(BM=64) == kgen.MmaGemm.where(BM=64)
    with pytest.raises(ConfigError, match=r"BM=256 is not in MmaGemm\(BM=64\|128\)"):
        space.where(BM=256)


def test_a_subclass_has_configs_of_its_own_with_rules_added() -> None:
    found = list(itertools.islice(Space.valid(Square, normal(), H200), 50))
    assert {type(config) for config in found} == {Square}
    assert all(config.BM == config.BN in (96, 192) for config in found)
    broken = found[0].replace(BM=288 - found[0].BM).broken(normal(), H200)
    assert "square: tiles are square here" in map(str, broken)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"depth": choice(1, 2)}, "Mine has the field depth, which gemm_mma.cu.j2 of MmaGemm does not know"),
        ({"BM": choice(64, 100)}, "Mine: MmaGemm: BM=100 is outside its domain"),
        ({"swizzle": choice("none")}, "swizzle='none' is outside"),
    ],
)
def test_a_subclass_asks_for_what_its_template_knows(body: dict[str, object], told: str) -> None:
    with pytest.raises(DefinitionError, match=told):
        type("Mine", (kgen.MmaGemm,), body)


def test_a_space_that_is_empty_for_a_problem_names_the_rule_that_emptied_it() -> None:
    for space, told in (
        (kgen.MmaGemm.where(BM=256, BN=256, BK=128, stages=5), "is emptied by registers_of_the_block: accumulators"),
        (kgen.Gemv.where(), r"Gemv\(\) is emptied by applies: Gemv does not serve"),
    ):
        with pytest.raises(ConfigError, match=told):
            Candidates(normal(), H200, within=[space])
    with pytest.raises(ConfigError, match=r"WgmmaGemm\(\) is emptied by target: WgmmaGemm needs sm_90a"):
        Candidates(normal(), resolve("A100-SXM4-80GB"), within=[SearchSpace(kgen.WgmmaGemm)])


def test_what_a_search_considers_of_a_space_that_is_named() -> None:
    """Rules that prune hold unless nothing is left: who names a technique wants it."""
    pruned = kgen.WgmmaGemm.where(pdl=False)
    assert not any(config in pruned for config in Space.searched(kgen.WgmmaGemm, normal(), H200))
    candidates = Candidates(normal(), H200, within=[pruned])
    assert candidates.count == Space.valid(pruned, normal(), H200).count > 0
    assert candidates.default in pruned
    mma = Candidates(normal(), H200, within=[kgen.MmaGemm.where(stages=3)])
    assert 0 < mma.count < Space.valid(kgen.MmaGemm.where(stages=3), normal(), H200).count
    assert mma.ranking[0] in kgen.MmaGemm.where(stages=3)


def test_pins_reach_every_schedule_that_has_them() -> None:
    pinned = UNRESTRICTED.pinned(GRAPH, BM=(96, 128), stages=4)
    # On Hopper the other schedules are never the best beside this one; it has no tiles of 96 rows.
    assert list(map(str, pinned.within(normal(), H200) or ())) == ["WgmmaGemm(BM=128, stages=4)"]
    ampere = resolve("A100-SXM4-80GB")
    assert list(map(str, pinned.within(normal(), ampere) or ())) == [
        "MmaGemm(BM=128|96, stages=4)",
        "SimtGemm(BM=128|96, stages=4)",
    ]
    assert UNRESTRICTED.within(normal(), H200) is None
    assert str(pinned.pinned(GRAPH, BM=96)) == "BM=96, stages=4"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"BX": 64}, "hgemm has no schedule for that: WgmmaGemm has no field BX; .*; MmaGemm has no field BX"),
        ({"BM": (128, 100)}, "hgemm has no schedule for that: .*MmaGemm: BM=100 is outside its domain"),
        ({"TM": 4, "cluster": "2x1"}, "hgemm has no schedule for that: .*no field TM; .*no field cluster"),
    ],
)
def test_pins_that_no_schedule_takes_are_refused(fields: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        UNRESTRICTED.pinned(GRAPH, **fields)


def test_a_pin_is_only_narrowed() -> None:
    with pytest.raises(ConfigError, match="BM is 64, 128 already; expected one of these"):
        UNRESTRICTED.pinned(GRAPH, BM=(64, 128)).pinned(GRAPH, BM=256)

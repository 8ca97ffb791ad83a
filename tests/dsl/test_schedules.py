"""Schedules: fields, rules, configs as text, keys, and an enumeration that is exactly what brute force finds."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from kgen.codegen.template_schedule import enumerate_space
from kgen.dsl.choice import Undecided, choice, rule
from kgen.dsl.config_text import parse_config
from kgen.dsl.errors import ConfigError, DefinitionError
from kgen.dsl.family import schedules
from kgen.dsl.schedule import Rejection, Schedule, domain_size
from kgen.dsl.target import Arch, sm
from kgen.gpu.target import resolve
from kgen.ops import operators  # registers the families


class Sample(Schedule):
    """Rules of one field, of several, in any order, and one that reads a field only at times."""

    template = ""
    target = sm(80)

    width = choice(64, 32, 128)
    kind = choice("xor", "pad")
    deep = choice(False, True)
    stages = choice(2, 1, 3)

    @rule
    def narrow(self, problem: object, target: object) -> bool:
        """the width must fit
        in the memory"""
        return self.width * self.stages < 256

    @rule
    def only_at_times(self, problem: object, target: object) -> bool:
        """deep tiles are swizzled"""
        return not self.deep or self.kind == "xor"

    @rule
    def of_the_problem(self, problem: object, target: object) -> bool:
        """the problem is too small"""
        return self.width <= problem  # type: ignore[operator]

    @classmethod
    def applies(cls, problem: object) -> bool:
        return problem != 0


class Old(Sample):
    """A schedule that takes over its fields and rules, and adds a field."""

    extra = choice(1, 2)


TARGET = resolve("A100-SXM4-80GB")
CONFIG = Sample(width=64, kind="xor", deep=True, stages=2)


def brute_force(schedule: type[Schedule], problem: object) -> list[Schedule]:
    points = itertools.product(*(field.values for field in schedule.fields.values()))
    configs = [schedule(**dict(zip(schedule.fields, point))) for point in points]
    return [config for config in configs if not config.rejections(problem, TARGET)]  # type: ignore[arg-type]


@pytest.mark.parametrize("problem", [16, 32, 64, 1000])
@pytest.mark.parametrize("schedule", [Sample, Old])
def test_enumeration_is_what_brute_force_finds(schedule: type[Schedule], problem: int) -> None:
    found = list(enumerate_space(schedule, problem, TARGET))  # type: ignore[arg-type]
    assert found == brute_force(schedule, problem)
    assert (problem == 16) == (not found)
    assert len(found) < domain_size(schedule)


def test_enumeration_of_what_does_not_apply_is_empty() -> None:
    assert not list(enumerate_space(Sample, 0, TARGET))  # type: ignore[arg-type]
    assert not list(enumerate_space(Sample, 1000, resolve("T4")))  # type: ignore[arg-type]


def test_enumeration_stops_at_a_rule_that_reads_nothing() -> None:
    class Never(Schedule):
        template = ""
        target = sm(75)
        a = choice(1, 2)

        @rule
        def never(self, problem: object, target: object) -> bool:
            """nothing will do"""
            return False

    assert not list(enumerate_space(Never, None, TARGET))  # type: ignore[arg-type]


def test_size_of_the_domains() -> None:
    assert domain_size(Sample) == 3 * 2 * 2 * 3
    assert domain_size(Old) == 2 * domain_size(Sample)
    assert list(Old.fields) == ["width", "kind", "deep", "stages", "extra"]


def test_configs_print_as_the_python_that_makes_them() -> None:
    text = "Sample(width=64, kind='xor', deep=True, stages=2)"
    assert repr(CONFIG) == text
    assert parse_config(text, {"Sample": Sample}) == CONFIG
    assert parse_config(' Sample(stages=2,deep=True, kind="xor",\n width=64) ', {"Sample": Sample}) == CONFIG
    for config in itertools.islice(enumerate_space(Sample, 1000, TARGET), 20):  # type: ignore[arg-type]
        assert parse_config(repr(config), {"Sample": Sample}) == config


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "malformed or unknown config ''; expected Name(field=value, ...) with Name one of Sample"),
        ("Other(width=64)", "malformed or unknown config 'Other(width=64)'"),
        ("Sample", "malformed or unknown config"),
        ("Sample(width=64) + 1", "malformed or unknown config"),
        ("Sample(width=__import__('os'))", "malformed value"),
        ("Sample(width=6.5, kind='xor', deep=True, stages=2)", "malformed value '6.5' of 'width'"),
        ("Sample(64, 'xor', True, 2)", "malformed value"),
        ("Sample(width=64, kind='xor', deep=True)", "Sample: missing field stages; its fields are width, kind, deep, stages"),
        ("Sample(width=64, kind='xor', deep=True, stages=2, x=1)", "Sample: unknown field x"),
        ("Sample(width=65, kind='xor', deep=True, stages=2)", "Sample: width=65 is outside its domain 64, 32, 128"),
        ("Sample(width=64, kind='xor', deep=1, stages=2)", "Sample: deep=1 is outside its domain False, True"),
        ("Sample(width=True, kind='xor', deep=True, stages=2)", "Sample: width=True is outside its domain"),
    ],
)  # fmt: skip
def test_text_that_is_no_config(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_config(text, {"Sample": Sample})
    assert told in str(error.value)


def test_a_field_of_later_does_not_change_what_was_stored() -> None:
    class Later(Sample):
        finish = choice("last", "atomic", absent="last")
        deeper = choice(False, True, absent=True)

    text = repr(CONFIG).replace("Sample", "Later")
    stored = parse_config(text, {"Later": Later})
    assert stored == Later(**CONFIG.values, finish="last", deeper=True)
    assert (stored.finish, stored.deeper, repr(stored)) == ("last", True, text)
    plain = type("Later", (Sample,), {})
    assert stored.key == plain(**CONFIG.values).key
    for changed in (
        stored.replace(finish="atomic"),
        stored.replace(deeper=False),
        stored.replace(finish="atomic", deeper=False),
    ):
        assert changed != stored
        assert changed.key != stored.key
        assert parse_config(repr(changed), {"Later": Later}) == changed
    assert repr(stored.replace(deeper=False)) == f"{text[:-1]}, deeper=False)"
    assert parse_config(f"{text[:-1]}, finish='last')", {"Later": Later}) == stored
    with pytest.raises(ConfigError, match="Later: missing field stages"):
        parse_config(text.replace(", stages=2", ""), {"Later": Later})
    with pytest.raises(DefinitionError, match="choice of 1, 2 has no 3 for configs without the field"):
        choice(1, 2, absent=3)


def test_configs_are_frozen_values() -> None:
    assert CONFIG.replace() == CONFIG
    assert hash(CONFIG) == hash(CONFIG.replace())
    assert CONFIG.replace(stages=1) != CONFIG
    assert CONFIG.replace(stages=1).values == {"width": 64, "kind": "xor", "deep": True, "stages": 1}
    assert Old(**CONFIG.values, extra=1) != CONFIG
    with pytest.raises(ConfigError, match=r"Sample is frozen; make a new one with replace\(stages=1\)"):
        CONFIG.stages = 1
    CONFIG.values["stages"] = 3
    assert CONFIG.stages == 2


def test_rejections_tell_their_reasons() -> None:
    broken = CONFIG.replace(width=128, kind="pad", stages=3)
    assert broken.rejections(100, TARGET) == [  # type: ignore[arg-type]
        Rejection("narrow", "the width must fit in the memory"),
        Rejection("only_at_times", "deep tiles are swizzled"),
        Rejection("of_the_problem", "the problem is too small"),
    ]
    assert not CONFIG.rejections(100, TARGET)  # type: ignore[arg-type]
    CONFIG.check(100, TARGET)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as error:
        broken.check(100, TARGET)  # type: ignore[arg-type]
    assert "Sample(width=128" in str(error.value)
    assert "narrow: the width must fit in the memory; only_at_times: deep tiles are swizzled" in str(error.value)


def test_definitions_that_are_wrong() -> None:
    with pytest.raises(DefinitionError, match="rule silent needs a docstring: the reason it prints"):

        @rule
        def silent(self: object, problem: object, target: object) -> bool:
            return True

    with pytest.raises(DefinitionError, match="choice needs distinct values"):
        choice(1, 1)
    with pytest.raises(DefinitionError, match="choice needs distinct values"):
        choice()
    assert choice(1, True).values == (1, True)


def test_a_partial_config_knows_what_it_lacks() -> None:
    partial = Sample.partial({"width": 64})
    assert partial.width == 64
    with pytest.raises(Undecided) as missing:
        assert partial.stages
    assert missing.value.field == "stages"


def test_keys_are_the_same_in_every_process() -> None:
    text = (
        "Elementwise(pack=8, items=2, along='vectors', threads=256, blocks_per_sm=0, load='default', store='default')"
    )
    here = parse_config(text, schedules()).key
    assert len(operators()) > 20
    assert len(here) == 16
    program = (
        "import sys, kgen.ops\nfrom kgen.dsl.family import schedules\nfrom kgen.dsl.config_text import parse_config\n"
        "print(parse_config(sys.argv[1], schedules()).key)"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program, text], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.strip() == here
    assert CONFIG.key != CONFIG.replace(stages=1).key


def test_architectures() -> None:
    assert str(sm(80)) == "sm_80"
    assert str(sm(90, "a")) == "sm_90a"
    assert Arch.parse("sm_120") == sm(120)
    assert Arch.parse("sm_100a") == sm(100, "a")
    assert sm(80).runs_on(sm(90, "a"))
    assert sm(80).runs_on(sm(80))
    assert not sm(80).runs_on(sm(75))
    assert sm(90, "a").runs_on(sm(90, "a"))
    assert not sm(90, "a").runs_on(sm(90))
    assert not sm(90, "a").runs_on(sm(100, "a"))
    for text in ("", "80", "sm_8", "sm_90b", "compute_80", "sm_80 "):
        with pytest.raises(ConfigError, match="malformed architecture"):
            Arch.parse(text)

"""KernelOperator beside its calls: problems, sources, pinned configs, tuning, definitions."""

import copy
import pickle
import time

import pytest
import torch

import kgen
from kgen import ArgumentError, ConfigError, DefinitionError, KgenWarning, Tensor, f16, f32
from kgen.codegen.template_schedule import enumerate_space
from kgen.dsl.target import TARGETS
from kgen.runtime import dispatch
from kgen.tuning_db import open_store

NAIVE = "Elementwise(pack=1, items=1, along='vectors', threads=128, blocks_per_sm=0, load='default', store='default')"


@pytest.fixture
def database(monkeypatch, tmp_path):
    path = tmp_path / "tuning.sqlite"
    monkeypatch.setenv("KGEN_DATABASE", str(path))
    dispatch.forget()
    yield path
    dispatch.forget()


def test_problem_takes_sizes_by_name_or_as_a_mapping():
    by_name = kgen.bias_gelu.problem(leading=(3, 4), N=8, dtype="bf16")
    assert by_name == kgen.bias_gelu.problem({"...": (3, 4), "N": 8}, dtype=kgen.bf16)
    assert [o.shape for o in by_name.operands] == [(3, 4, 8), (8,), (3, 4, 8)]
    assert {o.dtype for o in by_name.operands} == {kgen.bf16}
    assert kgen.gelu.problem(leading=5).operands[0].shape == (5,)


def test_problem_takes_dtypes_in_the_order_of_the_signature():
    assert kgen.scale_cast.problem(leading=5, dtype="f16,e5m2").outputs[0].dtype is kgen.e5m2
    assert kgen.scale_cast.problem(leading=5, dtype="f32").outputs[0].dtype is kgen.e4m3
    assert kgen.batch_norm.problem(leading=5, C=2, dtype=["bf16", "f32"]).inputs[0].dtype is kgen.bf16
    assert kgen.tf32gemm.problem(M=1, N=1, K=1).inputs[0].dtype is kgen.tf32


def test_problem_takes_layouts():
    problem = kgen.hgemm.problem(M=4, N=5, K=6, layouts={"b": "col"})
    assert problem.operand("b").strides == (1, 6)


def test_source_is_self_contained_cuda(database):
    text = kgen.linear_gelu.source(M=256, N=512, K=128, target="H200")
    assert '#include "' not in text
    assert "__global__" in text
    assert "linear_gelu(M=256 K=128 N=512 f16" in text.splitlines()[0]
    assert kgen.linear_gelu.source(M=256, N=512, K=128, dtype="bf16", target="H200") != text
    assert not database.exists()


def test_source_by_config_is_that_config():
    assert f"// {NAIVE}" in kgen.gelu.source(leading=64, config=NAIVE)
    config = kgen.runtime.dispatch.default(kgen.gelu.problem(leading=64), TARGETS["H200"]).config
    assert kgen.gelu.source(leading=64, config=config) == kgen.gelu.source(leading=64, config=repr(config))
    assert kgen.gelu.using(NAIVE).source(leading=64) == kgen.gelu.source(leading=64, config=NAIVE)


def test_source_differs_by_target():
    on = {name: kgen.hgemm.source(M=4096, N=4096, K=4096, target=name) for name in ("T4", "A100-SXM4-80GB")}
    assert on["T4"] != on["A100-SXM4-80GB"]


def test_a_pinned_config_is_what_runs():
    naive = kgen.gelu.using(NAIVE)
    x = torch.randn(1000)
    assert torch.equal(naive(x), kgen.gelu(x))
    (plan,) = naive._plans.values()
    assert plan.runner.kernel.source.launch.block == (128, 1, 1)
    assert "pack=1" in repr(naive)
    wide = naive.using(NAIVE.replace("pack=1", "pack=4"))
    assert torch.equal(wide(x), kgen.gelu(x))
    with pytest.raises(ConfigError, match="aligned: a vector's access needs the alignment"):
        wide(x[1:])


def test_every_valid_config_of_a_space_computes_the_same():
    x, b = torch.randn(3, 40), torch.randn(40)
    problem = kgen.runtime.operands.problem_of(kgen.bias_gelu.definition, (x, b), ())
    normal = kgen.ops.elementwise.family.normalise(problem)
    space = list(enumerate_space(kgen.ops.elementwise.Elementwise, normal, dispatch.EMULATED))
    expected = kgen.bias_gelu(x, b)
    for config in space[:: len(space) // 6]:
        assert torch.equal(kgen.bias_gelu.using(config)(x, b), expected), config


def test_tuning_stores_what_calls_then_use(database, monkeypatch):
    monkeypatch.setattr("kgen.runtime.machine.detect", lambda index=0: None)
    monkeypatch.setattr("kgen.gpu.target.detect", lambda index=0: None)
    size = {"leading": 3 * 2**14}
    start = time.perf_counter()
    with pytest.warns(KgenWarning, match=r"no GPU found.*cost model"):
        outcome = kgen.tune("relu", budget="3", **size)
    assert time.perf_counter() - start < 60
    assert not outcome.measured
    with open_store(database) as store:
        choice = dispatch.choose(kgen.relu.problem(**size), dispatch.EMULATED, store)
    assert (choice.how, choice.config) == ("tuned", outcome.config)
    assert kgen.relu.tune(**size, budget="3", gpu=dispatch.EMULATED).cached
    assert repr(outcome.config) in kgen.relu.source(**size)


def test_tune_takes_an_operator_or_a_name(database):
    for wrong in (3, None, "relu()"):
        with pytest.raises(ArgumentError, match="operator"):
            kgen.tune(wrong, leading=64)
    with pytest.raises(ArgumentError, match="budget"):
        kgen.tune(kgen.relu.definition, leading=64, budget="soon")
    with pytest.raises(ArgumentError, match=r"budget.*int"):
        kgen.relu.tune(leading=64, budget=60)
    assert not database.exists()


def test_a_definition_error_names_the_line_of_the_definition():
    with pytest.raises(DefinitionError, match=r"test_kernel_operator\.py:\d+: .*x: f32\[\.\.\.\]"):

        @kgen.operator
        def wrong(x: Tensor[f32, ...]) -> Tensor[f32, ...]:
            return kgen.where(x, 1.0, 0.0)


def test_an_error_within_an_inlined_operator_names_both_lines():
    with pytest.raises(
        DefinitionError, match=r"test_kernel_operator\.py:\d+: in gelu\(\.\.\.\): .*pointwise\.py:\d+: .*bool"
    ):

        @kgen.operator
        def wrong(x: Tensor[f16, ...]) -> Tensor[f16, ...]:
            return kgen.gelu(x > 0)


@kgen.operator
def constant_of_this_module(x: Tensor[f32, ...]) -> Tensor[f32, ...]:
    return x + 1


@pytest.mark.parametrize("op", [kgen.gelu, kgen.hgemm, constant_of_this_module], ids=lambda op: op.__name__)
def test_copies_and_pickles_are_the_operator_itself(op):
    assert copy.deepcopy(op) is op
    assert pickle.loads(pickle.dumps(op)) is op


def test_pickles_of_a_restricted_operator_name_what_it_restricts():
    for made in (kgen.hgemm.using(BM=128), kgen.gelu.using(NAIVE), kgen.hgemm.using(kgen.MmaGemm.where(BM=64))):
        assert copy.deepcopy(made) is copy.copy(made) is made
        back = pickle.loads(pickle.dumps(made))
        assert (back.definition, back.pinned, back.restriction) == (made.definition, made.pinned, made.restriction)
        assert back.key == made.key


def test_operators_remember_where_they_are_defined():
    @kgen.operator
    def mine(x: Tensor[f16, ...]) -> Tensor[f16, ...]:
        return x * 2

    assert mine.definition.where.file.endswith("tests/runtime/test_kernel_operator.py")

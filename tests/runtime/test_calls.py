"""Calls of operators on torch tensors: outputs, strides, alignment, shared memory, numbers, plans. On the emulator."""

import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch

import kgen
from kgen import ArgumentError, EmulatorError, Tensor, dims, f16, f32, i32
from kgen.dsl.operator import Operator
from kgen.runtime.operator import KernelOperator

M, N = dims("M N")


@kgen.operator
def affine(x: Tensor[f32, ..., N], w: Tensor[f32, N], n: int, eps: float = 0.5) -> Tensor[f32, ..., N]:
    """x * w * n + eps."""
    return x * w * n + eps


@kgen.operator
def both(a: Tensor[f32, ...], b: Tensor[f32, ...]) -> tuple[Tensor[f32, ...], Tensor[f16, ...]]:
    """Sum and difference."""
    return a + b, kgen.cast(a - b, f16)


def fresh(operator):
    """The same operator without plans."""
    return KernelOperator(operator.definition)


def test_broadcasting_follows_torch():
    shapes = [((3, 1, 5), (4, 5)), ((2, 3, 4, 5), (4, 1)), ((7,), ()), ((1,), (1,)), ((6, 1), (1, 6))]
    for a, b in [*shapes, ((2, 1, 3, 1, 2), (5, 1, 2, 1))]:
        x, y = torch.randn(a), torch.randn(b)
        assert torch.equal(kgen.add(x, y), x + y)


def test_any_strides():
    x = torch.randn(6, 8, 10)
    views = [
        x.permute(2, 0, 1),
        x[:, ::2, 1::3],
        x.flip(0)[1:],
        x[0].expand(6, 8, 10),
        x[..., 3],
        x.diagonal(),
        x.movedim(1, -1),
    ]
    for view in views:
        assert torch.equal(kgen.relu(view), view.relu())
    a, b = x.transpose(0, 2), torch.randn(10, 8, 6)
    assert torch.equal(kgen.mul(a, b), a * b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("offset", range(1, 9))
def test_misaligned_slices(dtype, offset):
    x, y, out = (torch.randn(200).to(dtype) for _ in range(3))
    before = out.clone()
    n = 131
    kgen.add(x[offset : offset + n], y[:n], out=out[3 : 3 + n])
    assert torch.equal(out[3 : 3 + n], x[offset : offset + n] + y[:n])
    assert torch.equal(out[:3], before[:3])
    assert torch.equal(out[3 + n :], before[3 + n :])


def test_out_is_written_and_returned():
    x = torch.randn(5, 9)
    for out in (torch.empty(5, 9), torch.empty(9, 5).T, torch.empty(5, 20)[:, ::2][:, :9]):
        assert kgen.gelu(x, out=out) is out
        assert torch.equal(out, kgen.gelu(x))


def test_out_may_be_an_input_itself():
    x, b = torch.randn(6, 7), torch.randn(7)
    expected = torch.relu(x + b)
    assert kgen.add_relu(x, b, out=x) is x
    assert torch.equal(x, expected)
    square = torch.randn(5, 5)
    doubled = square * 2
    kgen.add(square, square, out=square)
    assert torch.equal(square, doubled)


@pytest.mark.parametrize(
    ("a", "out"),
    [
        (lambda s: s[:8], lambda s: s[1:9]),
        (lambda s: s[:16].view(4, 4), lambda s: s[:16].view(4, 4).T),
        (lambda s: s[:8], lambda s: s[:15:2]),
        (lambda s: s[2:10], lambda s: s[9:17]),
    ],
)
def test_out_that_shares_memory_otherwise_is_refused(a, out):
    store = torch.randn(40)
    before = store.clone()
    for _ in range(2):  # the second call has the plan
        with pytest.raises(ArgumentError, match="out shares memory with x"):
            kgen.relu(a(store), out=out(store))
    assert torch.equal(store, before)


def test_a_known_plan_still_sees_shared_memory():
    store, operator = torch.randn(64), fresh(kgen.relu)
    operator(store[:16], out=store[32:48])
    with pytest.raises(ArgumentError, match="shares memory"):
        operator(store[:16], out=store[4:20])
    operator(store[:16], out=store[16:32])
    assert torch.equal(store[16:32], store[:16].relu())


def test_interleaved_views_share_nothing():
    store = torch.randn(20)
    kgen.relu(store[::2], out=store[1::2])
    assert torch.equal(store[1::2], store[::2].relu())
    matrix = torch.randn(6, 8)
    kgen.add(matrix[:, :4], matrix[:, :4], out=matrix[:, 4:])
    assert torch.equal(matrix[:, 4:], matrix[:, :4] * 2)


def test_a_broadcast_input_may_not_be_the_output():
    x = torch.randn(4, 4)
    with pytest.raises(ArgumentError, match="out shares memory with a"):
        kgen.add(x[:1].expand(4, 4), torch.randn(4, 4), out=x)


def test_outputs_may_not_share_memory():
    a, b, c = torch.randn(8), torch.randn(8), torch.empty(8)
    with pytest.raises(ArgumentError, match="out1 shares memory with out0"):
        both(a, b, out=(c, c.view(torch.float16)[:8]))


def test_several_outputs():
    a, b = torch.randn(5, 3), torch.randn(3)
    total, difference = both(a, b)
    assert torch.equal(total, a + b)
    assert torch.equal(difference, (a - b).half())
    out = torch.empty(5, 3), torch.empty(5, 3, dtype=torch.float16)
    for _ in range(2):
        result = both(a, b, out=out)
        assert result[0] is out[0]
        assert result[1] is out[1]
    assert torch.equal(out[1], difference)


def test_empty_tensors_return_at_once():
    assert kgen.add(torch.empty(0, 4), torch.empty(1, 4)).shape == (0, 4)
    assert kgen.gelu(torch.empty(3, 0, 2)).shape == (3, 0, 2)
    out = torch.empty(0)
    assert kgen.relu(torch.empty(0), out=out) is out


def test_numbers_by_position_by_name_and_by_default():
    x, w = torch.randn(3, 4), torch.randn(4)
    for call in (
        lambda: affine(x, w, 3),
        lambda: affine(x, w, n=3),
        lambda: affine(x=x, w=w, n=3),
        lambda: affine(x, w, 3, 0.5),
    ):
        assert torch.equal(call(), x * w * 3 + 0.5)
    assert torch.equal(affine(x, w, 3, eps=0.0), x * w * 3)
    assert torch.equal(affine(x, w, -2), x * w * -2 + 0.5)


def test_numbers_of_one_call_do_not_stay_for_the_next():
    x = torch.tensor([-1.0, 1.0])
    assert kgen.elu(x, alpha=2.0)[0] == 2 * kgen.elu(x)[0]
    zero = kgen.elu(x, alpha=-0.0)[0]
    assert zero == 0
    assert not torch.signbit(zero)  # -0.0 * a negative number
    assert torch.signbit(kgen.elu(x, alpha=0.0)[0])


def test_parameters_without_gradients():
    x = torch.nn.Parameter(torch.randn(4))
    for _ in range(2):
        with torch.no_grad():
            y = kgen.relu(x)
        assert torch.equal(y, x.detach().relu())
        assert type(y) is torch.Tensor
        assert not y.requires_grad
    assert torch.equal(kgen.relu(x.detach()), y)
    with pytest.raises(ArgumentError, match=r"relu: out= was given with a tensor that requires a gradient.*no_grad"):
        kgen.relu(x, out=torch.empty(4))


def test_inference_mode():
    with torch.inference_mode():
        x = torch.randn(4)
        out = torch.empty(4)
        assert torch.equal(kgen.relu(x, out=out), x.relu())


def test_autograd_sees_that_out_was_written():
    weight, saved = torch.randn(4, requires_grad=True), torch.randn(4)
    loss = (weight * saved).sum()
    kgen.relu(torch.randn(4), out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_lazily_negated_view_is_refused_also_by_a_known_plan():
    plain = torch.randn(4, 2)[:, 0]
    lazy = torch.view_as_complex(torch.randn(4, 2)).conj().imag
    assert lazy.is_neg()
    assert lazy.stride() == plain.stride()
    operator = fresh(kgen.relu)
    with pytest.raises(ArgumentError, match="negated"):
        operator(lazy)
    operator(plain)
    with pytest.raises(ArgumentError, match="negated"):
        operator(lazy)
    assert torch.equal(operator(lazy.resolve_neg()), lazy.relu())


def test_a_meta_tensor_takes_no_plan_of_the_cpus():
    operator = fresh(kgen.relu)
    for shape in (4, 0):
        operator(torch.randn(shape))
        assert operator(torch.empty(shape, device="meta")).is_meta


def test_one_plan_for_one_kind_of_call():
    operator = fresh(kgen.add)
    x = torch.randn(64)
    for _ in range(3):
        operator(x.clone(), x)
    assert len(operator._plans) == 1
    operator(x[:32], x[:32])
    operator(x[1:33], x[:32])  # another alignment
    operator(x[:32], x[:32], out=torch.empty(32))
    operator(x.double(), x.double())
    assert len(operator._plans) == 5
    operator.forget()
    assert not operator._plans


def test_plans_do_not_grow_for_ever(monkeypatch):
    monkeypatch.setattr("kgen.runtime.operator._LIMIT", 3)
    operator = fresh(kgen.relu)
    for n in range(1, 12):
        assert operator(torch.ones(n)).sum() == n
        assert len(operator._plans) <= 3


def test_axes_of_size_one_make_no_other_problem():
    operator = fresh(kgen.relu)
    x = torch.randn(1, 5)
    for view in (x, x.as_strided((1, 5), (77, 1)), x.as_strided((1, 5), (0, 1))):
        assert torch.equal(operator(view), x.relu())
    assert len({plan.problem.key for plan in operator._plans.values()}) == 1


def test_threads_share_an_operator():
    operator, wrong = fresh(kgen.elu), []

    def work(seed):
        x = torch.full((33,), -1.0 - seed)
        for i in range(10):
            got = operator(x, alpha=float(seed + i))
            if not torch.allclose(got, torch.nn.functional.elu(x, seed + i)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_cpu_gives_no_warnings_and_needs_no_database(monkeypatch):
    monkeypatch.setenv("KGEN_DATABASE", "/proc/nowhere/tuning.sqlite")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh(kgen.add)(torch.randn(3), torch.randn(3))


def test_emulate_turns_the_checks_on():
    x = torch.randn(100)
    with kgen.emulate(checks=True, seed=3, threads=1):
        assert torch.equal(kgen.relu(x, out=x.clone()), x.relu())
        assert torch.equal(kgen.relu(x), x.relu())
    operator = fresh(kgen.relu)
    operator(x)
    (plan,) = operator._plans.values()
    plan.runner.bound.integers.update(dict.fromkeys(plan.runner.bound.integers, 200))  # twice the elements there are
    with kgen.emulate(), pytest.raises(EmulatorError, match=r"out of bounds|outside"):
        operator(x)


def test_traced_values_stand_for_the_definition():
    @kgen.operator
    def fused(x: Tensor[f32, ...], y: Tensor[f32, ...]) -> Tensor[f32, ...]:
        return kgen.maximum(kgen.gelu(x), 0.25) + kgen.weighted_sum(x, y, 2.0, beta=0.5) - kgen.maximum(0.0, y)

    x, y = torch.randn(50), torch.randn(50)
    expected = torch.nn.functional.gelu(x, approximate="tanh").clamp(min=0.25) + 2 * x + 0.5 * y - y.clamp(min=0)
    torch.testing.assert_close(fused(x, y), expected)
    kgen.gelu(x)  # has a plan now, and still stands for its definition

    @kgen.operator
    def again(x: Tensor[f32, ...]) -> Tensor[f32, ...]:
        return kgen.gelu(x=fused(x, x))

    torch.testing.assert_close(again(x), torch.nn.functional.gelu(fused(x, x), approximate="tanh"))


def test_a_dsl_operator_and_its_kernel_operator_are_apart():
    assert isinstance(kgen.add.definition, Operator)
    assert "a: T[...]" in repr(kgen.add)
    assert kgen.add.__name__ == "add"


def test_integers_and_bools():
    @kgen.operator
    def count(x: Tensor[i32, ...], limit: int) -> Tensor[kgen.bool_, ...]:
        return (x > limit) & (x != 7)

    x = torch.arange(-5, 20, dtype=torch.int32)
    assert torch.equal(count(x, 3), (x > 3) & (x != 7))


def test_a_first_call_loads_no_tuner_and_no_sqlalchemy_without_a_database(tmp_path: Path) -> None:
    program = (
        "import sys, warnings, torch, kgen\nwarnings.simplefilter('ignore')\nkgen.gelu(torch.ones(8))\n"
        "print([m for m in ('sqlalchemy', 'optuna', 'kgen.tuner.tune') if m in sys.modules])"
    )
    env = {**os.environ, "KGEN_DATABASE": str(tmp_path / "none.sqlite")}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_choice_for_a_gpu_loads_no_emulator_and_no_jinja_where_its_text_was_rendered_before(tmp_path: Path) -> None:
    program = (
        "import sys, torch, kgen\nfrom kgen.dsl.family import normalised\n"
        "from kgen.runtime import dispatch, first, operator\noperator._watch()\n"
        "problem = normalised(kgen.hgemm.problem(M=64, N=64, K=64))\n"
        "dispatch.default(problem, dispatch.EMULATED).config.source(problem)\n"
        "print([m for m in ('jinja2', 'kgen.emulator', 'kgen.ops.rowwise') if m in sys.modules])"
    )
    env = {**os.environ, "KGEN_CACHE_DIR": str(tmp_path)}
    told = [
        subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert told == ["['jinja2']\n", "[]\n"]

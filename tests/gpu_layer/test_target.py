"""Targets: the table, names, and what a driver reports."""

import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import pytest

from kgen.dsl.errors import DeviceError
from kgen.dsl.target import GENERIC, TARGETS, Arch
from kgen.gpu import driver, telemetry
from kgen.gpu.target import detect, from_facts, resolve

H200_FACTS = {
    "sm_count": 132,
    "shared_per_block": 232448,
    "shared_per_sm": 233472,
    "registers_per_sm": 65536,
    "max_threads_per_sm": 2048,
    "max_blocks_per_sm": 32,
    "l2_bytes": 62914560,
    "clock_hz": 1.98e9,
}


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(driver, "device_count", lambda: 0)


@pytest.mark.parametrize("target", [*TARGETS.values(), *GENERIC.values()], ids=str)
def test_figures_are_of_the_right_size(target):
    assert target.smem_per_block == target.shared_per_block < target.shared_per_sm or target.arch == Arch(75)
    assert 65536 <= target.shared_per_block <= 232448
    assert 1 << 22 <= target.l2_bytes <= 1 << 27
    assert 3e11 <= target.bandwidth <= 8e12
    assert 1e9 < target.clock_hz < 3e9
    lanes = 64 if target.arch.sm <= 80 else 128
    # Two operations a lane and clock; data sheets quote some rates at another clock than drivers report.
    assert 0.85 < target.f32_flops / (target.sm_count * lanes * 2 * target.clock_hz) < 1.2
    assert target.tensor_flops["f16_f32acc"] <= target.tensor_flops["f16_f16acc"]
    assert ("tf32" in target.tensor_flops) == (target.arch.sm >= 80)
    assert ("fp8" in target.tensor_flops) == (target.arch.sm >= 89)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120"])
def test_every_architecture_has_a_generic_target(arch):
    assert str(resolve(arch).arch) == arch == resolve(arch).name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("H200", "H200"),
        ("h200", "H200"),
        (" NVIDIA H200 ", "H200"),
        ("h100 sxm", "H100 SXM"),
        ("h100-pcie", "H100 PCIe"),
        ("4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("A10", "A10"),
        ("L4", "L4"),
        ("tesla t4", "T4"),
        ("a100-sxm4-80gb", "A100-SXM4-80GB"),
        ("sm_90", "sm_90a"),
        ("sm_100", "sm_100a"),
        ("SM_80", "sm_80"),
        ("sm89", "sm_89"),
    ],
)
def test_names(text, name):
    assert resolve(text).name == name


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("A100", "A100-SXM4-40GB, A100-SXM4-80GB"),
        ("H100", "H100 SXM, H100 PCIe"),
        ("RTX", "RTX 3090, RTX 4090, RTX 5090"),
        ("V100", "one of T4"),
        ("", "one of T4"),
        ("-1", "no GPU -1"),
        ("sm_70", "sm_75, sm_80"),
        ("sm_80a", "sm_75, sm_80"),
    ],
)
def test_names_that_fit_none_or_several_list_the_choices(text, told):
    with pytest.raises(DeviceError, match=told):
        resolve(text)


@pytest.mark.parametrize("text", ["auto", "0", "7"])
def test_no_gpu_is_said(no_gpu, text):
    with pytest.raises(DeviceError, match="this machine has none"):
        resolve(text)
    assert detect(0) is None


def test_a_device_of_the_table_keeps_its_rates():
    found = from_facts("NVIDIA H200", 90, {**H200_FACTS, "sm_count": 120}, bandwidth=4.9e12)
    assert found == replace(TARGETS["H200"], sm_count=120)
    assert found.arch == Arch(90, "a")


@pytest.mark.parametrize(
    ("driver_name", "sm", "name"),
    [
        ("NVIDIA H100 80GB HBM3", 90, "H100 SXM"),
        ("NVIDIA GeForce RTX 3090", 86, "RTX 3090"),
        ("Tesla T4", 75, "T4"),
        ("NVIDIA GH200 480GB", 90, "GH200"),
    ],
)
def test_names_of_drivers(driver_name, sm, name):
    assert from_facts(driver_name, sm, H200_FACTS, 1e12).name == name


def test_an_unknown_device_is_scaled_from_its_architecture():
    facts = {**H200_FACTS, "sm_count": 66}
    found = from_facts("NVIDIA H20", 90, facts, bandwidth=4e12)
    assert (found.name, found.arch, found.bandwidth) == ("H20", Arch(90, "a"), 4e12)
    assert found.tensor_flops["tf32"] == pytest.approx(TARGETS["H100 SXM"].tensor_flops["tf32"] / 2)
    assert found.f32_flops == pytest.approx(TARGETS["H100 SXM"].f32_flops / 2)


def test_an_architecture_between_two_takes_the_lower():
    assert from_facts("NVIDIA Orin", 87, H200_FACTS, 2e11).arch == Arch(87)
    assert from_facts("NVIDIA B300", 103, H200_FACTS, 8e12).arch == Arch(103, "a")
    with pytest.raises(DeviceError, match="sm_75 or newer"):
        from_facts("Tesla V100", 70, H200_FACTS, 9e11)


def test_a_target_is_frozen_hashable_and_travels():
    target = TARGETS["H200"]
    assert pickle.loads(pickle.dumps(target)) == target
    assert len({target, replace(target, sm_count=1)}) == 2
    with pytest.raises(TypeError):
        target.tensor_flops["f16_f32acc"] = 1.0
    with pytest.raises(FrozenInstanceError):
        target.sm_count = 1


def test_telemetry_without_nvml(monkeypatch):
    monkeypatch.setattr(telemetry, "_nvml", lambda: None)
    monkeypatch.setattr(telemetry, "_handle", telemetry._handle.__wrapped__)  # what it finds here is not to be kept
    assert set(telemetry.sample().to_dict().values()) == {None}
    assert telemetry.power_limit() is None
    assert telemetry.driver_version() is None


def test_throttle_reasons_have_names():
    assert telemetry.reason_names(0) == ()
    assert telemetry.reason_names(0x4 | 0x40) == ("sw_power_cap", "hw_thermal_slowdown")
    assert telemetry.reason_names(0x1 | 0x10000) == ("idle", "0x10000")
    full = telemetry.Sample(1980, 3201, 700.5, 60, ("sw_power_cap",))
    assert full.to_dict()["throttle"] == ["sw_power_cap"]


def test_the_table_loads_no_cuda():
    code = (
        "import sys, kgen.gpu.target as t, kgen.gpu.kernel, kgen.gpu.compile; t.resolve('H200'); "
        "assert not {'cuda', 'torch', 'pynvml'} & {name.split('.')[0] for name in sys.modules}, sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

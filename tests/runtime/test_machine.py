"""Which GPU a name, an index or a target means."""

from dataclasses import replace

from kgen.gpu import driver, target
from kgen.gpu.target import resolve
from kgen.runtime import machine
from kgen.runtime.machine import find_gpu


def test_gpus_that_are_not_here(monkeypatch):
    monkeypatch.setattr(driver, "device_count", lambda: 0)
    named, generic = find_gpu("H200"), find_gpu("sm_90")
    assert named.target.name == "H200"
    assert str(generic.target) == "sm_90a"
    assert generic.device is None
    assert generic.found


def test_of_two_alike_the_one_with_the_index_is_meant(monkeypatch):
    one = replace(resolve("H200"), driver="1")
    for module in (machine, target):
        monkeypatch.setattr(module, "detect", lambda index=0: one if index < 2 else None)
    monkeypatch.setattr(machine, "device_count", lambda: 2)
    found = [find_gpu(wanted).device for wanted in (1, "1", "auto", "H200", one, resolve("H200"))]
    assert found == [1, 1, 0, 0, 0, None]

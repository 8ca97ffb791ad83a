"""Runs small kernels of every schedule under the four tools of compute-sanitizer: python tests/gpu/sanitize.py [TOOL ...]

The kernels are cases of tests/templates, judged as there: as many of each schedule as it takes to see every value
of its named options (the numbers among its fields are sizes of tiles). Nothing else runs on the GPU: operands are made and
compared on the host. Needs a GPU and compute-sanitizer on the path. Exit code 1 where a tool finds something, a kernel is wrong,
or a tool did not watch the kernels.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import Any

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
_ALIGNED = 32  # bytes: no access asks for more
#: cp.async reads the bytes asked for and fills the rest of its width with zeros; memcheck takes the whole width for read
#: (ptxas puts the number into the low bits of an aligned address). So operands of kernels with such copies end at a width.
_COPY = 16
PART = 6  # kernels a process: a tool slows everything in it down, the start of torch included
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)")
_DONE = re.compile(r"^(\d+) kernels ran right$", re.MULTILINE)


def watch(tool: str, cases: list[str]) -> str | None:
    """What is wrong under a tool; None where all is well."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, __file__, "--run", *cases]
    begun = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "compute-sanitizer is not on the path"
    summary, ran = _SUMMARY.search(done.stdout), _DONE.search(done.stdout)
    said = summary[0] if summary else "nothing"
    print(f"{tool}: {said} after {time.monotonic() - begun:.0f} s for {' '.join(cases)}", flush=True)
    if summary is None:
        told = "the tool did not watch the kernels"
    elif int(summary[1]) or done.returncode:
        told = f"{summary[0]}, exit code {done.returncode}"
    elif ran is None or int(ran[1]) != len(cases):
        told = f"not all of {len(cases)} kernels ran"
    else:
        return None
    return "\n".join([f"{told}: {' '.join(cases)}", *(done.stdout + done.stderr).splitlines()[:60]])


def shown(name: str) -> list[tuple[str, set[tuple[str, str, object]]]]:
    """The cases of a group that this GPU runs, as "group:number", and what each shows."""
    from dataclasses import replace

    from suite import broken, cases_of

    from kgen.gpu.target import detect

    target = detect(0)
    assert target is not None, "no GPU"
    found = []
    for number, case in enumerate(cases_of(name)):
        schedule = type(case.config).__name__
        options = {(schedule, field, v) for field, v in case.config.values.items() if isinstance(v, (str, bool))}
        runs = case.config.source(case.problem).arch.runs_on(target.arch)
        if runs and not broken(case, replace(target, sm_count=case.target.sm_count)):
            found.append((f"{name}:{number}", options or {(schedule, "", "")}))
    return found


def choose() -> list[str]:
    """The cases to run: each one shows what none before it does."""
    from suite import GROUPS

    seen: set[tuple[str, str, object]] = set()
    chosen = []
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for case, options in (found for group in pool.map(shown, GROUPS) for found in group):
            if options - seen:
                seen |= options
                chosen.append(case)
    return chosen


class HostOperands:
    """A GPU's kernel that is launched as the emulator's is: with memory of the host, which goes to the GPU and back.

    Every operand has its own memory there, of its size, as far from an aligned address as on the host. Scratch is not
    initialised, so that initcheck sees what reads it too early.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.source = kernel, kernel.source

    def launch(self, arguments: Sequence[Any], grid: Sequence[int], *, options: Any, blocks: Any = None) -> None:
        from kgen.codegen.source import Extent, Pointer, TensorMap
        from kgen.dsl.size import ceil_div
        from kgen.gpu import driver
        from kgen.gpu.memory import DeviceBuffer

        params = self.source.params
        whole = _COPY if "ptx::cp_async<" in self.source.body else 1
        shown = {i: a for i, (p, a) in enumerate(zip(params, arguments)) if isinstance(p, TensorMap)}
        buffers = {i: m.buffer for i, m in shown.items()}
        buffers |= {i: a for i, (p, a) in enumerate(zip(params, arguments)) if isinstance(p, Pointer)}
        scratch = {b.address for i, b in buffers.items() if params[i].access == "scratch"}
        sizes: dict[int, int] = {}
        for b in buffers.values():
            sizes[b.address] = max(b.bytes, sizes.get(b.address, 1))
        with ExitStack() as stack:
            held = {}
            for address, size in sizes.items():
                needed = ceil_div(address % _ALIGNED + size, whole) * whole
                held[address] = stack.enter_context(DeviceBuffer(needed))
                if address not in scratch:
                    content = bytes(address % _ALIGNED) + ctypes.string_at(address, size)
                    held[address].write(content.ljust(needed, b"\0"))
            places = {i: held[b.address].address + b.address % _ALIGNED for i, b in buffers.items()}
            maps = {i: Extent(m.sizes, m.strides) for i, m in shown.items()}
            # With the context current: memcheck counts a call without one, which the launch would mend.
            with driver.current(self.kernel.device):
                self.kernel.launch([places.get(i, a) for i, a in enumerate(arguments)], grid, maps=maps)
                driver.check(driver.api().cuCtxSynchronize(), "running a case")
            for address in {b.address for b in buffers.values() if b.writable} - scratch:
                ctypes.memmove(address, held[address].read()[address % _ALIGNED :], sizes[address])


def run(chosen: list[str]) -> None:
    """Runs the cases, in the process that the tool watches."""
    from suite import GROUPS, cases_of

    from kgen.gpu.compile import compile as nvrtc
    from kgen.gpu.kernel import load
    from kgen.gpu.target import detect

    target = detect(0)
    assert target is not None, "no GPU"
    for name, _, number in (case.rpartition(":") for case in chosen):
        case = cases_of(name)[int(number)]
        source = case.config.source(case.problem)
        GROUPS[name].judge(case, HostOperands(load(nvrtc(source, target.arch), source, 0)), "cpu")
    print(f"{len(chosen)} kernels ran right", flush=True)


def main(tools: Sequence[str]) -> int:
    cases = choose()
    print(f"{len(cases)} kernels", flush=True)
    parts = [cases[at : at + PART] for at in range(0, len(cases), PART)]
    jobs = [(tool, part) for tool in tools for part in parts]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        told = list(pool.map(lambda job: watch(*job), jobs))
    for tool in tools:
        wrong = [found for (of, _), found in zip(jobs, told) if of == tool and found is not None]
        print("\n".join([f"== {tool}: {len(cases)} kernels, {len(wrong)} of {len(parts)} processes complain", *wrong]))
    return 1 if any(told) else 0


sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "templates"))
if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1:] or TOOLS))

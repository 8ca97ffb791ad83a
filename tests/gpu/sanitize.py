"""Runs small kernels of every schedule under the four tools of compute-sanitizer: python tests/gpu/sanitize.py [TOOL ...]

The kernels are cases of tests/templates, checked bit for bit as there: as many of each schedule as it takes to see every value
of its named options (the numbers among its fields are sizes of tiles). Needs a GPU and compute-sanitizer on the path. Exit
code 1 where a tool finds something, a kernel is wrong, or a tool did not watch the kernels.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)")
_DONE = re.compile(r"^(\d+) kernels ran right$", re.MULTILINE)
_TEMPLATES = Path(__file__).resolve().parents[1] / "templates"


def watch(tool: str) -> str | None:
    """What is wrong under a tool; None where all is well."""
    # Only kernels of kgen: what torch reads of memory that TMA wrote is unknown to initcheck.
    command = ["compute-sanitizer", "--tool", tool, "--kernel-name-exclude", "kernel_substring=at6native"]
    command += ["--error-exitcode", "9", sys.executable, __file__, "--run"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "compute-sanitizer is not on the path"
    summary, ran = _SUMMARY.search(done.stdout), _DONE.search(done.stdout)
    print(f"{tool}: {ran[0] if ran else 'did not end'}; {summary[0] if summary else 'no summary'}", flush=True)
    if summary is None:
        told = "the tool did not watch the kernels"
    elif int(summary[1]) or done.returncode:
        told = f"{summary[0]}, exit code {done.returncode}"
    elif ran is None or int(ran[1]) == 0:
        told = "no kernel ran"
    else:
        return None
    return "\n".join([told, *(done.stdout + done.stderr).splitlines()[:60]])


def run() -> None:
    """Runs the kernels, in the process that the tool watches."""
    sys.path.insert(0, str(_TEMPLATES))
    from dataclasses import replace

    from cases import Case, check
    from suite import GROUPS, broken, cases_of

    from kgen.gpu.compile import compile as nvrtc
    from kgen.gpu.kernel import load
    from kgen.gpu.target import detect

    target = detect(0)
    assert target is not None, "no GPU"
    seen: set[tuple[str, str, object]] = set()
    chosen: list[Case] = []
    for name in GROUPS:
        for case in cases_of(name):
            schedule = type(case.config).__name__
            options = {(schedule, field, v) for field, v in case.config.values.items() if isinstance(v, (str, bool))}
            new = (options or {(schedule, "", "")}) - seen
            if (
                new
                and case.config.source(case.problem).arch.runs_on(target.arch)
                and not broken(case, replace(target, sm_count=case.target.sm_count))
            ):
                seen |= new
                chosen.append(case)
    for case in chosen:
        source = case.config.source(case.problem)
        check(case, load(nvrtc(source, target.arch), source, 0), "cuda")
    print(f"{len(chosen)} kernels ran right", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--run"]:
        run()
    else:
        # The caching allocator would hide accesses beyond a tensor.
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        wrong = {tool: found for tool in sys.argv[1:] or TOOLS if (found := watch(tool)) is not None}
        for tool, found in wrong.items():
            print(f"== {tool}: {found}")
        sys.exit(1 if wrong else 0)

"""The supervisor: a worker that cannot start, hangs, outlives its tuner, or goes from one tuning to the next."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tuner_samples import problem_of

from kgen.dsl.errors import DeviceError
from kgen.dsl.problem import Problem
from kgen.tuner.protocol import Open
from kgen.tuner.race import Policy
from kgen.tuner.supervisor import IdleWorkers, Supervisor, WorkerLost, idle_workers

FAKE = Path(__file__).with_name("fake_worker.py")


@pytest.fixture
def gelu() -> Problem:
    return problem_of("gelu", {"...": (2**20,)})


def test_a_real_worker_reports_that_it_has_no_gpu(gelu: Problem) -> None:
    """The real program, started for real: on a machine without a GPU it answers, and does not die."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with (
        Supervisor(Open(gelu, 0, 1 << 20, 0)) as supervisor,
        pytest.raises(DeviceError, match="cannot prepare the problem"),
    ):
        supervisor.load(None)  # type: ignore[arg-type]


def test_a_worker_that_does_not_start_is_an_error(gelu: Problem) -> None:
    command = (sys.executable, "-c", "raise SystemExit(5)")
    with Supervisor(Open(gelu, 0, 0, 0), command) as supervisor, pytest.raises(DeviceError, match=r"does not start.*5"):
        supervisor.load(None)  # type: ignore[arg-type]


def test_a_hanging_worker_is_gone_after_the_limit(gelu: Problem) -> None:
    command = (sys.executable, "-c", "import time; time.sleep(100)")
    supervisor = Supervisor(Open(gelu, 0, 0, 0), command, (0.5, 0.5, 0.5))
    supervisor.start()
    process = supervisor._process
    with pytest.raises(DeviceError, match="does not start"):
        supervisor.load(None)  # type: ignore[arg-type]
    assert process is not None
    assert process.poll() is not None


def test_a_worker_ends_with_its_parent(tmp_path: Path) -> None:
    """The tuner is killed while its worker is busy: the worker's watch ends it."""
    script = tmp_path / "parent.py"
    busy = tmp_path / "busy.py"
    busy.write_text(
        "import sys, time\nfrom multiprocessing.connection import Connection\nfrom kgen.tuner.worker import serve\n"
        "serve(Connection(int(sys.argv[1])), lambda request: time.sleep(1000))\n"
    )
    script.write_text(
        "import os, sys, time\nfrom tuner_samples import problem_of\nfrom kgen.tuner.protocol import Open\n"
        "from kgen.tuner.supervisor import Supervisor\n"
        f"s = Supervisor(Open(problem_of('gelu', {{'...': (8,)}}), 0, 0, 0), (sys.executable, {str(busy)!r}))\n"
        "s.start()\nprint(s._process.pid, flush=True)\ntime.sleep(6)\nos._exit(1)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FAKE.parent), *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    worker = int(done.stdout)
    for _ in range(100):
        if not _alive(worker):
            return
        time.sleep(0.1)
    os.kill(worker, 9)
    pytest.fail("the worker outlived the tuner")


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_worker_lost_says_what_happened() -> None:
    lost = WorkerLost("crashed", {"exit_code": -11})
    assert "crashed" in str(lost)
    assert "-11" in str(lost)


def test_a_worker_goes_from_one_tuning_to_the_next(gelu: Problem, tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    command = (sys.executable, str(FAKE), str(log))

    def used(failing: bool) -> None:
        with Supervisor(Open(gelu, 0, 0, 0), command, idle=idle) as supervisor:
            supervisor.measure([], Policy(), 0.0)
            if failing:
                raise WorkerLost("crashed", {})

    with idle_workers() as idle:
        used(failing=False)
        used(failing=False)
        with pytest.raises(WorkerLost):
            used(failing=True)
        assert len(idle) == 0  # of a tuning that failed nothing is used again
        used(failing=False)
        left = [process for _, _, (process, _) in idle._idle]
    told = [line.split(maxsplit=1) for line in log.read_text().splitlines()]
    opened = [process for process, request in told if request == "open"]
    assert len(opened) == 4
    assert [request for process, request in told if process == opened[0]].count("close") == 2
    assert opened[0] == opened[1] == opened[2] != opened[3] == str(left[0].pid)
    assert left[0].poll() is not None


def test_a_kept_worker_serves_the_same_environment_and_ends_when_nobody_comes(
    gelu: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (sys.executable, str(FAKE), str(tmp_path / "worker.log"))
    idle = IdleWorkers(linger=1.0)

    def used() -> int:
        with Supervisor(Open(gelu, 0, 0, 0), command, idle=idle) as supervisor:
            supervisor.measure([], Policy(), 0.0)
            assert supervisor._process is not None
            return supervisor._process.pid

    first = used()
    assert used() == first
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    other = used()
    assert other != first
    assert len(idle) == 2
    for _ in range(100):
        if not (_alive(first) or _alive(other)):
            break
        time.sleep(0.1)
    assert len(idle) == 0
    assert not _alive(first)
    assert not _alive(other)

"""Eight processes write at once and some are killed: every acknowledged trial survives, and the database is sound."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from kgen.tuning_db import GpuFacts, open_store

WRITERS = 8
ENDLESS = 10**9
GPU = GpuFacts("NVIDIA H200", "sm_90a", 132, 50 << 20)


def start(path: Path, count_of: list[int]) -> list[subprocess.Popen[str]]:
    script = str(Path(__file__).parent / "writer.py")
    writers = [
        subprocess.Popen(
            [sys.executable, script, str(path), str(name), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, count in enumerate(count_of)
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:  # all open the same new file at once
        writer.stdin.write("go\n")
        writer.stdin.flush()
    return writers


def stored(path: Path) -> dict[int, tuple[str, int]]:
    with open_store(path) as store:
        assert store.check() == []
        trials = [trial for problem in store.problems() for trial in store.trials(problem, GPU)]
        counted = store.statistics()
        assert (len(counted.gpus), counted.configs, counted.trials["measured"]["ok"]) == (1, 11, len(trials))
        assert counted.best == counted.problems == 7
        return {trial.id: (trial.evidence["writer"], trial.evidence["number"]) for trial in trials}


def test_concurrent_writers_from_an_empty_file(tmp_path):
    path = tmp_path / "new" / "t.sqlite"
    writers = start(path, [40] * WRITERS)
    printed = [writer.communicate()[0].splitlines() for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * WRITERS
    acknowledged = {
        int(identity): (str(name), int(number))
        for name, lines in enumerate(printed)
        for identity, number in map(str.split, lines)
    }
    assert len(acknowledged) == 40 * WRITERS
    assert stored(path) == acknowledged


def test_killed_writers_lose_nothing_acknowledged(tmp_path):
    path = tmp_path / "t.sqlite"
    killed = WRITERS // 2
    writers = start(path, [ENDLESS] * killed + [60] * (WRITERS - killed))
    acknowledged: dict[int, tuple[str, int]] = {}
    enough = [threading.Event() for _ in writers]

    def listen(name: int, writer: subprocess.Popen[str]) -> None:
        for line in writer.stdout:
            if line.endswith("\n"):  # a line cut off by the kill acknowledges nothing
                identity, number = map(int, line.split())
                acknowledged[identity] = (str(name), number)
                if number >= 20 + 7 * name:
                    enough[name].set()

    listeners = [threading.Thread(target=listen, args=pair) for pair in enumerate(writers)]
    for listener in listeners:
        listener.start()
    for name in range(killed):
        assert enough[name].wait(120)
        writers[name].kill()
    codes = [writer.wait() for writer in writers]
    for listener in listeners:
        listener.join()
    assert codes == [-9] * killed + [0] * (WRITERS - killed)
    kept = stored(path)
    assert acknowledged.items() <= kept.items()
    # A killed writer may have committed one trial that it had no time to acknowledge; nothing else is there.
    assert len(kept) - len(acknowledged) <= killed
    with open_store(path) as store:
        store.remove(operator="hgemm")
        assert store.problems() == []

"""A worker without a GPU: it reads the config out of the header and pretends, as honestly or not as the config says.

Started by the tests in place of `kgen.tuner.worker`, with a folder for its log as its first argument.
"""

from __future__ import annotations

import os
import re
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from kgen.tuner.protocol import (
    OPPONENT,
    Close,
    Done,
    Failed,
    Load,
    Measure,
    Measured,
    Open,
    Reply,
    Request,
    Unload,
    Verified,
)
from kgen.tuner.race import Timing

BASE = 100e-6


def fields_of(header: str) -> dict[str, str]:
    """The values of the config in a generated header."""
    line = next(line for line in header.splitlines() if line.startswith("// Elementwise("))
    return dict(re.findall(r"(\w+)=('?\w+'?)", line))


def pretended(config: dict[str, str]) -> float:
    """The time of a config, in seconds: best with 512 threads and 4 items."""
    slower = (config["threads"] != "512") + 0.5 * (config["items"] != "4") + 0.1 * (config["blocks_per_sm"] != "2")
    return BASE * (1 + slower)


def sized(config: dict[str, str], elements: int) -> float:
    """Times in seconds of which 128 threads are best for few elements and 512 for many; alike at 5 million."""
    start, slope = (10e-6, 4e-12) if config["threads"] == "128" else (20e-6, 2e-12)
    return (start + slope * elements) * (1 + 0.5 * (config["items"] != "4"))


class FakeWorker:
    def __init__(self, log: Path) -> None:
        self.log = log
        self.times: dict[str, float] = {}

    def note(self, text: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{os.getpid()} {text}\n")

    def answer(self, request: Request) -> Reply:
        if isinstance(request, Open):
            self.note("open")
            return Done(opponent=True)
        if isinstance(request, Load):
            config = fields_of(request.job.source.header)
            self.note(f"load {request.job.name} verify={request.verify} cases={len(request.job.cases)}")
            if request.verify:
                failure = self.misbehave(config)
                if failure is not None:
                    return failure
            self.times[request.job.name] = pretended(config)
            if os.environ.get("FAKE_WORKER") == "sized":
                self.times[request.job.name] = sized(config, request.job.cases[0].problem.operands[0].elements)
            odd = os.environ.get("FAKE_WORKER") == "odd"
            return Verified(True, {"max_error": float("nan") if odd else 0.0, "allowed": 1.0})
        if isinstance(request, Close):
            self.note("close")
            return Done()
        if isinstance(request, Unload):
            for name in request.names:
                self.times.pop(name)
            return Done()
        assert isinstance(request, Measure)
        self.note(f"measure {len(request.names)} race={request.race}")
        times = {name: 2 * BASE if name == OPPONENT else self.times[name] for name in request.names}
        return Measured(
            {
                n: Timing(t, t * 0.999, t * 1.001, 20, ("impossible",) if t < request.floor_seconds else ())
                for n, t in times.items()
            }
        )

    def misbehave(self, config: dict[str, str]) -> Reply | None:
        """By the number of threads and waves: crash, hang, fault, refuse, be wrong, be slow."""
        behaviour = os.environ.get("FAKE_WORKER", "mixed")
        if behaviour in ("good", "odd", "sized"):
            return None
        if config["blocks_per_sm"] == "8" and config["threads"] == "1024":
            os._exit(3)
        if config["blocks_per_sm"] == "8" and config["threads"] == "128":
            time.sleep(3600)
        if config["blocks_per_sm"] == "4" and config["threads"] == "1024":
            return Failed("CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)", 700)
        if config["blocks_per_sm"] == "4" and config["threads"] == "128":
            return Failed("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", 701)
        if config["blocks_per_sm"] == "1":
            return Verified(False, {"check": "exact", "index": [3], "got": "nan", "expected": 2.0})
        if config["blocks_per_sm"] == "8":
            return Verified(False, {"check": "slow", "seconds": 1.0, "patience": 0.1})
        return None


if __name__ == "__main__":
    worker, connection = FakeWorker(Path(sys.argv[1])), Connection(int(sys.argv[2]))
    while True:
        try:
            connection.send(worker.answer(connection.recv()))
        except EOFError:
            break

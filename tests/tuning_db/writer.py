"""A process of test_db_concurrency: opens the store, adds trials, prints each one's number once it is acknowledged."""

from __future__ import annotations

import sys

from kgen.tuning_db import ConfigText, GpuFacts, ProblemKey, Toolchain, TrialRecord, open_store


def main(path: str, name: str, count: int) -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    store = open_store(path)
    gpu, toolchain = GpuFacts("NVIDIA H200", "sm_90a", 132, 50 << 20), Toolchain("13.5", "0.1.0", "ab" * 8)
    for number in range(count):
        problem = ProblemKey("hgemm", "cd" * 32, f"M={number % 7}", "gemm", {"M": number % 7})
        config = ConfigText("MmaGemm", 1, f"MmaGemm(BM={number % 11})", f"{number % 11:016x}")
        times = {"seconds": 2e-5, "lower": 1e-5, "upper": 3e-5, "samples": 5}
        trial = TrialRecord(config, "ok", "measured", **times, evidence={"writer": name, "number": number})
        identity = store.add_trial(gpu, toolchain, problem, trial)
        if number % 5 == 0:
            store.set_best(identity)
        print(identity, number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

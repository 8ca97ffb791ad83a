"""How good the gate is: python tests/mutants/run.py [NAME ...] [--jobs N] [--seconds S] [--json FILE]

Each mutant (mutant.py) is put into a copy of the tree, and `kgen verify OP --emulate --config ...` runs there in a process of
its own. NAME is a mutant, or the beginning of several. The gate has to let the same config pass without the mutant, and
the mutant has to change the text of the kernel, its launch or limits: else it is void. Exit code 1 where a mutant is void
or does not compile.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations, product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mutant import ROOT, Mutant, Where, all_mutants

GPU = "H200"
SECONDS = 300.0
#: What `kgen verify` needs of the tree.
_FOLDERS = ("kgen", "templates", "tuning_db")


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant. `status`: refused, passed, timeout, crashed, or void (with the reason in `told`)."""

    name: str
    kind: str
    file: str
    visible: bool
    status: str
    check: str
    told: str
    seconds: float

    @property
    def refused(self) -> bool:
        return self.status in ("refused", "crashed", "timeout")


def copy_tree(to: Path, changed: dict[str, str]) -> None:
    """A tree of links to ours, but for the files of which `changed` has the text."""
    for folder in _FOLDERS:
        shutil.copytree(ROOT / folder, to / folder, copy_function=os.symlink)
    for file, text in changed.items():
        (to / file).unlink()
        (to / file).write_text(text, encoding="utf-8")


def nearest(config: Any, wanted: dict[str, Any], problem: Any, target: Any) -> Any:
    """The config with the `wanted` fields that breaks no rule and differs from `config` in the fewest others."""
    start = config.replace(**wanted)
    free = [name for name in config.fields if name not in wanted]
    for changes in range(4):
        for names in combinations(free, changes):
            for values in product(*([v for v in config.fields[n].values if v != start.values[n]] for n in names)):
                found = start.replace(**dict(zip(names, values)))
                if not found.broken(problem, target):
                    return found
    raise ValueError(f"no config near {start!r} is valid for {problem}")


def verify(tree: str, where: Where) -> tuple[str, int, str, str]:
    """In a process that has not loaded kgen: digest of the kernel, its launch and limits, exit code, output, errors."""
    sys.path.insert(0, tree)
    from kgen.cli import main, problems
    from kgen.dsl.family import family_of, schedules
    from kgen.runtime.machine import find_gpu

    assert sys.modules["kgen"].__file__ == f"{tree}/kgen/__init__.py", sys.modules["kgen"].__file__
    options = dict(zip(where.options[::2], where.options[1::2]))
    operator = problems.find_operator(where.operator)
    chosen = problems.select(
        operator, [where.shape], None, options.get("--dtype"), options.get("--transposed"), options.get("--layout")
    )[0]
    problem = family_of(chosen.graph).normalise(chosen)
    target = find_gpu(GPU).target
    config = nearest(schedules()[where.schedule].default(problem, target), dict(where.fields), problem, target)
    source = config.source(problem)
    words = ["verify", where.operator, "--shape", where.shape, *where.options, "--emulate", "--gpu", GPU, "--json"]
    words += ["--config", repr(config)]
    out, errors = io.StringIO(), io.StringIO()
    code: Any = 0
    try:
        with redirect_stdout(out), redirect_stderr(errors):
            sys.argv = ["kgen", *words]
            main.main()
    except SystemExit as end:
        code = end.code or 0
    parts = (source.ptx, source.body, source.limits, source.params, source.launch)
    digest = hashlib.sha256("".join(map(str, parts)).encode()).hexdigest()
    return digest, code if isinstance(code, int) else 1, out.getvalue(), errors.getvalue() + f"{config!r}"


def _child(pipe: Connection, tree: str, where: Where) -> None:
    try:
        pipe.send(verify(tree, where))
    except BaseException as error:
        pipe.send(("", 3, "", f"{type(error).__name__}: {error}"))
    os._exit(0)


def in_child(changed: dict[str, str], where: Where, seconds: float) -> tuple[str, int, str, str] | str:
    """`verify` in a copy of the tree; "timeout" or "crashed" where it did not end by itself."""
    forks = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy_tree(Path(folder), changed)
        ours, theirs = forks.Pipe(duplex=False)
        process = forks.Process(target=_child, args=(theirs, folder, where))
        process.start()
        theirs.close()
        try:
            if not ours.poll(seconds):
                return "timeout"
            return ours.recv()  # type: ignore[no-any-return]
        except EOFError:
            return "crashed"
        finally:
            process.kill()
            process.join()


def judge(mutant: Mutant, sound: dict[str, tuple[str, str]], seconds: float) -> Outcome:
    """What becomes of a mutant; `sound` has for every Where the digest without it, and what is wrong even so."""
    made = partial(Outcome, mutant.name, mutant.kind, mutant.file, mutant.visible)
    digest, wrong = sound[mutant.where.key]
    if wrong:
        return made("void", "", f"without the mutant: {wrong}", 0.0)
    try:
        changed = {mutant.file: mutant.applied()}
    except ValueError as error:
        return made("void", "", str(error), 0.0)
    begun = time.monotonic()
    found = in_child(changed, mutant.where, seconds)
    taken = round(time.monotonic() - begun, 1)
    if isinstance(found, str):
        return made(found, "", "", taken)
    own, code, out, errors = found
    if own == digest and not mutant.file.startswith("kgen/emulator"):
        return made("void", "", "the kernel, its launch and limits are the same", taken)
    if code == 0:
        return made("passed", "", "", taken)
    if code == 1 and out.strip().startswith("{"):
        bad = next(r for r in json.loads(out)["results"] if not r["ok"])
        told = bad["evidence"].get("message", json.dumps(bad["evidence"]))
        return made("refused", bad["evidence"]["check"], f"{bad['verified']}: {told}"[:400], taken)
    return made("void", "", f"exit code {code}: {errors[-600:]}", taken)


def run(mutants: Sequence[Mutant], jobs: int = 1, seconds: float = SECONDS) -> list[Outcome]:
    """Judges mutants, `jobs` at a time, and tells of each."""
    places = list({m.where.key: m.where for m in mutants}.values())

    def without(where: Where) -> tuple[str, str]:
        found = in_child({}, where, seconds)
        if isinstance(found, str):
            return "", found
        return found[0], "" if found[1] == 0 else f"exit code {found[1]}: {(found[3] + found[2])[-800:]}"

    def told(mutant: Mutant) -> Outcome:
        outcome = judge(mutant, sound, seconds)
        print(
            f"{outcome.status:8} {outcome.check:10} {outcome.seconds:6.1f} s  {outcome.name}: {outcome.told[:200]}",
            flush=True,
        )
        return outcome

    with ThreadPoolExecutor(jobs) as pool:
        sound = dict(zip((w.key for w in places), pool.map(without, places)))
        return list(pool.map(told, mutants))


def summary(outcomes: Sequence[Outcome]) -> str:
    """Refused of all that a CPU can see, by kind and in all, and what was let through."""
    lines = []
    judged = [o for o in outcomes if o.visible and o.status != "void"]
    for kind in sorted({o.kind for o in judged}):
        own = [o for o in judged if o.kind == kind]
        lines.append(f"{kind:10} {sum(o.refused for o in own):3} of {len(own):3}")
    checks = Counter(o.check or o.status for o in judged if o.refused)
    lines.append("by " + ", ".join(f"{check} {count}" for check, count in checks.most_common()))
    lines += [f"let through: {o.name} ({o.kind}, {o.file})" for o in judged if not o.refused]
    lines += [f"unseen on a CPU, {o.status}: {o.name}" for o in outcomes if not o.visible]
    lines += [f"void: {o.name}: {o.told}" for o in outcomes if o.status == "void"]
    share = sum(o.refused for o in judged) / len(judged) if judged else 0.0
    return "\n".join([*lines, f"refused {sum(o.refused for o in judged)} of {len(judged)} ({share:.1%})"])


def preload() -> None:
    """What every process needs of the outside, loaded once, before it forks."""
    import jinja2  # noqa: F401
    import torch
    import typer  # noqa: F401

    torch.set_num_threads(1)
    assert "kgen" not in sys.modules, "kgen is loaded: no copy of it would be"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    chosen = [m for m in all_mutants().values() if not given.names or m.name.startswith(tuple(given.names))]
    preload()
    outcomes = run(chosen, given.jobs, given.seconds)
    print(summary(outcomes))
    if given.json:
        given.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1) + "\n", encoding="utf-8")
    return 1 if any(o.status == "void" for o in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes the tables of a folder's README from the JSON files beside it: python benchmarks/report.py benchmarks/results/h200

A table stands between a line `<!-- table: KIND ARGUMENT ... -->` and a line `<!-- end -->`; what is around them is
written by hand. Kinds, with the names of JSON files without their ending:

    products A B ...            a line for each M x N x K, with each file's time and speed over cuBLAS
    ratios OPPONENT A ...       a line for each problem, with the speed over an opponent
    bandwidths YARDSTICK A ...  a line for each problem, with its share of the largest bandwidth of a yardstick at that commit
    rows A ...                  a line for each file, with that share (of a copy) and the speed over torch.compile by row length
    searches A ...              a line for each file of samplers.py
    techniques A                a line for each technique of techniques.py, with its time on each problem
    heads A                     a line for each problem of attention.py, with the best config's speed and its opponents'
    changes A                   a line for each part of versions.py, with the new version's time over the old one's
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kgen.bench import Result
from kgen.bench.result import SCHEMA, Comparison, geometric_mean

Row = list[str]
_TABLE = re.compile(r"(<!-- table: ([\w .]+?) -->\n).*?(<!-- end -->)", re.DOTALL)


class Folder:
    """The results in a folder by name, and the largest bandwidth of a yardstick at each commit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results = {
            file.stem: Result.from_json(text)
            for file in sorted(path.glob("*.json"))
            if json.loads(text := file.read_text()).get("schema") == SCHEMA
        }

    def other(self, name: str) -> Any:
        """What a script wrote that is no benchmark of one operator."""
        return json.loads((self.path / f"{name}.json").read_text())

    def commit(self, name: str) -> str:
        """The commit that a file was measured at."""
        return str(self.results[name].environment["commit"])[:7]

    def share(self, name: str, comparison: Comparison, yardstick: str) -> str:
        """The bandwidth of kgen as a share of the largest of a yardstick at the same commit."""
        at = [r for n, r in self.results.items() if self.commit(n) == self.commit(name)]
        largest = max((b for r in at if (b := r.bandwidth(yardstick))), default=None)
        time = comparison.time("kgen")
        return f"{comparison.bytes / time.seconds / largest:.3f}" if time and largest else ""


def products(folder: Folder, *names: str) -> Iterator[Row]:
    """See the module."""
    yield ["M x N x K", *(head for name in names for head in (f"{name}, us", "of cuBLAS"))]
    files = [{_sizes(c): c for c in folder.results[name].comparisons} for name in names]
    for sizes in files[0]:
        cells = [cell for found in files for cell in (_us(found[sizes]), _speed(found[sizes], "cublas"))]
        yield [" x ".join(map(str, sizes)), *cells]


def ratios(folder: Folder, opponent: str, *names: str) -> Iterator[Row]:
    """See the module."""
    yield ["problem", "kgen, us", "rate", f"{opponent}, us", "speed over it", "commit"]
    for name in names:
        for c in folder.results[name].comparisons:
            rate = f"{(c.rate('kgen') or 0) / 1e12:.1f} TFLOP/s"
            yield [c.problem, _us(c), rate, _us(c, opponent), _speed(c, opponent), folder.commit(name)]


def bandwidths(folder: Folder, yardstick: str, *names: str) -> Iterator[Row]:
    """See the module. Where files share a problem, their names tell them apart."""
    compared = [(name, c) for name in names for c in folder.results[name].comparisons]
    opponents = list(dict.fromkeys(o for name in names for o in folder.results[name].opponents))
    problems = [c.problem for _, c in compared]
    head = ["problem", "kgen, us", "GB/s", f"of the largest {yardstick}"]
    yield [*head, *(f"speed over {o}" for o in opponents), "commit"]
    for name, c in compared:
        label = c.problem if problems.count(c.problem) == 1 else name
        time = c.time("kgen")
        rate = f"{c.bytes / time.seconds / 1e9:.0f}" if time else ""
        speeds = [_speed(c, o) for o in opponents]
        yield [label, _us(c), rate, folder.share(name, c, yardstick), *speeds, folder.commit(name)]


def rows(folder: Folder, *names: str) -> Iterator[Row]:
    """See the module."""
    lengths = [_length(c) for c in folder.results[names[0]].comparisons]
    yield ["rows of", *map(str, lengths), "commit"]
    for name in names:
        by_length = {_length(c): c for c in folder.results[name].comparisons}
        cells = [f"{folder.share(name, by_length[n], 'copy')}, {_speed(by_length[n], 'compile')}" for n in lengths]
        yield [name, *cells, folder.commit(name)]


def searches(folder: Folder, *names: str) -> Iterator[Row]:
    """See the module. How long a search of each kind goes on until it ends by itself, and how far it is from the best then."""
    yield ["", "configs", "best, us", "ends after, trials", "regret then"]
    for name in names:
        data = folder.other(name)
        times = [t for t in data["configs"].values() if t is not None]
        trials, regrets = zip(*((end["trials"], end["regret"]) for end in data["ended"]))
        sizes = " x ".join(str(n) for n in data["sizes"].values())
        yield [
            f"{data['operator']} {sizes}",
            str(len(data["configs"])),
            f"{min(times) * 1e6:.2f}",
            f"{min(trials)} to {max(trials)}",
            f"{max(regrets):.2%}",
        ]


def techniques(folder: Folder, name: str) -> Iterator[Row]:
    """See the module. What declined or was wrong says so; of kgen it is the best of all."""
    comparisons = folder.results[name].comparisons
    yield ["us", *(c.problem for c in comparisons)]
    for participant in comparisons[0].participants:
        yield [participant.name, *(_us(c, participant.name) for c in comparisons)]


def heads(folder: Folder, name: str) -> Iterator[Row]:
    """See the module. TFLOP/s, causal work counted as half; the ratio is over the fastest of the others."""
    yield ["D, N, batch, heads", "", "kgen", "cuDNN", "FlashAttention-2", "efficient", "of the fastest", "the config"]
    for row in folder.other(name)["rows"]:
        found = row["tflops"]
        best = max((config for config in found if "(" in config), key=found.__getitem__)
        others = [found.get(opponent) for opponent in ("cudnn", "flash", "efficient")]
        ratio = found[best] / max(other for other in others if other)
        yield [
            ", ".join(map(str, row["case"])),
            "causal" if row["causal"] else "full",
            f"{found[best]:.0f}",
            *(f"{other:.0f}" if other else "" for other in others),
            f"{ratio:.3f}",
            f"`{best}`",
        ]


def changes(folder: Folder, name: str) -> Iterator[Row]:
    """See the module. The geometric mean, the largest and the smallest ratio of a part."""
    parts: dict[str, list[float]] = {}
    for row in folder.other(name)["rows"]:
        if not row["errors"]:
            old, new = row["seconds"]
            parts.setdefault(row["part"], []).append(new / old)
    yield ["part", "problems", "new time / old time", "largest", "smallest"]
    for part, found in parts.items():
        yield [part, str(len(found)), *(f"{x:.3f}" for x in (geometric_mean(found), max(found), min(found)))]


KINDS = {kind.__name__: kind for kind in (products, ratios, bandwidths, rows, searches, techniques, heads, changes)}


def written(path: Path) -> str:
    """The README of a folder with its tables made anew. KeyError for a file or a kind that is not there."""
    folder = Folder(path)

    def made(match: re.Match[str]) -> str:
        kind, *arguments = match[2].split()
        head, *body = KINDS[kind](folder, *arguments)
        lines = [head, ["---"] * len(head), *body]
        return match[1] + "".join(f"| {' | '.join(line)} |\n" for line in lines) + match[3]

    return _TABLE.sub(made, (path / "README.md").read_text("utf-8"))


def _us(comparison: Comparison, name: str = "kgen") -> str:
    """A participant's time in microseconds, or its status."""
    time, found = comparison.time(name), comparison.participant(name)
    return f"{time.seconds * 1e6:.1f}" if time else found.status if found else ""


def _speed(comparison: Comparison, opponent: str) -> str:
    """The speed of kgen over an opponent, or why there is none."""
    ratio, found = comparison.ratio(opponent), comparison.participant(opponent)
    return f"{ratio.value:.3f}" if ratio else found.status if found and found.status != "ok" else ""


def _sizes(comparison: Comparison) -> tuple[int, ...]:
    m, k, n = (int(x) for x in re.findall(r"[MKN]=(\d+)", comparison.problem))
    return m, n, k


def _length(comparison: Comparison) -> int:
    return int(re.findall(r"N=(\d+)", comparison.problem)[0])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        (Path(name) / "README.md").write_text(written(Path(name)), "utf-8")

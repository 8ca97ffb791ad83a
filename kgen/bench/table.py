"""Table: a Result as rows of text, for a terminal or a page."""

from __future__ import annotations

from dataclasses import dataclass

from kgen.bench.result import SUBJECT, Comparison, Participant, Result, Time


@dataclass(frozen=True)
class Table:
    """Column heads, one row a problem, and the lines below: geometric mean, worst ratio, who took no part and why."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [self.header, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.header))]
        text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
        return "\n".join([text[0], "  ".join("-" * width for width in widths), *text[1:], *self.notes])


def comparison_table(result: Result) -> Table:
    """Times and rates of kgen, and for each opponent its time and that over kgen's: above 1x, kgen is the faster.

    Where calls were timed alone too, these times and ratios follow.
    """
    ways = (False, True) if _is_alone(result) else (False,)
    rows = [
        (c.problem, *(cell for alone in ways for cell in _cells(c, result.opponents, alone)))
        for c in result.comparisons
    ]
    header = ("problem", SUBJECT, "rate", *result.opponents)
    if _is_alone(result):
        header += tuple(f"{name} alone" for name in (SUBJECT, *result.opponents))
    return Table(header, tuple(rows), tuple(_notes(result)))


def participants_table(result: Result) -> Table:
    """A row for each participant of each problem: its time, its rate, that as a part of kgen's, and its config."""
    rows = []
    for c in result.comparisons:
        for p in c.participants:
            time, rate, ratio = c.time(p.name), c.rate(p.name), c.ratio(p.name)
            told = p.detail if time else f"{p.status}: {p.detail}"
            over = f"{1 / ratio.value:.3f}x" if ratio else "-"
            rows.append((c.problem, p.name, format_time(time) if time else "-", _rate(c, rate), over, told))
    header = ("problem", "technique", "time", "rate", f"of {SUBJECT}'s", "config")
    return Table(header, tuple(rows), tuple(note for note in _notes(result) if note.startswith(("*", "largest"))))


def _rate(c: Comparison, rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate / 1e12:.1f} TFLOP/s" if c.flops else f"{rate / 1e9:.0f} GB/s"


def _is_alone(result: Result) -> bool:
    return any(p.alone for c in result.comparisons for p in c.participants)


def _cells(c: Comparison, opponents: tuple[str, ...], alone: bool) -> list[str]:
    """kgen's time, its rate where calls are back to back, and the opponents'."""
    rate = [] if alone else [_rate(c, c.rate(SUBJECT))]
    return [_cell(c, SUBJECT, alone), *rate, *(_cell(c, name, alone) for name in opponents)]


def _cell(c: Comparison, name: str, alone: bool) -> str:
    time, found = c.time(name, alone), c.participant(name)
    ratio = None if name == SUBJECT else c.ratio(name, alone)
    if time is None:
        return found.status if found else "-"
    return format_time(time) + (f" {ratio.value:.3f}x" if ratio else "")


def format_time(time: Time) -> str:
    """Microseconds with the half width of the interval in per cent; * where the GPU was at its power limit."""
    spread = 50 * (time.upper - time.lower) / time.seconds
    return f"{time.seconds * 1e6:.1f} us ±{spread:.1f}%{'*' if 'power_capped' in time.flags else ''}"


def _notes(result: Result) -> list[str]:
    notes = [
        f"vs {s.opponent}: geometric mean {s.mean.value:.3f}x [{s.mean.lower:.3f}, {s.mean.upper:.3f}] over {s.problems} "
        f"of {len(result.comparisons)} problems, worst {s.worst:.3f}x at {s.worst_problem}"
        for s in result.summaries()
    ]
    notes += [
        f"alone, with another kernel between any two calls, vs {s.opponent}: geometric mean {s.mean.value:.3f}x "
        f"[{s.mean.lower:.3f}, {s.mean.upper:.3f}], worst {s.worst:.3f}x at {s.worst_problem}"
        for s in result.summaries(alone=True)
    ]
    for kind in ("copy", "read"):
        bandwidth = result.bandwidth(kind)
        if bandwidth:
            notes.append(f"largest {kind} bandwidth in this run: {bandwidth / 1e9:.0f} GB/s")
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for c in result.comparisons:
        for p in c.participants:
            if p.status != "ok":
                reasons.setdefault((p.name, p.status, p.detail), []).append(c.problem)
    for (name, status, detail), problems in reasons.items():
        where = "" if len(problems) == len(result.comparisons) else f" at {', '.join(problems)}"
        notes.append(f"{name} {status}{where}: {detail}")
    if any(_capped(p) for c in result.comparisons for p in c.participants):
        notes.append("*: the GPU was at its power limit")
    return notes


def _capped(p: Participant) -> bool:
    return p.time is not None and "power_capped" in p.time.flags

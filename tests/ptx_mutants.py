"""Every sensible single change of the inline PTX of a text: what the tests of the PTX layer are tried with.

A change is of one of three classes. "value": a kernel of tests/ptx_cases.py must come out wrong, fault or hang. "order": only
the memory model tells it from the original, and one GPU need not show that. "hint": it changes speed at most. What no value
shows is guarded by the text itself: tests/codegen/test_ptx_text.py states the instructions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Class = Literal["value", "order", "hint"]


@dataclass(frozen=True)
class Statement:
    """One `asm` of a function: its place in a text, its instructions, what follows them (operands, clobbers)."""

    function: str
    start: int
    end: int
    volatile: bool
    code: str
    rest: str

    @property
    def text(self) -> str:
        """As C++, on one line."""
        code = self.code.replace("\n", "\\n")
        return f'asm {"volatile" if self.volatile else ""}("{code}" {self.rest})'


@dataclass(frozen=True)
class Change:
    """A statement and what it becomes, as C++; `told` says what was changed."""

    statement: Statement
    told: str
    becomes: str
    kind: Class

    def __str__(self) -> str:
        return f"{self.statement.function}: {self.told}"

    def applied(self, text: str) -> str:
        """The text with the change."""
        return text[: self.statement.start] + self.becomes + text[self.statement.end :]


_STRINGS = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"\s*)')
_FUNCTION = re.compile(r"__device__ __forceinline__ [^(;]*?\b(\w+)\(")


def statements(text: str) -> list[Statement]:
    """The `asm` statements of a text, in its order; empty ones, which only hold the compiler, too."""
    found = []
    for match in re.finditer(r"\basm\b( volatile)?\s*\(", text):
        place, parts = match.end(), []
        while (part := _STRINGS.match(text, place)) is not None:
            parts.append(part[1])
            place = part.end()
        depth, end = 1, place
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        functions = _FUNCTION.findall(text[: match.start()])
        rest = " ".join(text[place : end - 1].split())
        code = "".join(parts).replace("\\n", "\n")
        found.append(Statement(functions[-1], match.start(), end, match[1] is not None, code, rest))
    return found


#: What may stand for what in an instruction, and which class of change that is.
_EXCHANGED: tuple[tuple[str, str, Class], ...] = (
    (r"\.relaxed\b", ".acquire", "order"),
    (r"\.relaxed\b", ".release", "order"),
    (r"\.acquire\b", ".relaxed", "order"),
    (r"\.release\b", ".relaxed", "order"),
    (r"\.(gpu)\b", ".cta", "order"),
    (r"\.(gpu)\b", ".cluster", "order"),
    (r"\.(gpu)\b", ".sys", "order"),
    (r"(?<=release)\.cluster\b", ".cta", "order"),
    # An address of the block itself is the same in both windows; one that mapa made is not.
    (r"shared::cta\b", "shared::cluster", "hint"),
    (r"^cp(.*)shared::cluster\b", r"cp\1shared::cta", "hint"),
    (r"^((?!cp).*)shared::cluster\b", r"\1shared::cta", "value"),
    (r"^mbarrier\.arrive\.", "mbarrier.arrive.relaxed.cta.", "order"),
    (r"\.parity\.", ".parity.relaxed.cta.", "order"),
    (r"proxy\.async\.shared::cta", "proxy.async.global", "order"),
    (r"proxy\.async\.global", "proxy.async.shared::cta", "order"),
    (r"\.global\b", "", "hint"),
    (r"\.nc\b", "", "hint"),
    (r"\.L1::no_allocate\b", "", "hint"),
    (r"::evict_last\b", "::evict_first", "hint"),
    (r"::evict_last\b", "::evict_normal", "hint"),
    (r"\.read\b", "", "order"),
    (r"\.ca\b", ".cg", "hint"),
    (r"\.trans\b", "", "value"),
    (r"\.m8n8\.x(?=\d)", ".m8n8.trans.x", "value"),
    (r"(\.x[124])(?=\.shared)", r"\1.trans", "value"),
    (r"\.x1\b", ".x2", "value"),
    (r"\.x2\b", ".x4", "value"),
    (r"\.x4\b", ".x2", "value"),
    (r"\.x2\b", ".x1", "value"),
    (r"\.v2\b", "", "value"),
    (r"\.v4\b", ".v2", "value"),
    (r"\.v2\b", ".v4", "value"),
    (r"\.NaN\b", "", "value"),
    (r"\.ftz\b", "", "value"),
    (r"\.noftz\b", "", "value"),
    (r"^max\b", "min", "value"),
    (r"^min\b", "max", "value"),
    (r"^ex2\b", "lg2", "value"),
    (r"^rcp\b", "rsqrt", "value"),
    (r"^rcp\b", "sqrt", "value"),
    (r"\.wide\.s32", ".wide.u32", "value"),
    (r"\.wide\b", ".lo", "value"),
    (r"\.wide\b", ".hi", "value"),
    (r"\.add\b", ".max", "value"),
    (r"\.add\b", ".min", "value"),
    (r"\.add\b", ".exch", "value"),
    (r"\.add\b", ".and", "value"),
    (r"\.f16x2\b", ".bf16x2", "value"),
    (r"\.bf16x2\b", ".f16x2", "value"),
    (r"\.f16\.f16\b", ".bf16.bf16", "value"),
    (r"\.bf16\.bf16\b", ".f16.f16", "value"),
    (r"\.tf32\.tf32\b", ".bf16.bf16", "value"),
    (r"\.e4m3\.e4m3\b", ".e5m2.e5m2", "value"),
    (r"\.e5m2\.e5m2\b", ".e4m3.e4m3", "value"),
    (r"\.e4m3\.e4m3\b", ".e4m3.e5m2", "value"),
    (r"\.e5m2\.e5m2\b", ".e5m2.e4m3", "value"),
    (r"\.s8\.s8\b", ".u8.s8", "value"),
    (r"\.s8\.s8\b", ".s8.u8", "value"),
    (r"\.rn\b", ".rna", "value"),
    (r"\.rn\b", ".rz", "value"),
    (r"\.rna\b", ".rn", "value"),
    (r"\.u8\b", ".u16", "value"),
    (r"\.u16\b", ".u8", "value"),
    (r"^ld(.*)\.u32\b", r"ld\1.u16", "value"),
    (r"\.m16n8k16\b", ".m16n8k8", "value"),
    (r"\.m16n8k8\b", ".m16n8k16", "value"),
    (r"\.row\.col\b", ".row.row", "value"),
    (r"k16\.f32", "k8.f32", "value"),
    (r"\.noinc\b", "", "value"),
    (r"\.expect_tx\b", "", "value"),
    (r"\.parity\b", "", "value"),
    (r"\.[1-5]d\b", ".2d", "value"),
    (r"\.[1-5]d\b", ".3d", "value"),
    (r"\.tile\b", "", "hint"),
    (r"\.multicast::cluster\b", "", "value"),
    (r"^bar\.sync\b", "bar.arrive", "value"),
    (r"^bar\.arrive\b", "bar.sync", "value"),
    (r"cluster\.arrive\.release", "cluster.wait.acquire", "value"),
    (r"cluster\.wait\.acquire", "cluster.arrive.release", "value"),
    (r"^wgmma\.commit_group\.sync\.aligned", "wgmma.fence.sync.aligned", "value"),
    (r"^cp\.async\.commit_group", "cp.async.wait_all", "hint"),
    (r"^cp\.async\.bulk\.commit_group", "cp.async.commit_group", "value"),
    (r"^cp\.async\.wait_group", "cp.async.bulk.wait_group", "value"),
    (r"^cp\.async\.bulk\.wait_group\.read", "cp.async.wait_group", "value"),
    (r"^griddepcontrol\.wait", "griddepcontrol.launch_dependents", "value"),
    (r"^griddepcontrol\.launch_dependents", "griddepcontrol.wait", "order"),
    (r"setmaxnreg\.dec", "setmaxnreg.inc", "value"),
    (r"setmaxnreg\.inc", "setmaxnreg.dec", "value"),
    (r"setp\.ne\b", "setp.eq", "value"),
    (r"selp\.u32 %0, 1, 0", "selp.u32 %0, 0, 1", "value"),
    (r"try_wait", "test_wait", "hint"),
    (r"%%cluster_ctarank", "%%cluster_nctarank", "value"),
    (r"%%cluster_ctarank", "%%ctaid.x", "value"),
)

#: Functions all of whose work is order: without them a kernel may come out right by chance.
_ORDER = frozenset(
    (
        "fence_proxy_async",
        "fence_proxy_async_global",
        "mbarrier_init_fence",
        "wgmma_fence",
        "griddepcontrol_wait",
        "griddepcontrol_launch_dependents",
    )
)
#: Functions that only change speed.
_HINT = frozenset(
    ("tma_prefetch", "renew", "warpgroup_fence_operand", "setmaxnreg_dec", "setmaxnreg_inc", "policy_evict_last")
)
#: Functions of two operands in any order.
_COMMUTATIVE = frozenset(("max_nan", "min_nan", "multiply_wide"))
_SWAPS = 6


def changes(statement: Statement) -> Iterator[Change]:
    """The changes of a statement, each once."""
    seen = {statement.text}
    for told, becomes, kind in _changed(statement):
        if becomes not in seen:
            seen.add(becomes)
            yield Change(statement, told, becomes, _weighed(statement.function, kind))


def _weighed(function: str, kind: Class) -> Class:
    return "order" if function in _ORDER else "hint" if function in _HINT else kind


def _changed(s: Statement) -> Iterator[tuple[str, str, Class]]:
    def made(code: str = s.code, rest: str = s.rest, volatile: bool = s.volatile) -> str:
        return Statement(s.function, 0, 0, volatile, code, rest).text

    if not s.code:
        yield "without the statement", "", "hint"
        return
    yield "without the statement", _zeroed(s), "value"
    lines = s.code.split("\n")
    for i, line in enumerate(lines):
        if len(lines) > 1 and line.endswith(";") and not line.startswith(".reg"):
            yield f"without `{line}`", made("\n".join(lines[:i] + lines[i + 1 :])), "value"
        for old, new, kind in _EXCHANGED:
            changed = re.sub(old, new, line, count=1)
            if changed != line:
                if s.function == "sigmoid_approximate" and line.startswith("ex2") and ".ftz" not in changed:
                    kind = "hint"  # a power so small vanishes beside 1
                told = f"{_first(line)} -> {_first(changed)}"
                yield told, made("\n".join([*lines[:i], changed, *lines[i + 1 :]])), kind
    # Operands change places, or one of them goes.
    places = list(re.finditer(r"(?<!%)%\d+", s.code))
    neighbours = list(pairwise(places))
    for one, two in neighbours[:_SWAPS] + neighbours[-_SWAPS:]:
        if one[0] != two[0] and not (s.function in _COMMUTATIVE and "%0" not in (one[0], two[0])):
            between = s.code[one.end() : two.start()]
            code = s.code[: one.start()] + two[0] + between + one[0] + s.code[two.end() :]
            yield f"{one[0]} and {two[0]} change places", made(code), "value"
    for m in re.finditer(r", %\d+(?=;)", s.code):
        yield f"without operand{m[0]}", made(s.code[: m.start()] + s.code[m.end() :]), "value"
    # Numbers: in the instruction, then those that are operands.
    for m in re.finditer(r"(?<=, )\d+(?:\.\d+)?(?=[,;])", s.code):
        negative = ("-1",) if "wgmma" in s.code else ()
        for other in {"0": ("1",), "1": ("0", *negative), "1.0": ("0.5",)}.get(m[0], ()):
            yield f"{m[0]} -> {other} at {m.start()}", made(s.code[: m.start()] + other + s.code[m.end() :]), "value"
    for m in re.finditer(r'"n"\((\w+)\)', s.rest):
        flips = m[1].startswith("Transpose")
        for other in (f"!{m[1]}",) if flips else (f"{m[1]} + 1", f"{m[1]} - 1"):
            # Waiting for more than is needed takes time alone.
            kind: Class = "hint" if "wait" in s.function and other.endswith("- 1") else "value"
            yield f"{m[1]} -> {other}", made(rest=s.rest[: m.start()] + f'"n"({other})' + s.rest[m.end() :]), kind
    for m in re.finditer(r'"[rh]"\(([a-z]+)\)', s.rest):
        other = f"{m[0][:3]}({m[1]} + 1)"
        yield f"{m[1]} -> {m[1]} + 1", made(rest=s.rest[: m.start()] + other + s.rest[m.end() :]), "value"
    # What the compiler is told.
    if s.volatile:
        yield "not volatile", made(volatile=False), "order"
    if '"memory"' in s.rest:
        yield "without the memory clobber", made(rest=re.sub(r'\s*:\s*"memory"', "", s.rest)), "order"


def _zeroed(s: Statement) -> str:
    """What stands for a statement that is left out: its outputs, which nothing sets any more, are zero."""
    return "; ".join(f"{name} = 0" for name in re.findall(r'"=\w"\(((?:\w|\.|\[\w+\])+)\)', s.rest))


def _first(line: str) -> str:
    """An instruction without its operands."""
    return line.rstrip(";") if "selp" in line or "%%" in line else line.split(" ")[0].rstrip(";")

"""From places in a compiled kernel back to lines of its source."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache

from kgen.emulator.build import BODY_NAME


def name_lines(message: str, body: str, library: str) -> str:
    """Replaces each `@[offset]` in the runtime's `message` by the line of `body` it stands for.

    The first one, where the fault is, gets the text of the line too, and the user's own line if a `#line` governs it.
    """
    offsets = list(dict.fromkeys(re.findall(r"@\[([0-9a-f]+)\]", message)))
    lines = resolve(library, offsets)
    texts = body.splitlines()
    for number, offset in enumerate(offsets):
        line = lines.get(offset, 0)
        short = f"line {line}" if 0 < line <= len(texts) else "unknown line"
        if number == 0 and short != "unknown line":
            origin = _origin(texts, line)
            long = f"{short} (`{texts[line - 1].strip()}`)" + (f" from {origin}" if origin else "")
            message = message.replace(f"@[{offset}]", long, 1)
        message = message.replace(f"@[{offset}]", short)
    return message


def resolve(library: str, offsets: Sequence[str]) -> dict[str, int]:
    """The line of the body for each hexadecimal offset into the shared object `library`; of inlined calls the innermost
    that the body itself makes. Offsets without one are left out, and so are all without addr2line."""
    tool = _symbolizer()
    if tool is None or not offsets:
        return {}
    command = [tool, "-a", "-i", "-e", library, *(f"0x{offset}" for offset in offsets)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines: dict[str, int] = {}
    offset = ""
    for row in done.stdout.splitlines():
        if row.startswith("0x"):
            offset = f"{int(row, 16):x}"
        elif BODY_NAME in row and offset not in lines:
            found = re.search(r":(\d+)", row)
            if found:
                lines[offset] = int(found.group(1))
    return lines


def _origin(texts: Sequence[str], line: int) -> str | None:
    """The user's file and line that a `#line` directive gives for a line of the body."""
    for above in range(line - 1, 0, -1):
        found = re.match(r'\s*#\s*line\s+(\d+)(?:\s+"([^"]*)")?', texts[above - 1])
        if found:
            return f"{found.group(2)}:{int(found.group(1)) + line - above - 1}" if found.group(2) else None
    return None


@cache
def _symbolizer() -> str | None:
    return shutil.which("addr2line") or shutil.which("llvm-addr2line")

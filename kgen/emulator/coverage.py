"""Coverage: which lines of a kernel have run, in all launches that it was given to."""

from __future__ import annotations

import ctypes
import itertools
import re
import subprocess
from pathlib import Path

from kgen.emulator.lines import resolve

_HOOK = "__sanitizer_cov_trace_pc"


class Coverage:
    """What has run of one kernel: `Options(coverage=...)`, the same one for launch after launch. `unreached` needs objdump."""

    def __init__(self) -> None:
        self._library = ""
        self._seen = (ctypes.c_ubyte * 0)()

    def room(self, library: str) -> tuple[int, int]:
        """Where the runtime notes for each byte of the shared object whether it ran: an address and a number of bytes."""
        if library != self._library:
            self._library, self._seen = library, (ctypes.c_ubyte * Path(library).stat().st_size)()
        return ctypes.addressof(self._seen), len(self._seen)

    def unreached(self) -> list[int]:
        """The lines of the body of which no basic block has run, of those that the compiler made any of."""
        text = subprocess.run(
            ["objdump", "-d", "--no-show-raw-insn", self._library], capture_output=True, text=True
        ).stdout
        rows = re.findall(r"^ *([0-9a-f]+):\t(.*)$", text, re.M)
        after = {int(following, 16) for (_, row), (following, _) in itertools.pairwise(rows) if _HOOK in row}
        # A call's line is found by the address before the one it returns to.
        lines = resolve(self._library, [f"{place - 1:x}" for place in after])
        ran: dict[int, bool] = {}
        for place in after:
            line = lines.get(f"{place - 1:x}", 0)
            ran[line] = ran.get(line, False) or bool(self._seen[place])
        return sorted(line for line, reached in ran.items() if line and not reached)

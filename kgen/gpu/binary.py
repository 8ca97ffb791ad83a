"""Binary: a compiled kernel, with what the compiler said about it."""

from __future__ import annotations

from dataclasses import dataclass

#: Remarks of ptxas after which a kernel is not worth timing, or not right.
FATAL_CODES = {
    "C7504": "setmaxnreg is ignored",
    "C7508": "setmaxnreg is ignored",
    "C7510": "wgmma is serialised",
    "C7511": "wgmma is serialised",
    "C7512": "wgmma is serialised",
    "C7514": "a wgmma accumulator is used too early",
    "C7517": "a wgmma accumulator is used too early",
    "C7519": "a wgmma fence is missing",
    "C7602": "the kernel cannot run as written",
}

#: Spilled bytes a thread that are still harmless: a few values parked outside the main loop.
SPILL_LIMIT = 64


@dataclass(frozen=True)
class Binary:
    """One kernel as a cubin.

    `registers`, `spill_stores`, `spill_loads` and `local_bytes` (stack frame) are for each thread, `shared_static` for
    each block; all but `registers` in bytes. `warnings` are pairs of a code (such as "C7510" or "177-D", None where
    there is none) and the line of the log. `nvrtc` is the compiler's version. `cached` says that the cubin cache had
    it; `compile_seconds` is the time the compiler took when it was built.
    """

    cubin: bytes
    entry: str
    arch: str
    registers: int
    spill_stores: int
    spill_loads: int
    shared_static: int
    local_bytes: int
    log: str
    warnings: tuple[tuple[str | None, str], ...]
    compile_seconds: float
    nvrtc: str
    cached: bool = False

    @property
    def fatal_warnings(self) -> tuple[str, ...]:
        """Why this build must not be run or timed; empty when it may."""
        codes = dict.fromkeys(code for code, _ in self.warnings if code in FATAL_CODES)
        told = [f"{code}: {FATAL_CODES[code]}" for code in codes]
        if self.spill_stores > SPILL_LIMIT:
            told.append(f"spills: {self.spill_stores} bytes of stores a thread, more than {SPILL_LIMIT}")
        return tuple(told)

"""The one hierarchy of errors: every message says what was given, what was expected and what to do."""

from __future__ import annotations


class KgenError(Exception):
    """Base of every error kgen raises on purpose. The CLI prints it on one line and exits with code 2."""


class DefinitionError(KgenError):
    """An operator's definition is wrong: a type, a shape or an unsupported construct, found while tracing."""


class ArgumentError(KgenError):
    """An operator was called with arguments its signature does not allow: rank, dtype, device, size, overlap."""


class ConfigError(KgenError):
    """A config is unknown, malformed, or rejected by a rule of its schedule."""


class CompileError(KgenError):
    """NVRTC or the host compiler rejected a source; `log` holds what it printed."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class ToolchainError(KgenError):
    """NVRTC, CUDA's headers or the host compiler is missing or does not work: the machine's fault and no kernel's."""


class CacheError(KgenError):
    """The cache folder cannot be used: it cannot be written, is full, or is not the user's alone."""


class DeviceError(KgenError):
    """No such GPU, a driver call failed, or a launch faulted. `code` is the CUresult where there is one."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class EmulatorError(KgenError):
    """The emulator found a fault in a kernel: out of bounds, uninitialised read, race, deadlock, divergence."""


class DatabaseError(KgenError):
    """The tuning database cannot be opened, read or written, or holds data kgen does not understand."""


def told_of(value: object) -> str:
    """A value in a message, cut where it is long: an int of thousands of digits has no text at all in Python."""
    try:
        told = repr(value)
    except Exception as error:
        return f"a {type(value).__name__} without text ({type(error).__name__})"
    return told if len(told) <= 120 else f"{told[:120]}..."

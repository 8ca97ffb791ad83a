"""Binary: the kernels of an export as cubins or fat binaries, and as arrays of C++ that the launch function loads."""

from __future__ import annotations

from collections.abc import Sequence

from kgen.dsl.errors import ArgumentError
from kgen.dsl.target import Arch
from kgen.export.interface import Interface
from kgen.gpu.compile import compile
from kgen.gpu.fatbin import fatbin

_PER_LINE = 20


def binaries(f: Interface, archs: Sequence[Arch], form: str) -> dict[str, str | bytes]:
    """Each kernel's binary by file name, and <op>_binary.h with all of them as arrays.

    A cubin is for one architecture, a fatbin for all of `archs`. Raises ArgumentError for a cubin of several, ToolchainError
    where the tool that makes fatbins is missing, CompileError where a kernel does not compile.
    """
    if form == "cubin" and len(archs) > 1:
        raise ArgumentError(
            f"a cubin is for one architecture, got {', '.join(map(str, archs))}; expected one, or form fatbin"
        )
    found: dict[str, str | bytes] = {}
    arrays = []
    for k in f.kernels:
        cubins = {arch: compile(k.source, arch).cubin for arch in archs}
        made = cubins[archs[0]] if form == "cubin" else fatbin(cubins)
        suffix = "" if k.number is None else f"_{k.number}"
        found[f"{f.name}{suffix}.{form}"] = made
        arrays.append(
            f"// {k.served.config}\nalignas(16) const unsigned char {k.array}[] = {{\n{_numbers(made)}\n}};\n"
        )
    guard = f"{f.name.upper()}_BINARY_H_"
    top = f"// {f.title}: kernels as binaries.\n#ifndef {guard}\n#define {guard}\n\nnamespace {{\n\n"
    return {**found, f"{f.name}_binary.h": top + "\n".join(arrays) + f"\n}}  // namespace\n\n#endif  // {guard}\n"}


def _numbers(data: bytes) -> str:
    lines = (data[i : i + _PER_LINE] for i in range(0, len(data), _PER_LINE))
    return "\n".join("    " + " ".join(f"{byte}," for byte in line) for line in lines)

"""The shared device functions: which of templates/ptx and templates/common a generated kernel uses.

Each file is plain CUDA C++ in blocks that start with `//: name`. A kernel gets just the blocks whose name occurs in it, and
those that they use in turn, each after what it uses.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from importlib import resources
from typing import Literal

Folder = Literal["ptx", "common"]


@functools.cache
def blocks(folder: Folder) -> dict[str, str]:
    """The blocks of a folder by name, in the order of files and lines."""
    found: dict[str, str] = {}
    root = resources.files("kgen.templates").joinpath(folder)
    for file in sorted(root.iterdir(), key=lambda f: f.name):
        if file.name.endswith(".cuh"):
            parts = re.split(r"^//: (\w+)\n", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            for name, text in zip(parts[1::2], parts[2::2]):
                assert name not in found, f"two blocks named {name} in templates/{folder}"
                found[name] = text.rstrip() + "\n"
    return found


def functions_used(folder: Folder, text: str, prefix: str = "") -> str:
    """The blocks of `folder` that `text` uses (as `prefix` + name), with what they use in turn."""
    known = blocks(folder)
    used: dict[str, str] = {}

    def take(name: str) -> None:
        for other in sorted(uses(folder, name) - {name}, key=list(known).index):
            if other not in used:
                take(other)
        used.setdefault(name, known[name])

    mentioned = set(re.findall(rf"{prefix}(\w+)", _code(text)))
    for name in known:
        if name in mentioned:
            take(name)
    return "\n".join(used.values())


@functools.cache
def uses(folder: Folder, name: str) -> frozenset[str]:
    """The blocks of the folder whose names occur in one of them."""
    return frozenset(re.findall(r"\w+", _code(blocks(folder)[name]))) & blocks(folder).keys()


def _code(text: str) -> str:
    """The text without comments and strings (assembly): what they mention is not used."""
    return re.sub(r'//.*|"[^"\n]*"', "", text)


#: A function of the PTX layer that is overloaded by the number of a tensor map's axes, with that number.
_OVERLOAD = re.compile(
    r"^__device__ __forceinline__ void tma_(load|store)\w*\([^{]*?\(&at\)\[(\d)\]\) {\n.*?^}\n", re.M | re.S
)


def namespace_ptx(body: str, made: str = "", maps: Collection[tuple[str, int]] | None = None) -> str:
    """The PTX layer's functions that the body calls as `ptx::name`, in their namespace; empty where it calls none.

    `made` are functions of the layer that come from no file as they are. `maps` says what the body's tensor maps are for,
    load or store, and how many axes they have: overloads for others are left out. None: all are there.
    """
    used = functions_used("ptx", body, "ptx::")
    if maps is not None:
        used = _OVERLOAD.sub(lambda found: found[0] if (found[1], int(found[2])) in maps else "", used)
    used = "\n".join(filter(None, (used, made)))
    return f"namespace ptx {{\n\n{used}\n}}  // namespace ptx\n" if used else ""

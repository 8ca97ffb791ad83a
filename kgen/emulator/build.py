"""Builds the emulator's runtime and its kernels with the host's C++ compiler, and caches both on disk.

One folder holds one version of the emulator: its name is a hash of our C++ files, the compiler and the flags, so that nothing
in it is ever stale. In it lie the runtime library, the precompiled prelude (once for checked, once for unchecked kernels), and a
shared object for each kernel, named by a hash of its body. Kernels that are built together are one shared object, to which the
name of each is a link.
"""

from __future__ import annotations

import _ctypes
import ctypes
import hashlib
import os
import re
import tempfile
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kgen.codegen import host_compiler
from kgen.codegen.cache_folder import TEMPORARY, open_folder, using
from kgen.codegen.host_compiler import Toolchain, is_built, produce, toolchain
from kgen.codegen.settings import cache_dir as default_cache_dir
from kgen.codegen.source import Source
from kgen.dsl.errors import CacheError, CompileError

_CPP = Path(__file__).parent / "cpp"
# -fno-gnu-unique: else one kernel's template statics would be another's. -ffp-contract=off: results do not depend on the CPU.
# -fstack-clash-protection: a frame too large for a fiber meets the guard page. -fno-plt: calls have no stubs without lines.
_COMMON = (
    "-std=c++17", "-fPIC", "-w", "-pthread", "-g1", "-fno-strict-aliasing", "-fwrapv", "-fno-math-errno",
    "-ffp-contract=off", "-fno-exceptions", "-fno-rtti", "-fno-stack-protector", "-fstack-clash-protection", "-fno-plt",
    "-U_FORTIFY_SOURCE", "-fvisibility-inlines-hidden",
)  # fmt: skip
_PLAIN = ("-O2",)
# The thread sanitizer's hooks see each load and store. Without SRA and vectorizer they have the width they are written with.
_CHECKED = ("-O1", "-fsanitize=thread")
_GCC_CHECKED = (
    "-fno-tree-sra", "-fno-tree-vectorize", "-fno-tree-slp-vectorize",
    "--param=tsan-instrument-func-entry-exit=0", "--param=tsan-distinguish-volatile=1",
)  # fmt: skip
_CLANG_CHECKED = (
    "-fno-vectorize", "-fno-slp-vectorize",
    "-mllvm", "-tsan-instrument-func-entry-exit=0", "-mllvm", "-tsan-distinguish-volatile=1",
)  # fmt: skip


#: So many kernels are compiled together at most: from a dozen on, more save nothing.
_TOGETHER = 16
#: A call at the start of each basic block, by the name of its function.
_COVERED = ("-fsanitize-coverage=trace-pc", "-fplt")


def flags(tools: Toolchain, checks: bool) -> tuple[str, ...]:
    """The flags a kernel (and its precompiled header) is compiled with."""
    own = () if tools.is_clang else ("-fno-gnu-unique",)
    if not checks:
        return (*_COMMON, *own, *tools.cpu_flags, *_PLAIN)
    return (*_COMMON, *own, *tools.cpu_flags, *_CHECKED, *(_CLANG_CHECKED if tools.is_clang else _GCC_CHECKED))


@cache
def _version() -> tuple[str, tuple[Path, ...]]:
    """The hash of everything but the kernel that a build depends on (these files too), and our C++ files."""
    tools = toolchain()
    content = hashlib.sha256()
    for part in (tools.path, tools.version, *flags(tools, True), *flags(tools, False)):
        content.update(part.encode() + b"\0")
    files = tuple(sorted((*_CPP.glob("*.h"), *_CPP.glob("*.cpp"))))
    for file in (Path(__file__), Path(host_compiler.__file__), *files):
        content.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return content.hexdigest()[:16], files


class Cache:
    """The folder of one version of the emulator; makes what is missing or damaged.

    Raises CacheError where the folder cannot be used, ToolchainError where the host compiler cannot, CompileError for a
    kernel that it rejects.
    """

    def __init__(self, cache_dir: Path | None = None) -> None:
        self.key, self._files = _version()
        root = Path(cache_dir) if cache_dir is not None else default_cache_dir()
        self.folder = (root / "emulator" / self.key).absolute()
        open_folder(self.folder)

    def runtime(self) -> ctypes.CDLL:
        """The runtime library, loaded."""
        target = self.folder / "runtime.so"
        if not is_built(target):
            tools = toolchain()
            options = [*_COMMON, *tools.cpu_flags, "-O3", "-shared", f"-Wl,-soname,kgen-emulator-{self.key}.so"]
            with using(self.folder), tempfile.TemporaryDirectory(dir=self.folder, prefix=TEMPORARY) as work:
                # As one file: each alone would read the headers anew, half of the time. No two may name types alike.
                files = [f'#include "{file}"\n' for file in self._files if file.suffix == ".cpp"]
                (Path(work) / "runtime.cpp").write_text("".join(files))
                produce(target, [tools.path, *options, "runtime.cpp"], "the emulator's runtime", work)
        return _load_runtime(self.key, str(target))

    def prelude(self, checks: bool) -> Path:
        """The prelude's path, with its precompiled form beside it."""
        tools = toolchain()
        folder = self.folder / ("checked" if checks else "plain")
        header = folder / "prelude.h"
        compiled = folder / ("prelude.h.pch" if tools.is_clang else "prelude.h.gch")
        open_folder(folder)
        if not is_built(compiled):
            for file in self._files:
                if file.suffix == ".h":
                    handle, name = tempfile.mkstemp(dir=folder, prefix=TEMPORARY)
                    with os.fdopen(handle, "wb") as out:
                        out.write(file.read_bytes())
                    os.replace(name, folder / file.name)
            produce(
                compiled, [tools.path, *flags(tools, checks), "-x", "c++-header", str(header)], "the emulator's prelude"
            )
        return header

    def kernel(self, source: Source, checks: bool, covered: bool = False) -> Built:
        """The compiled `source`, with or without the access checks and the notes of coverage compiled in."""
        body = Body.of(source)
        target = self._target(body.digest, checks, covered)
        built = target.resolve()  # of kernels that were built together
        if not is_built(built):
            self._produce(built := target, body.unit(), f"kernel {source.entry}", checks, covered)
        return Built(built, body.entry)

    def together(self, sources: Iterable[Source], checks: bool) -> None:
        """Compiles what is missing of `sources`, some at a time: alone a kernel takes half as long again, for the prelude.

        What the compiler rejects is left to `kernel`, which says why.
        """
        bodies = {body.entry: body for body in map(Body.of, sources)}
        missing = [b for b in bodies.values() if not is_built(self._target(b.digest, checks).resolve())]
        for first in range(0, len(missing), _TOGETHER):
            some = missing[first : first + _TOGETHER]
            if len(some) == 1:
                continue
            unit = "".join(f"namespace {body.entry}_names {{\n{body.unit()}}}\n" for body in some)
            target = self._target(_digest(unit), checks)
            try:
                self._produce(target, unit, f"{len(some)} kernels", checks)
            except CompileError:
                continue
            with using(self.folder), tempfile.TemporaryDirectory(dir=self.folder, prefix=TEMPORARY) as work:
                for number, body in enumerate(some):
                    link = Path(work) / str(number)
                    link.symlink_to(target.name)
                    os.replace(link, self._target(body.digest, checks))

    def _target(self, digest: str, checks: bool, covered: bool = False) -> Path:
        return self.folder / f"{digest}{'-checked' if checks else '-plain'}{'-covered' if covered else ''}.so"

    def _produce(self, target: Path, unit: str, what: str, checks: bool, covered: bool = False) -> None:
        tools = toolchain()
        self.runtime()
        with using(self.folder), tempfile.TemporaryDirectory(dir=self.folder, prefix=TEMPORARY) as work:
            (Path(work) / BODY_NAME).write_text(unit)
            # With the default libraries a checked kernel would ask for the thread sanitizer's own runtime.
            # The C library is in every process: to look into it at each link would take as long as the rest of it.
            libraries = ["-nodefaultlibs", str(self.folder / "runtime.so"), "-lm", "-lgcc"]
            inputs = ["-shared", "-include", str(self.prelude(checks)), BODY_NAME, *libraries]
            own = [*flags(tools, checks), *(_COVERED if covered else ())]
            produce(target, [tools.path, *own, *inputs], what, work)


@dataclass(frozen=True)
class Built:
    """Where a compiled kernel is: a shared object, and its name in there."""

    library: Path
    entry: str


@dataclass(frozen=True)
class Body:
    """A kernel's body as the host compiler takes it, and the hash that it is found by."""

    digest: str
    text: str

    @staticmethod
    def of(source: Source) -> Body:
        text = translate(source)
        return Body(_digest(text), text)

    @property
    def entry(self) -> str:
        """The kernel's name beside other kernels."""
        return f"{_ENTRY}_{self.digest}"

    def unit(self) -> str:
        """The text under that name, its lines counted from 1 wherever it stands."""
        return f'#line 1 "{BODY_NAME}"\n{self.text.replace(_ENTRY, self.entry)}'


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


_RUNTIMES: dict[str, ctypes.CDLL] = {}


def _load_runtime(key: str, path: str) -> ctypes.CDLL:
    # One for a version, wherever it came from: kernels find it by its soname, and it must be the one that launches them.
    if key not in _RUNTIMES:
        _RUNTIMES[key] = load(path)
    return _RUNTIMES[key]


_LOADED: weakref.WeakValueDictionary[str, ctypes.CDLL] = weakref.WeakValueDictionary()


def load(path: str) -> ctypes.CDLL:
    """The shared object at `path`, loaded once in this process while anybody holds it, and unloaded after.

    A process has room for 65530 mappings (Linux's vm.max_map_count), some 10,000 kernels.
    """
    library = _LOADED.get(path)
    if library is None:
        try:
            library = ctypes.CDLL(path)
        except OSError as error:  # whole as it is, such as on a file system from which nothing may be executed
            raise CacheError(
                f"cannot load {path}: {error}; set KGEN_CACHE_DIR to a folder from which code may run"
            ) from error
        weakref.finalize(library, _ctypes.dlclose, library._handle).atexit = False
        _LOADED[path] = library
    return library


_LINE = re.compile(r"^[ \t]*#[ \t]*line\b.*$", re.M)
_DYNAMIC = re.compile(
    r"extern\s+__shared__\s+(?:(?:__align__|alignas)\s*\(\s*\w+\s*\)\s*)?([\w:][\w:<>, ]*?)\s+(\w+)\s*\[\s*\]\s*;"
)
_STATIC = re.compile(
    r"(?:static\s+)?__shared__\s+((?:__align__|alignas)\s*\(\s*[^()]+\s*\)\s*)?([\w:][\w:<>, ]*?)\s+(\w+)\s*((?:\[[^\]]*\]\s*)*);"
)
#: What every kernel is called here, before its hash.
_ENTRY = "emu_kernel"
#: How the body is called in the compiler's messages and in the line tables.
BODY_NAME = "kernel-body.cpp"


def translate(source: Source) -> str:
    """The body as the host compiler takes it: shared variables moved into the block's arena, every line where it was."""

    def dynamic(match: re.Match[str]) -> str:
        kind, name = (" ".join(part.split()) for part in match.groups())
        return f"{kind}* const {name} = reinterpret_cast<{kind}*>(emu_dynamic_shared());" + "\n" * match.group().count(
            "\n"
        )

    def static(match: re.Match[str]) -> str:
        aligned, kind, name, dims = (" ".join((part or "").split()) for part in match.groups())
        alignment = f"sizeof(emu_aligned_{name})" if aligned else f"alignof(emu_type_{name})"
        pad = f"struct {aligned} emu_aligned_{name} {{ char c; }}; " if aligned else ""
        return (
            f"static char emu_tag_{name}; typedef {kind} emu_type_{name}{dims}; {pad}"
            f"emu_type_{name}& {name} = *static_cast<emu_type_{name}*>("
            f"emu_static_shared(&emu_tag_{name}, sizeof(emu_type_{name}), {alignment}));"
            + "\n"
            * match.group().count("\n")
        )

    # Under its own name a kernel might be one of the host's libraries.
    body = re.sub(
        rf"(__global__[^;{{]*?\b){source.entry}(?=\s*\()", rf"\1{_ENTRY}", _LINE.sub("", source.body), count=1
    )
    body = _STATIC.sub(static, _DYNAMIC.sub(dynamic, body))
    return f"{body}\nEMU_EXPORT({_ENTRY})\n"

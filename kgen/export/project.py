"""Project: an exported operator as files: kernel and launch function, header, test, and a CMake project around them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kgen.codegen.layout import laid_out
from kgen.codegen.render import environment
from kgen.codegen.source import Source
from kgen.dsl.errors import ArgumentError, ConfigError
from kgen.dsl.family import normalised
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Arch, Target
from kgen.dsl.types import bf16, bool_, e4m3, e5m2, f16
from kgen.export.arguments import Form, check_kinds
from kgen.export.binary import binaries
from kgen.export.collection import Collection, Entry, collect
from kgen.export.extension import TORCH, extension
from kgen.export.interface import Interface
from kgen.export.kernel import WORKSPACE_ALIGN
from kgen.export.launches import LaunchesInterface
from kgen.export.launches import interface as launches_interface
from kgen.export.program import test_program
from kgen.export.variants import Served

_HEADERS = {f16: "cuda_fp16.h", bf16: "cuda_bf16.h", e4m3: "cuda_fp8.h", e5m2: "cuda_fp8.h"}
#: What the name of a folder begins with that holds the files of an export until all of them are whole.
_UNFINISHED = ".export-"


def export(
    problem: Problem,
    config: Schedule,
    target: Target,
    out: Path | str,
    *,
    archs: Sequence[Arch] = (),
    force: bool = False,
    origin: str = "given",
    form: Form = "cuda",
) -> list[Path]:
    """Writes <op>.cu, <op>.h, test_<op>.cu and CMakeLists.txt to the folder `out` and returns their paths.

    `problem` is as the caller put it (shapes of the operator's own); `config` must be valid for it on `target`. `archs` are
    the architectures to build for, the target's where none is given; `origin` says what is known of the config's speed; `form`
    is what the kernel comes as, see `export_many`.
    Raises ConfigError where config and architectures do not fit, ArgumentError for an empty problem, for a folder that cannot
    be written, or one that holds files that are not those of an earlier export of this operator, unless `force`.
    """
    check_kinds(problem=problem, config=config, origin=origin)
    return export_many([Entry(problem, config, origin)], target, out, archs=archs, force=force, form=form)


def export_many(
    entries: Sequence[Entry],
    target: Target,
    out: Path | str,
    *,
    archs: Sequence[Arch] = (),
    force: bool = False,
    form: Form = "cuda",
    namespace: str | None = None,
) -> list[Path]:
    """Writes one export that serves several problems of an operator: a launch takes the config made for the nearest sizes.

    `entries` are of one operator in the same dtypes; layouts may differ. `form` is what the kernels come as: "cuda" (source),
    "cubin" or "fatbin" (binaries that are loaded at the first launch) or "torch" (source, and an extension of torch around
    it: torch.ops.NAMESPACE.<op>, kgen_<op> where none is given). All else is as for `export`. Raises ArgumentError, too, where
    problems have no launch function in common.
    """
    check_kinds(entries=entries, target=target, out=out, archs=archs, force=force, form=form, namespace=namespace)
    whole = [replace(entry, problem=entry.problem.origin or entry.problem) for entry in entries]
    for entry in whole:
        if any(n == 0 for o in entry.problem.operands for n in o.shape):
            raise ArgumentError(f"cannot export {entry.problem}: a size is 0; give a problem with something to compute")
        entry.config.check(normalised(entry.problem), target)
    found = contents(collect(whole, target, form == "torch"), tuple(archs) or (target.arch,), form, namespace)
    return store(found, Path(out), force)


def export_launches(
    problem: Problem,
    entries: Sequence[Entry],
    target: Target,
    out: Path | str,
    *,
    archs: Sequence[Arch] = (),
    force: bool = False,
    form: Form = "cuda",
    namespace: str | None = None,
) -> list[Path]:
    """Writes one export of an operator that takes several launches (`kgen.dsl.program`): a file for each, and one over them.

    `problem` is the operator's; `entries` are its launches in order, each with its config. All else is as for `export_many`;
    ArgumentError, too, where an operand is not dense and row-major.
    """
    check_kinds(problem=problem, entries=entries, target=target, out=out, archs=archs, force=force, form=form)
    check_kinds(namespace=namespace)
    for entry in entries:
        if any(n == 0 for o in entry.problem.operands for n in o.shape):
            raise ArgumentError(f"cannot export {problem}: a size is 0; give a problem with something to compute")
        entry.config.check(normalised(entry.problem), target)
    collections = [collect([entry], target, form == "torch") for entry in entries]
    return store(contents_of_launches(problem, collections, archs or (target.arch,), form, namespace), Path(out), force)


def contents_of_launches(
    problem: Problem,
    collections: Sequence[Collection],
    archs: Sequence[Arch],
    form: Form = "cuda",
    namespace: str | None = None,
) -> dict[str, str | bytes]:
    """Every file of an export of several launches, by name."""
    f = launches_interface(problem, collections, binary=form in ("cubin", "fatbin"))
    f.check_names()
    found: dict[str, str | bytes] = {}
    for part in f.parts:
        found |= kernel_files(part, archs)
        if f.binary:
            found |= binaries(part, archs, form)
    kernels = kernel_file(f)
    found |= {kernels: _launches_text(f), f"{f.name}.h": header_text(f, kernels)}
    found |= project_files(f, " ".join([kernels, *map(kernel_file, f.parts)]), archs, form)
    return {**found, **extension(f, namespace)} if form == "torch" else found


def store(found: Mapping[str, str | bytes], folder: Path, force: bool) -> list[Path]:
    """Writes the files of an export and returns their paths. ArgumentError where the folder cannot be written, or is full."""
    try:
        _refuse_foreign(folder, set(found), force)
        _write(folder, found)
    except (OSError, ValueError) as error:  # a name with NUL is a ValueError
        told = getattr(error, "strerror", None) or error
        raise ArgumentError(f"cannot export to {folder}: {told}; name another folder") from error
    return [folder / name for name in found]


def files(
    problem: Problem, config: Schedule, target: Target, archs: Sequence[Arch], origin: str = "given"
) -> dict[str, str]:
    """The text of every file of an export of one problem as CUDA C++, by name."""
    return texts(Interface(Collection.single(Served(config, problem, target), origin)), archs)


def contents(
    collection: Collection, archs: Sequence[Arch], form: Form = "cuda", namespace: str | None = None
) -> dict[str, str | bytes]:
    """Every file of an export, by name."""
    f = Interface(collection, binary=form in ("cubin", "fatbin"))
    found: dict[str, str | bytes] = {**texts(f, archs, form)}
    if f.binary:
        found |= binaries(f, archs, form)
    return {**found, **extension(f, namespace)} if form == "torch" else found


def texts(f: Interface, archs: Sequence[Arch], form: Form = "cuda") -> dict[str, str]:
    """The text of every file around the kernels, by name."""
    found = kernel_files(f, archs)
    return {**found, **project_files(f, next(iter(found)), archs, form)}


def kernel_files(f: Interface, archs: Sequence[Arch]) -> dict[str, str]:
    """The text of the file with kernels and launch function, and of its header, by name."""
    f.check_names()
    for arch in archs:
        for k in f.kernels:
            if not k.source.arch.runs_on(arch) or not k.served.config.target.runs_on(arch):
                needed = max(k.source.arch, k.served.config.target)
                raise ConfigError(f"{k.served.config!r} needs {needed} or what runs it, got {arch}")
    kernels = kernel_file(f)
    return {kernels: _kernel_text(f), f"{f.name}.h": header_text(f, kernels)}


def project_files(f: Interface, kernels: str, archs: Sequence[Arch], form: Form) -> dict[str, str]:
    """The text of test and CMake project around `kernels`, the names of one file or several, by name."""
    gencode = " ".join(f"-gencode arch=compute_{_number(a)},code=sm_{_number(a)}" for a in archs)
    numbers = [_number(a) for a in archs]
    project = _render(
        "CMakeLists.txt", f=f, kernels=kernels, architectures=numbers, extended=form == "torch", torch=TORCH
    )
    return {
        f"test_{f.name}.cu": spaced(test_program(f, kernels, gencode, _headers(f))),
        "CMakeLists.txt": project,
    }


def kernel_file(f: Interface) -> str:
    """The name of the file with the launch function."""
    return f"{f.name}.{'cpp' if f.binary else 'cu'}"


def _headers(f: Interface) -> list[str]:
    """CUDA's headers that declare the operands' types."""
    return list(dict.fromkeys(_HEADERS[p.dtype] for p in f.operands if p.dtype in _HEADERS))


def _write(folder: Path, contents: Mapping[str, str | bytes]) -> None:
    """Writes all files or none of them, and makes the folder where there is none. OSError where that cannot be."""
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=_UNFINISHED) as unfinished:
            for name, content in contents.items():
                if isinstance(content, bytes):
                    (Path(unfinished) / name).write_bytes(content)
                else:
                    is_code = Path(name).suffix in (".cu", ".cpp", ".h")
                    text = laid_out(content) if is_code else content
                    (Path(unfinished) / name).write_text(text, encoding="utf-8")
            for name in contents:
                (Path(unfinished) / name).replace(folder / name)
    except OSError:
        if made:
            folder.rmdir()
        raise


def _refuse_foreign(folder: Path, names: set[str], force: bool) -> None:
    if force or not folder.exists():
        return
    there = {entry.name for entry in folder.iterdir() if not entry.name.startswith(_UNFINISHED)}
    if there and there != names:
        told = ", ".join(sorted(there - names or there)[:5])
        raise ArgumentError(
            f"cannot export to {folder}: it holds {told}, expected a new or empty folder or an earlier export of the same "
            "operator; name another folder, or give --force to write beside and over what is there"
        )


def spaced(text: str) -> str:
    """At most one blank line in a row, none at the start of a function and none at line ends."""
    text = re.sub(r"[ \t]+\n", "\n", text)
    text = re.sub(r"\n{3,}", "\n\n", text)
    return re.sub(r"\) \{\n\n", ") {\n", text)


def _number(arch: Arch) -> str:
    return str(arch).removeprefix("sm_")


def _render(name: str, /, **context: Any) -> str:
    return environment().get_template(f"export/{name}.j2").render(**context)


def _kernel_text(f: Interface) -> str:
    checks = "".join(k.served_where for k in f.kernels) if f.decides else "".join(t for _, t in f.kernels[0].checks)
    asks = any(k.asks_shared or k.asks_cluster or k.launch.persistent for k in f.kernels)
    wanted = {
        "algorithm": f.uses("std::") or any(k.launch.persistent for k in f.kernels) or f.decides,
        "atomic": asks or f.has_maps or f.binary,
        "cmath": f.decides,
        "cstring": f.has_maps,
        "initializer_list": "product_at_most" in checks,
        "mutex": f.binary,
    }
    includes = [] if f.binary else dict.fromkeys(name for k in f.kernels for name in k.source.includes)
    text = _render(
        "launch.cu",
        f=f,
        comment=_comment(f),
        headers=[*includes, *(["cuda.h"] if f.has_maps else [])],
        std_headers=[name for name, needed in wanted.items() if needed],
        device=[] if f.binary else [(k.namespace, kernel_text(k.source)) for k in f.kernels],
        checks_text=checks + ("is_aligned" if f.decides and f.has_workspace else ""),
        align=WORKSPACE_ALIGN,
    )
    return spaced(text)


def _launches_text(f: LaunchesInterface) -> str:
    checks = "".join(f.checks)
    words = " ".join([checks, *f.places, *f.calls])
    names = ("ceil_div", "is_aligned", "product_at_most", "std::min", "std::max")
    used = [name for name in names if name in words]
    headers = {"algorithm": "std::min" in used or "std::max" in used, "initializer_list": "product_at_most" in used}
    configs = [
        f"// {part.name}: {entry.config!r}\n//   {entry.origin}."
        for part in f.parts
        for entry, _ in part.collection.rows
    ]
    text = _render(
        "launches.cu",
        f=f,
        comment="\n".join([f"// {f.origin} for {f.first.target}: {len(f.parts)} launches", *configs]),
        std_headers=[name for name, needed in headers.items() if needed],
        used=used,
        align=WORKSPACE_ALIGN,
    )
    return spaced(text)


def kernel_text(source: Source) -> str:
    """The device code of a source, to stand in a namespace: C++ linkage, and no `#line`, which would lead elsewhere."""
    text = "\n".join(part for part in (source.ptx, source.body) if part)
    text = re.sub(r"^#line .*\n", "", text, flags=re.MULTILINE)
    return text.replace('extern "C" __global__', "__global__")


def header_text(f: Interface, kernels: str) -> str:
    """The header of a launch function that is defined in the file `kernels`."""
    graph, dtypes = f.origin.graph, [p.dtype for p in f.operands]
    arguments = [*(f"{s.name}{s.shape}" for s in graph.inputs), *(s.name for s in graph.scalars)]
    results = ", ".join(f"{s.name}{s.shape}" for s in graph.outputs)
    documentation = list(f.documentation())
    values = [f"{name} = {value}" for name, value in f.symbols.items()]
    example = [f"//   {f.origin.key}", f"//   {', '.join(values)}"] if values else []
    text = _render(
        "launch.h",
        f=f,
        comment=f"// {f.title}: the C interface of {kernels}.",
        guard=f"{f.name.upper()}_H_",
        headers=_headers(f),
        opaque=list(dict.fromkeys(t.ctype for t in dtypes if t in _HEADERS)),
        has_bool=bool_ in dtypes,
        formula=f"{results} = {graph.name}({', '.join(arguments)})",
        documentation=documentation,
        width=max(len(name) for name, _ in documentation),
        example="\n".join(example),
    )
    return spaced(text)


def _comment(f: Interface) -> str:
    """What the kernels are: of each its config, and for which problems it was chosen, by what knowledge of its speed."""
    if not f.decides:
        ((entry, _),) = f.collection.rows
        return f"// {f.origin} for {f.first.target}\n// {f.origin.key}\n// {f.first.config!r}\n// The config: {entry.origin}."
    lines = [
        f"// {f.title}, on {f.first.target}",
        "//",
        "// A launch takes the kernel that was made for the nearest sizes:",
    ]
    for k in f.kernels:
        lines += ["//", f"// {k.number}: {k.served.config!r}"]
        lines += [f"//    {e.problem}: {e.origin}." for e, number in f.collection.rows if number == k.number]
        if k.number in f.collection.fallbacks:
            lines.append("//    Where no other serves: of its layout, the one that asks for the least.")
    return "\n".join(lines)

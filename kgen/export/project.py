"""Project: an exported operator as files: kernel and launch function, header, test, and a CMake project around them."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kgen.codegen.render import environment
from kgen.codegen.source import Launch, Source
from kgen.dsl.errors import ArgumentError, ConfigError
from kgen.dsl.family import family_of
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Arch, Schedule
from kgen.dsl.types import DType, bf16, bool_, e4m3, e5m2, f16
from kgen.export.interface import WORKSPACE_ALIGN, Interface
from kgen.export.program import test_program
from kgen.export.sizes import wrapped
from kgen.export.variants import Served
from kgen.gpu.target import Target

_HEADERS = {f16: "cuda_fp16.h", bf16: "cuda_bf16.h", e4m3: "cuda_fp8.h", e5m2: "cuda_fp8.h"}
#: What the name of a folder begins with that holds the files of an export until all of them are whole.
_UNFINISHED = ".export-"
#: Dynamic shared memory that a kernel may have without asking. Bytes.
_SHARED_FREE = 48 * 1024
#: Blocks of a cluster that a kernel may have without asking.
_PORTABLE_CLUSTER = 8


def export(
    problem: Problem,
    config: Schedule,
    target: Any,
    out: Path | str,
    *,
    archs: Sequence[Arch] = (),
    force: bool = False,
    origin: str = "given",
) -> list[Path]:
    """Writes <op>.cu, <op>.h, test_<op>.cu and CMakeLists.txt to the folder `out` and returns their paths.

    `problem` is as the caller put it (shapes of the operator's own); `config` must be valid for it on `target`. `archs` are
    the architectures to build for, the target's where none is given; `origin` says what is known of the config's speed.
    Raises ConfigError where config and architectures do not fit, ArgumentError for an empty problem, for a folder that cannot
    be written, or one that holds files that are not those of an earlier export of this operator, unless `force`.
    """
    _check_kinds(problem, config, target, out, archs, force)
    problem = problem.origin or problem
    if any(n == 0 for o in problem.operands for n in o.shape):
        raise ArgumentError(f"cannot export {problem}: a size is 0; give a problem with something to compute")
    config.check(family_of(problem.graph).normalise(problem), target)
    texts = files(problem, config, target, tuple(archs) or (target.arch,), origin)
    folder = Path(out)
    try:
        _refuse_foreign(folder, set(texts), force)
        _write(folder, texts)
    except (OSError, ValueError) as error:  # a name with NUL is a ValueError
        told = getattr(error, "strerror", None) or error
        raise ArgumentError(f"cannot export to {folder}: {told}; name another folder") from error
    return [folder / name for name in texts]


def _check_kinds(problem: object, config: object, target: object, out: object, archs: object, force: object) -> None:
    given = (
        ("problem", problem, Problem, "a Problem, such as kgen.gelu.problem(leading=4096)"),
        ("config", config, Schedule, "a Schedule, such as parse_config makes"),
        ("target", target, Target, "a Target, such as kgen.gpu.target.resolve('H200')"),
        ("out", out, (str, Path), "the path of a folder"),
        ("archs", archs, (list, tuple), "a list of Arch"),
        ("force", force, bool, "True or False"),
        *((f"archs[{i}]", a, Arch, "an Arch") for i, a in enumerate(archs if isinstance(archs, (list, tuple)) else ())),
    )
    for name, value, kinds, expected in given:
        if not isinstance(value, kinds):
            raise ArgumentError(f"export: {name} is a {type(value).__name__}; expected {expected}")


def files(
    problem: Problem, config: Schedule, target: Any, archs: Sequence[Arch], origin: str = "given"
) -> dict[str, str]:
    """The text of every file of an export, by name."""
    f = Interface(Served(config, problem, target))
    f.check_names()
    for arch in archs:
        if not f.source.arch.runs_on(arch) or not config.target.runs_on(arch):
            raise ConfigError(f"{config!r} needs {max(f.source.arch, config.target)} or what runs it, got {arch}")
    dtypes = [p.dtype for p in f.operands]
    headers = list(dict.fromkeys(_HEADERS[t] for t in dtypes if t in _HEADERS))
    gencode = " ".join(f"-gencode arch=compute_{_number(a)},code=sm_{_number(a)}" for a in archs)
    return {
        f"{f.name}.cu": _kernel_file(f, origin),
        f"{f.name}.h": _header_file(f, dtypes, headers),
        f"test_{f.name}.cu": spaced(test_program(f, gencode, headers)),
        "CMakeLists.txt": _render(
            "CMakeLists.txt", title=str(problem), op=f.name, architectures=[_number(a) for a in archs]
        ),
    }


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    """Writes all files or none of them, and makes the folder where there is none. OSError where that cannot be."""
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=_UNFINISHED) as unfinished:
            for name, text in texts.items():
                (Path(unfinished) / name).write_text(text, encoding="utf-8")
            for name in texts:
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


def _kernel_file(f: Interface, origin: str = "given") -> str:
    shared_limit = f.launch.shared_bytes > _SHARED_FREE
    large_cluster = math.prod(f.launch.cluster) > _PORTABLE_CLUSTER
    checks_text = "".join(text for _, text in f.checks)
    wanted = {
        "algorithm": f.uses("std::") or f.launch.looping,
        "atomic": shared_limit or large_cluster or f.launch.looping or f.maps,
        "cstring": f.maps,
        "initializer_list": "product_at_most" in checks_text,
    }
    text = _render(
        "launch.cu",
        f=f,
        comment=_comment(f, origin),
        headers=[*f.source.includes, *(["cuda.h"] if f.maps else [])],
        std_headers=[name for name, needed in wanted.items() if needed],
        kernel=kernel_text(f.source),
        shared_limit=shared_limit,
        large_cluster=large_cluster,
        checks_text=checks_text,
        align=WORKSPACE_ALIGN,
        workspace_return=wrapped(
            "  return ", [f"workspace_part({size})" for _, _, size in f.places], ";", separator=" + "
        ),
        attributes=_attributes(f.launch),
        definition=wrapped(f'extern "C" cudaError_t {f.name}_launch(', f.parameters, ")"),
        call=wrapped("  return cudaLaunchKernelEx(", ["&config", f.kernel, *f.arguments], ");"),
    )
    return spaced(text)


def _attributes(launch: Launch) -> list[tuple[str, list[tuple[str, int]]]]:
    """What a launch needs beyond grid, block and shared memory: kind, and its fields with their values."""
    found = []
    if launch.cluster != (1, 1, 1):
        fields = [(f"clusterDim.{axis}", size) for axis, size in zip("xyz", launch.cluster)]
        found.append(("cudaLaunchAttributeClusterDimension", fields))
    if launch.cooperative:
        found.append(("cudaLaunchAttributeCooperative", [("cooperative", 1)]))
    if launch.overlapping:
        allowed = [("programmaticStreamSerializationAllowed", 1)]
        found.append(("cudaLaunchAttributeProgrammaticStreamSerialization", allowed))
    return found


def kernel_text(source: Source) -> str:
    """The device code of a source, to stand in a namespace: C++ linkage, and no `#line`, which would lead elsewhere."""
    text = "\n".join(part for part in (source.ptx, source.body) if part)
    text = re.sub(r"^#line .*\n", "", text, flags=re.MULTILINE)
    return text.replace('extern "C" __global__', "__global__")


def _header_file(f: Interface, dtypes: Sequence[DType], headers: Sequence[str]) -> str:
    graph = f.served.origin.graph
    arguments = [*(f"{s.name}{s.shape}" for s in graph.inputs), *(s.name for s in graph.scalars)]
    results = ", ".join(f"{s.name}{s.shape}" for s in graph.outputs)
    documentation = list(f.documentation())
    values = [f"{name} = {value}" for name, value in f.symbols.items()]
    example = [f"//   {f.served.origin.key}", f"//   {', '.join(values)}"] if values else []
    text = _render(
        "launch.h",
        f=f,
        comment=f"// {f.served.origin}: the C interface of {f.name}.cu.",
        guard=f"{f.name.upper()}_H_",
        headers=headers,
        opaque=list(dict.fromkeys(t.ctype for t in dtypes if t in _HEADERS)),
        has_bool=bool_ in dtypes,
        formula=f"{results} = {graph.name}({', '.join(arguments)})",
        documentation=documentation,
        width=max(len(name) for name, _ in documentation),
        example="\n".join(example),
    )
    return spaced(text)


def _comment(f: Interface, origin: str) -> str:
    problem = f.served.origin
    return f"// {problem} for {f.served.target}\n// {problem.key}\n// {f.served.config!r}\n// The config: {origin}."

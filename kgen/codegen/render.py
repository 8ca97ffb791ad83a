"""Rendering: a template and one frozen context become a Source. jinja2 is nowhere else but in `parsed`."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from kgen.codegen.kept import kept
from kgen.codegen.library import functions_used, namespace_ptx
from kgen.codegen.names import kernel_name, plain, settled
from kgen.codegen.source import Launch, Limit, Param, Pointer, Scalar, Source, TensorMap
from kgen.dsl.errors import DefinitionError, told_of
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Arch

if TYPE_CHECKING:
    import jinja2

# Patterns that begin with a letter, not with \b, are found many times as fast: rendering is mostly such searches.
_INCLUDES = {
    "cuda_fp16.h": r"__h(?:alf2?\b|[a-z]+2?\()",
    "cuda_bf16.h": r"__nv_bfloat162?\b",
    "cuda_fp8.h": r"__nv_fp8_",
    "mma.h": r"wmma::",
}

#: The kinds of parameters.
_PARAMS = get_args(Param)
#: Stands for the kernel's name until its text is whole: in no name of Python's.
_ENTRY = "\N{CIRCLED DIGIT ONE}"
#: Stands for the comment that a file opens with: as many lines.
_HEADER = "//\n" * 4


def file_text(name: str) -> str:
    """A file of kgen's templates by its name, or a user's own by its whole path."""
    file = Path(name) if Path(name).is_absolute() else resources.files("kgen.templates").joinpath(name)
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DefinitionError(f"cannot read the template {name}: {error}") from error


@functools.lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """The one environment; see DESIGN: control lines look like C++ comments and vanish whole."""
    import jinja2  # here: what was rendered before is read (`_made`)

    from kgen.codegen.parsed import ParsedTemplates

    return jinja2.Environment(
        loader=jinja2.FunctionLoader(file_text),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        line_statement_prefix="//%",
        line_comment_prefix="//#",
        autoescape=False,
        bytecode_cache=ParsedTemplates(),
    )


def declaration(param: Param) -> str:
    """A kernel parameter as it stands in the signature."""
    if isinstance(param, Pointer):
        const = "const " if param.access == "in" else ""
        return f"{const}{param.dtype.ctype}* {param.name}"
    if isinstance(param, Scalar):
        return f"{param.dtype.ctype} {param.name}"
    if isinstance(param, TensorMap):
        return f"const __grid_constant__ ptx::TensorMap {param.name}"
    return f"{'int' if param.bits == 32 else 'long long'} {param.name}"


def render(
    schedule: Schedule,
    problem: Problem,
    *,
    entry: str,
    params: tuple[Param, ...],
    launch: Launch,
    arch: Arch,
    context: Any,
    limits: tuple[Limit, ...] = (),
) -> Source:
    """The Source of a config for a problem. `context` is a frozen dataclass; its fields are the template's variables.

    The template also has `config`, the schedule's instance; `entry`, the kernel's name; `signature`, its parameters as C++; and
    `threads` of a block. DefinitionError for arguments of other types and for a template that cannot be read.
    """
    _check_kinds(
        schedule=(schedule, Schedule), problem=(problem, Problem), entry=(entry, str), launch=(launch, Launch),
        arch=(arch, Arch), params=(params, tuple), limits=(limits, tuple),
        **{f"params[{i}]": (p, _PARAMS) for i, p in enumerate(params if isinstance(params, tuple) else ())},
    )  # fmt: skip
    if not dataclasses.is_dataclass(context) or isinstance(context, type):
        raise DefinitionError(f"render: context is {told_of(context)}; expected an instance of a dataclass")
    made = _Made(schedule, entry, params, launch, arch, limits, context)
    try:
        whole = _made(made)
    except TypeError:  # a context of one's own that has no hash
        whole = _made.__wrapped__(made)
    return dataclasses.replace(whole, header=header(schedule, problem))


@dataclasses.dataclass(frozen=True)
class _Made:
    """All that a text is made of: a problem's sizes are not among it."""

    schedule: Schedule
    entry: str
    params: tuple[Param, ...]
    launch: Launch
    arch: Arch
    limits: tuple[Limit, ...]
    context: Any


@functools.lru_cache(maxsize=256)
def _made(made: _Made) -> Source:
    """The Source, but for its header. A problem of a new size, and a tuner that takes a config's several, find it here.

    What kgen's own schedules make is kept on disk, so that the next process that wants it imports no jinja2.
    """
    if type(made.schedule).__module__.startswith("kgen."):
        text = json.loads(kept("rendered", (repr(made),), lambda: json.dumps(_rendered(made)).encode()))
    else:
        text = _rendered(made)
    params = tuple(_named(p, text["names"]) for p in made.params)
    parts = (tuple(text["includes"]), text["ptx"], text["body"], text["entry"])
    return Source(_HEADER, *parts, params, made.launch, made.arch, made.limits)


def _rendered(made: _Made) -> dict[str, Any]:
    """The text of a Source: headers, PTX layer, body and the kernel's name; and the names that operands got."""
    schedule, params, context = made.schedule, made.params, made.context
    template = environment().get_template(schedule.template)
    fields = {f.name: getattr(context, f.name) for f in dataclasses.fields(context)}
    threads = made.launch.block[0] * made.launch.block[1] * made.launch.block[2]
    signature = ", ".join(declaration(p) for p in params)
    body = template.render(**fields, entry=_ENTRY, config=schedule, threads=threads, signature=signature)
    maps = frozenset(("load" if p.access == "in" else "store", len(p.box)) for p in params if isinstance(p, TensorMap))
    includes, ptx, body, names = _finished(body, maps)
    entry = kernel_name(made.entry, body)
    source = Source(_HEADER, includes, ptx, body.replace(_ENTRY, entry), entry, params, made.launch, made.arch)
    return {"includes": includes, "ptx": ptx, "body": restore_lines(source), "entry": entry, "names": names}


def _check_kinds(**given: tuple[object, Any]) -> None:
    for name, (value, kinds) in given.items():
        if not isinstance(value, kinds):
            names = " or ".join(k.__name__ for k in (kinds if isinstance(kinds, tuple) else (kinds,)))
            raise DefinitionError(f"render: {name} is {told_of(value)}; expected {names}")


@functools.lru_cache(maxsize=64)
def _finished(body: str, maps: frozenset[tuple[str, int]]) -> tuple[tuple[str, ...], str, str, Mapping[str, str]]:
    """What a template has made, with all that it needs: headers, PTX layer, body; and the names that operands got.

    Most of rendering is this, and a tuner renders a config for several sizes that make the same text.
    """
    functions = functions_used("common", body)
    body, names = settled(body)
    body = tidy(body.replace("//@functions\n", functions))
    ptx = namespace_ptx(body, wgmma_shapes(body), maps)
    includes = tuple(name for name, pattern in _INCLUDES.items() if re.search(pattern, ptx + body))
    return includes, ptx, body, names


def _named(param: Param, names: Mapping[str, str]) -> Param:
    """The parameter as the finished text has it; a scalar has the name that its value is given under."""
    new = plain if isinstance(param, Scalar) else names.__getitem__
    changed: dict[str, Any] = {field: new(v) for field, v in vars(param).items() if v in names}
    return dataclasses.replace(param, **changed)


_WGMMA = re.compile(r"ptx::(wgmma_m64n(\d+)k(\d+)_(f16|bf16|tf32|e4m3|e5m2)_(f32|f16)(_rs)?)\b")


def wgmma_shapes(body: str) -> str:
    """The wgmma functions that the body calls: of their hundreds of shapes, each is made when it is asked for."""
    template = environment().get_template("ptx/wgmma_shape.cuh.j2")
    made = {}
    for name, n, k, dtype, total, registers in _WGMMA.findall(body):
        made[name] = template.render(
            name=name,
            n=int(n),
            k=int(k),
            dtype=dtype,
            total=total,
            count=int(n) // (4 if total == "f16" else 2),
            registers=bool(registers),
            transposed=dtype in ("f16", "bf16"),
        )
    return "\n".join(text.strip("\n") + "\n" for text in made.values())


def restore_lines(source: Source) -> str:
    """The body with each `//@line` made a `#line` directive that leads back from the user's file to the generated one."""
    marker = "//@line\n"
    body = source.body
    before = source.text.index(body)
    while marker in body:
        line = (source.text[:before] + body[: body.index(marker)]).count("\n") + 2
        body = body.replace(marker, f'#line {line} "{source.entry}.cu"\n', 1)
    return body


def header(schedule: Schedule, problem: Problem) -> str:
    """The comment a generated file opens with: operator, problem, config and the command that makes it again."""
    return (
        f"// {problem}\n"
        f"// {problem.key}\n"
        f"// {schedule!r}\n"
        f'// Generated by kgen; again: kgen source {command_arguments(problem)} --config "{schedule!r}"\n'
    )


def command_arguments(problem: Problem) -> str:
    """Operator, sizes, dtype and layouts as the command line takes them."""
    problem = problem.origin or problem
    sizes = [f"{name}={size}" for name, size in problem.bindings]
    if problem.leading or not sizes:
        sizes.insert(0, "...=" + "x".join(map(str, problem.leading)))
    words = [problem.graph.name, f"--shape {','.join(sizes)}"]
    words.append("--dtype " + ",".join(dict.fromkeys(o.dtype.name for o in problem.operands)))
    columns = [o.name for o in problem.operands if o.layout == "col"]
    if columns:
        words.append("--transposed " + ",".join(columns))
    return " ".join(words)


def tidy(text: str) -> str:
    """At most one blank line in a row, none after an opening brace, no blanks at line ends."""
    text = "\n".join(line.rstrip(" \t") for line in text.split("\n"))
    text = re.sub(r"\n{3,}", "\n\n", text)
    text = re.sub(r"\{\n\n", "{\n", text)
    return re.sub(r"\n\n(\s*\})", r"\n\1", text).lstrip("\n")

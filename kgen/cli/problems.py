"""Problems: operators, shapes, dtypes and layouts as the command line takes them."""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgen.dsl.errors import ArgumentError, DefinitionError, KgenError

if TYPE_CHECKING:
    from kgen.dsl.choice import Value
    from kgen.dsl.operator import Graph
    from kgen.dsl.problem import Problem, Sizes
    from kgen.dsl.schedule import Schedule
    from kgen.runtime.operator import KernelOperator

_SYNTAX = "expected sizes such as 4096x4096x4096 or M=4096,N=4096,K=64"
#: An operand of more bytes is a slip: no GPU has the memory.
_LARGEST = 1 << 40


def find_operator(text: str) -> KernelOperator:
    """The shipped operator of that name, or the one called `name` in a file of the user's: `file.py:name`.

    Of one that takes several launches `name_1`, `name_2` are these.
    """
    from kgen.runtime.shipped import shipped

    path, colon, name = text.rpartition(":")
    if not colon and not text.endswith(".py"):
        return shipped(text)
    if not colon or not name or not path.endswith(".py"):
        raise ArgumentError(f"malformed operator {text!r}; expected a shipped one's name, or file.py:name")
    return _in_file(Path(path), name)


def find_model(text: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A model and what it is called with: what the function `name` of a file of the user's returns, for `file.py:name`."""
    path, colon, name = text.rpartition(":")
    if not colon or not name or not path.endswith(".py"):
        raise ArgumentError(f"malformed model {text!r}; expected file.py:name of a function that makes it")
    make = vars(_load(Path(path))).get(name)
    if not callable(make):
        raise ArgumentError(f"{path}: {name!r} is no function; expected one that returns a model and its inputs")
    try:
        made = make()
    except Exception as error:  # whatever a user's function may raise
        raise DefinitionError(f"{path}: {name}() failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, tuple) or not made or not callable(made[0]):
        raise ArgumentError(f"{path}: {name}() gave a {type(made).__name__}; expected a tuple: a model, and its inputs")
    return made[0], made[1:]


def restricted(
    text: str, schedule: Sequence[str] | None, fields: Sequence[str] | None, config: str | None = None
) -> KernelOperator:
    """The operator of that name, with the configs that `--schedule` and `--set` name; one that `--config` names is no such."""
    from kgen.dsl.family import family_of
    from kgen.dsl.program import several_launches

    operator = find_operator(text)
    if config is not None and (schedule or fields):
        raise ArgumentError(
            "--config was given beside --schedule or --set; expected a whole config, or what to choose among"
        )
    if (schedule or fields or config) and operator.launches != (operator,):
        raise several_launches(operator.definition.graphs[0])
    if schedule:
        own = [space.schedule for space in operator.restriction.spaces]
        known = {s.__name__: s for s in own or family_of(operator.definition.graphs[0]).schedules}
        unknown = [name for name in schedule if name not in known]
        if unknown:
            raise ArgumentError(f"unknown schedule {unknown[0]!r}; {operator.__name__} has {', '.join(known)}")
        operator = operator.using([known[name] for name in schedule])
    given = [parse_field(text) for text in fields or ()]
    twice = [name for number, (name, _) in enumerate(given) if name in dict(given[:number])]
    if twice:
        raise ArgumentError(f"--set names {twice[0]} twice; expected all its values at once: {twice[0]}=64,128")
    return operator.using(**dict(given)) if given else operator


def parse_field(text: str) -> tuple[str, tuple[Value, ...]]:
    """A field and its values, of `BM=64,128`, `swizzle=xor` or `pdl=True`."""
    name, equals, values = (part.strip() for part in text.partition("="))
    items = [item.strip() for item in values.split(",")]
    if not equals or not name.isidentifier() or not all(items):
        raise ArgumentError(f"malformed field {text!r}; expected for example BM=64,128")

    def value(item: str) -> Value:
        if re.fullmatch(r"-?[0-9]{1,18}", item):
            return int(item)
        return item == "True" if item in ("True", "False") else item.strip("'\"")

    return name, tuple(map(value, items))


def spare(text: str, out: Path | None) -> None:
    """Raises ArgumentError where what is written to `out` would replace the file of the user's that the operator is in."""
    path = Path(text.rpartition(":")[0])
    if out is not None and path.is_file() and out.exists() and out.samefile(path):
        raise ArgumentError(f"cannot write {out}: the operator {text} is in it; name another file")


def _in_file(path: Path, name: str) -> KernelOperator:
    from kgen.dsl.operator import Operator
    from kgen.runtime.operator import KernelOperator

    members = vars(_load(path))
    found = members.get(name)
    if name not in members:
        whole = members.get(name.rpartition("_")[0])
        whole = KernelOperator(whole) if isinstance(whole, Operator) else whole
        launches = whole.launches if isinstance(whole, KernelOperator) else ()
        found = next((launch for launch in launches if launch.__name__ == name), None)
    if isinstance(found, Operator):
        return KernelOperator(found)
    if isinstance(found, KernelOperator):
        return found
    there = [key for key, value in members.items() if isinstance(value, (Operator, KernelOperator))]
    what = f"is a {type(found).__name__} and no operator" if name in members else "is not there"
    near = difflib.get_close_matches(name, there, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(there) or 'no operator'}"
    raise ArgumentError(f"{path}: {name!r} {what}; {hint}")


def _load(path: Path) -> Any:
    """The user's file as a module. What goes wrong in it is told with its line."""
    if not os.path.isfile(path):  # also of a name that no file can have
        raise ArgumentError(f"no file {path}; expected a Python file that defines the operator, as in file.py:name")
    name = "kgen_file_" + re.sub(r"\W", "_", path.stem)  # none that a module has: a file may be called kgen.py
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.modules[name] = module  # dataclasses and pickles look for it there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever a user's file may raise
        del sys.modules[name]
        if isinstance(error, KgenError):
            raise
        raise DefinitionError(
            f"{path} cannot be loaded: {type(error).__name__}: {error}{_line(error, module.__file__)}"
        ) from error
    finally:
        sys.dont_write_bytecode = before
        sys.path.remove(str(path.resolve().parent))
    return module


def _line(error: BaseException, path: str | None) -> str:
    """Where in the file an error arose."""
    found, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            found = f" (line {trace.tb_lineno})"
        trace = trace.tb_next
    return found


def select(
    operator: KernelOperator,
    shapes: Sequence[str] | None = None,
    suite: str | None = None,
    dtype: str | None = None,
    transposed: str | None = None,
    layout: str | None = None,
) -> list[Problem]:
    """The problems that the options name: the shapes given, or those of a suite, "default" where neither is named."""
    from kgen.dsl.family import family_of

    graph = operator.definition.graphs[0]
    family = family_of(graph)
    if dtype is not None and not dtype.strip(" ,"):
        raise ArgumentError(f"malformed dtype {dtype!r}; expected for example {graph.inputs[0].dtype}")
    if shapes and suite is not None:
        raise ArgumentError("--shape and --suite were both given; expected one of them")
    layouts = _layouts(graph, transposed, layout)
    sizes = [parse_shape(text, family.dims(graph)) for text in shapes] if shapes else _suite(operator, suite)
    for spec in (*graph.inputs, *graph.outputs) if layouts else ():
        rank = len(spec.shape.dims) + min(_leading(one) if spec.shape.leading else 0 for one in sizes)
        if spec.name in layouts and rank < 2:
            raise ArgumentError(f"{graph.name}: {spec.name} has {rank} dimensions; expected 2 or more to be transposed")
    problems = [operator.problem(one, dtype=dtype, layouts=layouts) for one in sizes]
    for problem in problems:
        largest = max(problem.operands, key=lambda o: o.elements * o.dtype.bytes)
        if largest.elements * largest.dtype.bytes > _LARGEST:
            raise ArgumentError(f"{problem}: {largest} is larger than {_LARGEST >> 40} TiB, more than a GPU has")
    return problems


def _leading(sizes: Sizes) -> int:
    head = sizes.get("...", ())
    return 1 if isinstance(head, int) else len(head)


def select_one(
    operator: KernelOperator, shape: str | None, dtype: str | None, transposed: str | None, layout: str | None
) -> Problem:
    """The one problem that the options name; without a shape the last of the default suite."""
    return select(operator, [shape] if shape is not None else None, None, dtype, transposed, layout)[-1]


def _suite(operator: KernelOperator, name: str | None) -> Sequence[Sizes]:
    from kgen.dsl.family import suites_of

    suites = suites_of(operator.definition)
    if name is not None and name not in suites:
        raise ArgumentError(f"unknown suite {name!r}; {operator.__name__} has {', '.join(suites)}")
    return suites[name or "default"]


def suite_told(operator: KernelOperator, problems: Sequence[Problem], verb: str) -> str:
    """What is said where the user named neither shape nor suite."""
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    return f"no --shape given: {verb} the suite 'default' of {operator.__name__}, {count}"


def shape_text(sizes: Sizes) -> str:
    """Sizes by dimension as `--shape` takes them: `...=8x16,M=64`."""
    return ",".join(f"{name}={'x'.join(map(str, n)) if isinstance(n, tuple) else n}" for name, n in sizes.items())


def parse_shape(text: str, dims: Sequence[str]) -> dict[str, int | tuple[int, ...]]:
    """Sizes by dimension, of `4096x4096x64` in the order of `dims` ("..." takes what is left over) or of `M=4096,N=64`."""
    if "=" in text:
        found = _named(text)
        if found.get("...") and "..." not in dims:
            raise ArgumentError(f"shape {text!r} has leading sizes; expected {'x'.join(dims)} alone")
        return found
    sizes = _sizes(text, text)
    named = [d for d in dims if d != "..."]
    extra = len(sizes) - len(named)
    if extra < 0 or (extra and "..." not in dims):
        at_least = "at least " if "..." in dims else ""
        raise ArgumentError(f"shape {text!r} has {len(sizes)} sizes; expected {at_least}{len(named)}: {'x'.join(dims)}")
    leading: dict[str, Any] = {"...": sizes[:extra]} if extra else {}
    return leading | dict(zip(named, sizes[extra:]))


def _named(text: str) -> dict[str, int | tuple[int, ...]]:
    found: dict[str, int | tuple[int, ...]] = {}
    for item in text.split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not (name == "..." or name.isidentifier()):
            raise ArgumentError(f"malformed shape {text!r} at {item!r}; {_SYNTAX}")
        if name in found:
            raise ArgumentError(f"shape {text!r} names {name} twice; expected each dimension once")
        sizes = () if name == "..." and not value else _sizes(value, text)
        if name != "..." and len(sizes) != 1:
            raise ArgumentError(f"shape {text!r}: {name} has {len(sizes)} sizes; expected one (only ... takes several)")
        found[name] = sizes if name == "..." else sizes[0]
    return found


def _sizes(text: str, whole: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]{1,18}(x[0-9]{1,18})*", text.strip()):
        raise ArgumentError(f"malformed shape {whole!r}; {_SYNTAX}")
    sizes = tuple(int(part) for part in text.strip().split("x"))
    for size in sizes:
        if size < 1:
            raise ArgumentError(f"shape {whole!r} has the size {size}; expected sizes of at least 1")
    return sizes


def _layouts(graph: Graph, transposed: str | None, layout: str | None) -> dict[str, str]:
    """The operands that are stored as columns."""
    if transposed is not None and layout is not None:
        raise ArgumentError("--transposed and --layout were both given; expected one of them")
    if transposed is not None:
        return {name.strip(): "col" for name in transposed.split(",")}
    if layout is None:
        return {}
    from kgen.ops.gemm.problem import contraction, sides

    if contraction(graph) is None:
        raise ArgumentError(f"--layout is for matrix products, and {graph.name} has none; use --transposed")
    if not re.fullmatch("[NT]{2}", layout.upper()):
        raise ArgumentError(f"malformed layout {layout!r}; expected NN, NT, TN or TT")
    found = {}
    for side, letter in zip(sides(graph), layout.upper()):
        if (letter == "T") != side.transposed:  # x @ w.T takes w as [N, K]: that is T as it stands
            found[side.name] = "col"
    return found


def find_config(text: str) -> Schedule:
    """The config that a text prints; ConfigError, with what is near, for another."""
    from kgen import ops  # registers the families
    from kgen.dsl.config_text import parse_config
    from kgen.dsl.family import schedules

    assert ops.operators()
    return parse_config(text, schedules())


def of_training(operator: KernelOperator, problems: Sequence[Problem]) -> list[Problem]:
    """What training steps of these problems run: calls with what they keep, and their gradients."""
    from kgen.dsl.training import training_problems

    if operator.restriction or operator.pinned:
        raise ArgumentError(
            "--schedule or --set was given beside --backward; expected one of them: each kernel has its own"
        )
    return [one for problem in problems for one in training_problems(problem)]


def as_json(problem: Problem) -> Mapping[str, Any]:
    """A problem for JSON: as printed, its key, and the arguments that name it on the command line."""
    from kgen.codegen.render import command_arguments

    return {"problem": str(problem), "key": problem.key, "arguments": command_arguments(problem)}

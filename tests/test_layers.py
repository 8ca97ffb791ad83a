"""The layers and the doors: what each module of kgen may import, imports inside functions included."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Each imports those before it only. kgen.templates is data, which all may read; kgen itself is the public names, which only
#: the command line may use; tuning_db is a folder of its own.
LAYERS = (
    "dsl",
    "codegen",
    "gpu",
    "emulator",
    "numerics",
    "tuning_db",
    "tuner",
    "ops",
    "runtime",
    "integrations",
    "bench",
    "export",
    "cli",
)
#: The files of the tuner that hold tensors: those that run kernels, check and time them.
TENSORS = ("execute", "far", "timer", "verify", "worker")
#: Who imports each dependency.
DOORS = {
    "jinja2": ["kgen/codegen/parsed.py", "kgen/codegen/render.py"],
    "cuda": ["kgen/gpu/"],
    "pynvml": ["kgen/gpu/"],
    "optuna": ["kgen/tuner/search.py"],
    "threadpoolctl": ["kgen/tuner/posterior.py"],
    "numpy": [
        f"kgen/tuner/{name}.py"
        for name in (
            *("best", "boxes", "columns", "fit", "forecast", "instructions", "listed"),
            *("posterior", "ranges", "recorded", "recorder", "scored", "traced"),
        )
    ],
    "sqlalchemy": ["tuning_db/"],
    "alembic": ["tuning_db/"],
    "torch": [
        "kgen/numerics/",
        "kgen/runtime/",
        "kgen/integrations/",
        "kgen/bench/",
        *(f"kgen/tuner/{name}.py" for name in TENSORS),
    ],
    "triton": ["kgen/bench/opponents/triton.py"],
    "transformers": ["kgen/integrations/transformers.py"],
    "typer": ["kgen/cli/"],
    "rich": ["kgen/cli/", "kgen/runtime/report.py"],
    "mypy": ["kgen/mypy_plugin.py"],
}


#: What only a type checker imports, against the way of the imports that run. The kernel, the model and the default of a
#: schedule with many of each are parts of its class in files of their own: they read its fields, and the class calls them.
PARTS = {
    "kgen.ops.elementwise.transpose": ["kgen.ops.elementwise.transpose_model"],
    "kgen.ops.gather.gather": ["kgen.ops.gather.gather_model"],
    "kgen.ops.gemm.wgmma": ["kgen.ops.gemm.wgmma_kernel", "kgen.ops.gemm.wgmma_model"],
    "kgen.ops.rowwise.cluster": [
        "kgen.ops.rowwise.access",
        "kgen.ops.rowwise.kernel",
        "kgen.ops.rowwise.measured",
        "kgen.ops.rowwise.model",
    ],
    "kgen.ops.rowwise.rowwise": [
        "kgen.ops.rowwise.access",
        "kgen.ops.rowwise.measured",
        "kgen.ops.rowwise.kernel",
        "kgen.ops.rowwise.model",
    ],
    "kgen.ops.rowwise.span": ["kgen.ops.rowwise.access", "kgen.ops.rowwise.kernel", "kgen.ops.rowwise.model"],
}


def imports(text):
    """(line, module) of every import of a source text; `from a import b` counts as a.b."""
    yield from imports_of(ast.parse(text))


def imports_of(tree):
    """The same of a syntax tree or of a part of one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{'.' * node.level}{node.module or ''}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and called(node).endswith(("import_module", "__import__")):
            yield from ((node.lineno, a.value) for a in node.args[:1] if isinstance(a, ast.Constant))


def called(node):
    """The last word of what is called."""
    return getattr(node.func, "attr", None) or getattr(node.func, "id", "")


def faults(file, text):
    """What the module `file` (relative to the root) imports and must not."""
    own = next((part for part in Path(file).parts[:2] if part in LAYERS), None)
    for line, module in imports(text):
        first, layer, *_ = [*module.split("."), ""]
        if first in DOORS and not any(file.startswith(door) for door in DOORS[first]):
            yield f"{file}:{line} imports {module}; only {', '.join(DOORS[first])} may"
        elif first == "kgen" and own and layer != "templates" and (layer or own != "cli"):
            if layer not in LAYERS or LAYERS.index(layer) > LAYERS.index(own):
                yield f"{file}:{line} imports {module}; {own} sees {', '.join(LAYERS[: LAYERS.index(own) + 1])}"
        elif not first:
            yield f"{file}:{line} imports {module}; imports are absolute"


def test_no_import_goes_upwards_and_every_dependency_has_one_door():
    files = [file for folder in ("kgen", "tuning_db", "templates") for file in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 100
    found = [fault for f in files for fault in faults(f.relative_to(ROOT).as_posix(), f.read_text("utf-8"))]
    assert not found, "\n".join(found)


def test_every_folder_is_a_layer():
    folders = {file.parent.name for file in (ROOT / "kgen").glob("*/__init__.py")}
    assert folders | {"tuning_db"} == set(LAYERS)


def test_what_is_forbidden_is_found():
    def found(file, text):
        return len(list(faults(file, text)))

    assert found("kgen/dsl/x.py", "from kgen.codegen import render\nimport torch") == 2
    assert (
        found("kgen/tuner/x.py", "def f():\n    from kgen import ops\nif TYPE_CHECKING:\n    import kgen.runtime.plan")
        == 2
    )
    assert found("tuning_db/x.py", "import_module('kgen.tuner.tune')\nfrom . import store\nimport kgen") == 3
    assert found("kgen/__init__.py", "import torch.fx") == 1
    assert not found("kgen/ops/x.py", "import kgen.templates\nfrom kgen.ops import gemm\nfrom kgen.tuner import race")
    assert not found("kgen/cli/x.py", "import kgen\nimport rich.table")
    assert not found("tuning_db/x.py", "import sqlalchemy as sa\nfrom kgen.dsl.errors import KgenError")


def modules():
    """The files of kgen by module, without the public names alone, which import nothing before they are used."""
    for folder, package in (("kgen", ()), ("tuning_db", ("kgen",))):
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = (*package, *file.relative_to(ROOT).with_suffix("").parts)
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if name != "kgen":
                yield name, file.read_text("utf-8")


def graph(sources, typed):
    """What each module imports, inside functions too, of the others; what is for type checkers alone only where `typed`."""
    found = {}
    for name, text in sources.items():
        tree = ast.parse(text)
        if not typed:
            for node in ast.walk(tree):
                if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
                    node.body = [ast.Pass()]
        named = {m if m in sources else m.rpartition(".")[0] for _, m in imports_of(tree)}
        found[name] = sorted(named & sources.keys() - {name})
    return found


def circles(edges):
    """The sets of modules that import each other, straight or by way of others."""
    reach = {name: set() for name in edges}
    for name in edges:
        waiting = [name]
        while waiting:
            for other in edges[waiting.pop()]:
                if other not in reach[name]:
                    reach[name].add(other)
                    waiting.append(other)
    return sorted({tuple(sorted(m for m in reach[n] if n in reach[m])) for n in edges if n in reach[n]})


def test_no_module_imports_itself_by_way_of_others():
    sources = dict(modules())
    assert not circles(graph(sources, typed=False))
    edges = graph(sources, typed=True)
    for schedule, parts in PARTS.items():
        for part in parts:
            assert schedule in edges[part], f"{part} does not import {schedule}: take it off the list"
            edges[part].remove(schedule)
    assert not circles(edges)


def test_circles_are_found():
    sources = {
        "kgen.a": "def f():\n    from kgen.b import c",
        "kgen.b": "import kgen.c",
        "kgen.c": "if TYPE_CHECKING:\n    from kgen import a",
    }
    assert not circles(graph(sources, typed=False))
    assert circles(graph(sources, typed=True)) == [("kgen.a", "kgen.b", "kgen.c")]
    assert circles(graph({**sources, "kgen.b": "from kgen import a"}, typed=False)) == [("kgen.a", "kgen.b")]

"""Program: the exported test. Calls the launch function on ragged problems and compares with the reference."""

from __future__ import annotations

from collections.abc import Sequence

from kgen.codegen.render import environment
from kgen.codegen.source import Scalar
from kgen.dsl.expr import Expr, walk
from kgen.dsl.operator import Graph
from kgen.dsl.ops import CONTRACTIONS, OPS, PRODUCTS, SCANS, accumulator, operands_as
from kgen.dsl.partition import partition
from kgen.dsl.problem import WIDEST_ACCESS, Problem
from kgen.dsl.size import Dim, evaluate
from kgen.dsl.types import f64
from kgen.export.cases import Case, cases
from kgen.export.interface import Interface
from kgen.export.reference import externals, literal, reference, tolerance
from kgen.export.sizes import wrapped

#: The most elements of an output that are compared, and the most multiplications of a contraction for all of them.
_SAMPLES, _MULTIPLICATIONS = 2**22, 2**28


def test_program(f: Interface, kernels: str, gencode: str, headers: list[str]) -> str:
    """The text of test_<op>.cu, for kernels in a file of that name."""
    origin = f.origin
    found = cases(f)
    operands = [p.name for p in f.operands]
    scalars = [f.names[s.name] for s in f.scalars]
    workspace = ["workspace"] if f.has_workspace else []
    measured = [f"test_case.{n}" if n in f.symbols else f"{n}.device()" for n in f.workspace_arguments]
    names = [*operands, *f.symbols, *scalars, *workspace]
    tuned = [*operands, *(str(v) for v in f.symbols.values()), *(_value(f, s) for s in f.scalars), *workspace]
    called = [
        *(f"{p.name}.device()" for p in f.operands),
        *(f"test_case.{s}" for s in f.symbols),
        *scalars,
        *workspace,
    ]
    template = environment().get_template("export/test.cu.j2")
    return template.render(
        f=f,
        tensors=f.operands,
        command=f"nvcc -std=c++17 -O2 {gencode} -o test_{f.name} {kernels} test_{f.name}.cu",
        headers=headers,
        values=random_values(origin.graph),
        samples=_samples(origin.graph, found),
        call=wrapped(f"  return {f.name}_launch(", [*(f"args.{n}" for n in names), "nullptr"], ");"),
        valid=wrapped("  const Arguments valid_arguments = {", tuned, "};"),
        refusals=_refusals(f),
        refusal=_refusal,
        ranks={f.names[o.name]: len(o.shape) for o in origin.operands},
        scalars=[(s.dtype.ctype, f.names[s.name], _value(f, s)) for s in f.scalars],
        workspace_call=wrapped(f"  const size_t workspace_size = {f.name}_workspace_bytes(", measured, ");"),
        arguments=wrapped("  const Arguments launch_arguments = {", called, "};"),
        offsets=[f.names[x.attr] for n in origin.graph.nodes for x in operands_as(n, "offsets")],
        outputs=[_output(f, i) for i in range(len(origin.outputs))],
        cases=[_case(f, case) for case in found],
        externals=externals(origin, f.names),
    )


def random_values(graph: Graph) -> str:
    """Which values a test draws, so that rounding in another order does not decide: see `tolerance`."""
    if any(OPS[n.op].multiplies for n in graph.nodes):
        return "powers"
    # Sums that are made in 16 bits, in any order, are exact of coarse values alone.
    short = any(OPS[n.op].kind == "scatter" and accumulator(n).bits == 16 for n in graph.nodes)
    # What cancels in a sum, or a mean, of products is not known to f32.
    products = any(n.op in PRODUCTS or (n.op in ("sum", "mean") and _multiplied(n)) for n in graph.nodes)
    return "coarse" if short or products else "wide"


def _multiplied(total: Expr) -> bool:
    """Whether the terms of a sum are products of two values, of either sign: squares do not cancel."""
    products = (n.args for n in walk(total.args) if n.op == "mul")
    return any(a is not b and all(x.op not in ("const", "scalar") for x in (a, b)) for a, b in products)


def _samples(graph: Graph, found: Sequence[Case]) -> int:
    """How many elements of an output are compared, so that the reference of them all takes seconds."""
    if partition(graph) is None and not any(n.op in PRODUCTS for n in graph.nodes):
        return _SAMPLES
    return max(1, min(_SAMPLES, _MULTIPLICATIONS // max(_terms(case.problem) for case in found)))


def _terms(problem: Problem) -> int:
    """How many terms an element of a result is made of: those of its sums, and of the sums within each term."""
    below: dict[int, dict[int, int]] = {}  # of each node its contractions, with the terms of each
    for node in problem.graph.nodes:
        found = {k: n for a in node.args for k, n in below[id(a)].items()}
        if node.op in CONTRACTIONS:
            own = problem.elements_of(node.args[0].shape) // max(1, problem.elements_of(node.shape))
            if node.op in PRODUCTS | SCANS:
                own = evaluate(node.args[0].shape.dims[-1], problem.sizes)
            # What has one value for all terms is made once.
            inner = [n for k, n in found.items() if _varies(node, k, problem)]
            found[id(node)] = own * max([1, *inner])
        below[id(node)] = found
    return sum(n for r in problem.graph.results for n in below[id(r)].values()) or 1


def _varies(node: Expr, inner: int, problem: Problem) -> bool:
    """Whether a contraction within another one's terms has another value for each of them."""
    under = next(n for n in problem.graph.nodes if id(n) == inner)
    return problem.elements_of(under.shape) > problem.elements_of(node.shape)


def _value(f: Interface, scalar: Scalar) -> str:
    """A value for a scalar of the test: near its default, and none that would leave a factor out."""
    default = next(s.default for s in f.origin.graph.scalars if s.name == scalar.name)
    if not scalar.dtype.is_float:
        return str(int(default if default is not None else 2) + 1)
    text = literal(0.75 * float(default if default is not None else 1.0) + 0.125)
    return text if scalar.dtype is f64 else f"{text}f"


def _output(f: Interface, index: int) -> dict[str, str]:
    origin = f.origin
    relative, absolute = tolerance(origin, index)
    return {
        "name": f.names[origin.outputs[index].name],
        "reference": reference(origin, index, f.names),
        "relative": f"{relative:.2e}",
        "absolute": f"{absolute:.2e}",
    }


def _case(f: Interface, case: Case) -> str:
    """A case as an initializer: its name, a layout for every operand, the symbols."""

    def numbers(values: tuple[int, ...]) -> str:
        return "{{" + ", ".join(map(str, values)) + "}}" if values else "{}"

    items = [f'"{case.problem}"']
    for p in f.operands:
        operand = case.problem.operand(p.operand)
        items.append("{" + f"{numbers(operand.shape)}, {numbers(operand.strides)}" + "}")
    items += [str(case.symbols[name]) for name in f.symbols]
    return wrapped("    {", items, "},")


def _refusals(f: Interface) -> list[tuple[str, list[str], str]]:
    """What, the changes to good arguments, and the result that is expected."""
    invalid = "cudaErrorInvalidValue"
    found = [(f"{p.name} is null", [f"{p.name} = nullptr"], invalid) for p in f.operands]
    found += [(f"{name} is negative", [f"{name} = -1"], invalid) for name in f.symbols]
    if f.decides:
        found += [(f"no kernel is for {name} + 1", [f"{name} += 1"], invalid) for name in _unserved(f)]
    else:
        required = f.required
        for p in f.operands:
            if required.alignment[p.operand] > p.dtype.bytes:
                found.append((f"{p.name} is misaligned", [f"{p.name} += 1"], invalid))
        for requirement in required.sizes:
            if not requirement.is_bound and isinstance(requirement.value, Dim):
                name = str(requirement.value)
                found.append((f"{name} is not {requirement.relation} {requirement.bound}", [f"{name} += 1"], invalid))
    nulls = [f"{p.name} = nullptr" for p in f.operands]
    found += [(f"{name} is 0", [f"{name} = 0", *nulls], "cudaSuccess") for name in f.emptying]
    return found


def _unserved(f: Interface) -> list[str]:
    """The sizes and strides of the first problem which, increased by one, no kernel serves."""
    whole = dict.fromkeys((o.name for o in f.origin.operands), WIDEST_ACCESS)
    return [name for name, n in f.symbols.items() if f.decision.pick({**f.symbols, name: n + 1}, whole) is None]


def _refusal(what: str, changes: list[str], result: str) -> str:
    """One check of the refusals, as a statement."""
    change = " ".join(f"args.{change};" for change in changes)
    line = f'  passed &= yields({result}, "{what}", [](Arguments& args) {{ {change} }});'
    if len(line) <= 120:
        return line
    body = "\n".join(f"    args.{change};" for change in changes)
    return f'  passed &= yields({result}, "{what}", [](Arguments& args) {{\n{body}\n  }});'

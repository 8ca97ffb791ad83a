"""Which random numbers a kernel draws: the seed and the offset of kgen.random, in C++."""

from __future__ import annotations

from kgen.codegen.expression import literal
from kgen.codegen.names import identifier
from kgen.dsl.errors import DefinitionError
from kgen.dsl.expr import Expr, fold
from kgen.dsl.types import i64


def stream(node: Expr) -> str:
    """Seed and offset of random numbers, as two arguments in C++."""
    return ", ".join(fold(argument, _integer) for argument in node.args)


def _integer(node: Expr, arguments: list[str]) -> str:
    """An expression of integer scalars in C++, in 64 bits."""
    if node.op == "const":
        return literal(node.attr, i64)
    if node.op == "scalar":
        return identifier(node.attr) if node.dtype is i64 else f"static_cast<long long>({identifier(node.attr)})"
    sign = {"add": "+", "sub": "-", "mul": "*"}.get(node.op)
    if sign:
        return f"({arguments[0]} {sign} {arguments[1]})"
    rounded_down = {"floordiv": "floor_divide", "mod": "floor_remainder"}.get(node.op)
    if rounded_down:
        return f"{rounded_down}({arguments[0]}, {arguments[1]})"
    if node.op == "cast":
        return arguments[0]
    raise DefinitionError(f"{node.where}: a seed or offset of random is made by {node.op}; expected integer arithmetic")

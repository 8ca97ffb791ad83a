"""What tells mypy the type of an operator's parameters: `plugins = ["kgen.mypy_plugin"]` in its settings.

In the definition of an operator `x: Tensor[f16, M, N]` says what a caller gives; in its body `x` is a traced expression. What
stands in the brackets are values, not types, so a type checker needs to be told: the annotation means `kgen.dsl.expr.Expr`,
`Number[float, 0, 1]` a float, and `i64` an int.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.plugin import AnalyzeTypeContext, Plugin
from mypy.types import Type

_TENSOR = "kgen.dsl.operator.Tensor"
_NUMBER = "kgen.dsl.operator.Number"


def _tensor(context: AnalyzeTypeContext) -> Type:
    return context.api.named_type("kgen.dsl.expr.Expr" if context.type.args else _TENSOR, [])


def _number(context: AnalyzeTypeContext) -> Type:
    first = context.type.args[:1]
    return context.api.analyze_type(first[0]) if first else context.api.named_type(_NUMBER, [])


def _integer(context: AnalyzeTypeContext) -> Type:
    return context.api.named_type("builtins.int", [])


_MEANINGS = {_TENSOR: _tensor, _NUMBER: _number, "kgen.dsl.types.i64": _integer}


class OperatorPlugin(Plugin):
    """Knows the annotations of an operator's parameters: tensors are expressions, numbers are numbers."""

    def get_type_analyze_hook(self, fullname: str) -> Callable[[AnalyzeTypeContext], Type] | None:
        """What mypy asks for each name in an annotation."""
        return _MEANINGS.get(fullname)


def plugin(version: str) -> type[Plugin]:
    """mypy's entry."""
    return OperatorPlugin

"""Gradients of attention: products by weights that are made of other products, with no matrix of weights in memory."""

from kgen.dsl.family import Family, register_family
from kgen.dsl.operator import Operator
from kgen.ops.attention_gradient.mma import AttentionGradientMma
from kgen.ops.attention_gradient.one_pass import AttentionGradientOnePass
from kgen.ops.attention_gradient.problem import matches, suites
from kgen.ops.attention_gradient.wgmma import AttentionGradientWgmma
from kgen.ops.common import axes
from kgen.ops.common.lowering import collapse_leading

family = register_family(
    Family(
        "attention_gradient",
        (AttentionGradientWgmma, AttentionGradientOnePass, AttentionGradientMma),
        matches=matches,
        normalise=collapse_leading,
        dims=axes.dims,
        suites=suites,
        priority=3,
    )
)

#: Gradients are of operators of other families.
OPERATORS: tuple[Operator, ...] = ()

__all__ = ["OPERATORS", "AttentionGradientMma", "AttentionGradientOnePass", "AttentionGradientWgmma", "family"]

"""Attention: two matrix products with a softmax over the rows of the first one's result between them, in one launch."""

from kgen.ops.attention.mma import AttentionMma, family
from kgen.ops.attention.wgmma import AttentionWgmma
from kgen.ops.attention.wide import AttentionWide

__all__ = ["AttentionMma", "AttentionWgmma", "AttentionWide", "family"]

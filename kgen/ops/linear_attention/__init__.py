"""Linear attention: sums over rows with weights that separate, by a state that goes from chunk to chunk, in one launch."""

from kgen.ops.linear_attention.mma import LinearAttention, family
from kgen.ops.linear_attention.wgmma import LinearAttentionWgmma

__all__ = ["LinearAttention", "LinearAttentionWgmma", "family"]

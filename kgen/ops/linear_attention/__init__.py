"""Linear attention: sums over rows with weights that separate, by a state that goes from chunk to chunk, in one launch."""

from kgen.ops.linear_attention.schedule import LinearAttention, family

__all__ = ["LinearAttention", "family"]

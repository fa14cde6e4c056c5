"""Cost, attention maps, similarity: the numbers and the pictures."""

from mmseg_ext.analysis.similarity import attention_similarity

__all__ = ["attention_similarity"]

"""Looking into a model: what it attends to, and how alike its attention maps are."""

from mmseg_ext.inspection.similarity import attention_similarity, draw_similarity

__all__ = ["attention_similarity", "draw_similarity"]

"""Looking into a model: what it attends to, how alike its maps are, how far its context reaches."""

from mmseg_ext.inspection.similarity import attention_similarity

__all__ = ["attention_similarity"]

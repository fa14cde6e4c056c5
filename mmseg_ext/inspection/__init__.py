"""Pictures of a model's attention, and the similarity of its attention maps."""

from mmseg_ext.inspection.similarity import attention_similarity

__all__ = ["attention_similarity"]

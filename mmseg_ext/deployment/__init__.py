"""A trained segmentor as one file that runs without mmsegmentation: torch.export and ONNX."""

from mmseg_ext.deployment.export import (
    ExportError,
    export_onnx,
    export_torch,
    refusal_of_dynamic_size,
)
from mmseg_ext.deployment.segmentor import WholeImageSegmentor

__all__ = [
    "ExportError",
    "WholeImageSegmentor",
    "export_onnx",
    "export_torch",
    "refusal_of_dynamic_size",
]

"""A trained segmentor as one ONNX file, with its metadata inside.

The exported model takes the values of images, normalizes them, and returns class scores.
"""

import copy
import json
from pathlib import Path
from typing import Any

import torch
from mmengine.model.utils import revert_sync_batchnorm
from mmseg.models import EncoderDecoder
from mmseg.models.utils import Upsample
from torch import Tensor, nn
from torch.nn import functional as F

from mmseg_ext.environment import require_package
from mmseg_ext.errors import StackError, one_line
from mmseg_ext.segmentors import StripEncoderDecoder
from mmseg_ext.segmentors.strip_encoder_decoder import prediction, predicts_by_resize
from mmseg_ext.upstream import converts_channels

OPSET = 18  # torch's exporter writes it without a conversion


class WholeImageSegmentor(nn.Module):
    """A module from images (B, C, H, W), 0 to 255, to class scores (B, classes, H, W).

    Three channels are in the order RGB, others in the order of the files.

    The scores equal `EncoderDecoder`'s before softmax, without sliding windows: for a config that
    tests with windows, the caller cuts the image into them. Auxiliary heads are left out, and
    synchronized batch norms become plain ones. The module is on the CPU, wherever the segmentor is.

    Args:
        segmentor: an `EncoderDecoder` or `StripEncoderDecoder`; it is copied, not changed.

    Raises:
        ValueError: for another segmentor, and for a decode head whose prediction is more than the
            resize of its forward.
    """

    mean: Tensor
    std: Tensor
    parts: Any

    def __init__(self, segmentor: EncoderDecoder):
        super().__init__()
        head = getattr(segmentor, "decode_head", segmentor)
        known = type(segmentor) in (EncoderDecoder, StripEncoderDecoder)
        if not known or not predicts_by_resize(head):
            raise ValueError(
                f"segmentor: {type(head).__name__} cannot be exported; use an EncoderDecoder whose "
                "decode head only resizes its outputs"
            )
        preprocessor: Any = segmentor.data_preprocessor
        # Pipelines load BGR, so a model without conversion was trained on BGR.
        self.bgr = not converts_channels(preprocessor)
        # (C, 1, 1) or (1, 1, 1); absent if the values are not normalized
        for name, value in (("mean", 0.0), ("std", 1.0)):
            default = torch.full((1, 1, 1), value)
            self.register_buffer(name, getattr(preprocessor, name, default).float())
        parts: Any = nn.ModuleDict()
        for name, module in segmentor.named_children():
            if name in ("backbone", "neck", "decode_head"):
                parts[name] = module
        parts = revert_sync_batchnorm(copy.deepcopy(parts))
        _free_of_size(parts)
        self.parts = parts
        self.align_corners = segmentor.align_corners
        self.cpu().eval()

    def forward(self, images: Tensor) -> Tensor:
        x = images.flip(1) if self.bgr and images.shape[1] == 3 else images
        features = self.parts["backbone"]((x - self.mean) / self.std)
        if "neck" in self.parts:
            features = self.parts["neck"](features)
        head = self.parts["decode_head"]
        scores = prediction(head, head(features))
        return F.interpolate(
            scores, size=images.shape[2:], mode="bilinear", align_corners=self.align_corners
        )  # (B, classes, H, W)


def _free_of_size(module: nn.Module) -> None:
    """Replace mmsegmentation's `Upsample`, whose int() turns a size into a constant.

    For an integer factor torch's module computes the same.
    """
    for name, child in module.named_children():
        factor: Any = getattr(child, "scale_factor", None)
        if isinstance(child, Upsample) and not child.size and factor % 1 == 0:
            upsample = nn.Upsample(None, factor, child.mode, child.align_corners)
            setattr(module, name, upsample)
        else:
            _free_of_size(child)


def random_images(size: tuple[int, int], batch: int = 1, channels: int = 3) -> Tensor:
    """Return images of noise (batch, channels, H, W) with values of 0 to 255."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(batch, channels, *size, generator=generator) * 255


def export(
    model: WholeImageSegmentor,
    path: str | Path,
    size: tuple[int, int],
    dynamic: bool = False,
    metadata: dict | None = None,
    channels: int = 3,
) -> None:
    """Write one ONNX file with the weights, the input `images` and the output `scores`.

    The file takes one image of `size`, or with `dynamic` any number of images of any size. Its
    properties are the values of `metadata` as JSON.

    Raises:
        StackError: if a package or a newer torch is needed.
        ValueError: if the exporter fails. It can also write a file that is wrong for other sizes:
            compare it with the model for a second one.
    """
    if not hasattr(getattr(torch.export, "Dim", None), "DYNAMIC"):
        raise StackError(f"torch {torch.__version__} cannot export; install torch 2.6 or newer")
    for package in ("onnx", "onnxscript", "onnxruntime"):
        require_package(package, "export")
    from onnx_ir.passes.common import DeduplicateInitializersPass

    images, shapes = random_images(size, channels=channels), None
    sizes = f"for {size[0]}x{size[1]}"
    if dynamic:  # torch.export makes a size of 1 constant
        sizes = "with dynamic sizes"
        images = random_images(size, 2, channels)
        any_size = torch.export.Dim.DYNAMIC
        shapes = ({0: any_size, 2: any_size, 3: any_size},)
    options: dict[str, Any] = {
        "dynamo": True,
        "dynamic_shapes": shapes,
        "opset_version": OPSET,
        "input_names": ["images"],
        "output_names": ["scores"],
        "verbose": False,
    }
    try:
        with torch.no_grad():
            exported: Any = torch.onnx.export(model, (images,), **options)
    except Exception as error:  # the exporter raises many types
        reason = one_line(error, 600)
        raise ValueError(f"{path}: the exporter failed {sizes}: {reason}") from error
    # The exporter turns the position tables of each attention block into constants, equal ones for
    # the blocks of a stage. They can be larger than the weights.
    DeduplicateInitializersPass(size_limit=2**30)(exported.model)
    texts = {key: json.dumps(value) for key, value in (metadata or {}).items()}
    exported.model.metadata_props.update(texts)
    exported.save(path, external_data=False)


class ExportedSegmentor:
    """An exported file as a function of images (B, C, H, W), with its `metadata`."""

    def __init__(self, path: str | Path):
        import onnxruntime

        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        properties = self._session.get_modelmeta().custom_metadata_map
        self.metadata = {key: json.loads(value) for key, value in properties.items()}

    def __call__(self, images: Tensor) -> Tensor:
        (scores,) = self._session.run(["scores"], {"images": images.numpy()})
        return torch.from_numpy(scores)


def relative_difference(ours: Tensor, theirs: Tensor) -> float:
    """Return max |ours - theirs| / max |theirs|."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()

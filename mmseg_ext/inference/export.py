"""A trained segmentor as one file: torch.export's `.pt2` or ONNX, with its metadata inside.

What is exported takes RGB values, normalises them itself, and gives class scores.
"""

import copy
import inspect
import json
from pathlib import Path

import torch
from mmengine.model.utils import revert_sync_batchnorm
from mmseg.models import EncoderDecoder
from mmseg.models.decode_heads.psp_head import PPM
from mmseg.models.utils import Upsample
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

from mmseg_ext.inference.fusion import fuse_model
from mmseg_ext.layers import LambdaLayer
from mmseg_ext.segmentors import StripEncoderDecoder
from mmseg_ext.upstream import converts_channels

SUFFIXES = {"torch": ".pt2", "onnx": ".onnx"}
METADATA = "metadata.json"  # the name under which a .pt2 keeps what ONNX has as properties
OPSET = 18  # what torch's exporter writes without a conversion


class WholeImageSegmentor(nn.Module):
    """RGB images (B, 3, H, W) of 0 to 255, float32, to class scores (B, classes, H, W).

    The scores are what `EncoderDecoder` gives for whole images before softmax: the exported file
    sees one window, so a config that tests by sliding windows is cut into windows by who runs the
    file. The auxiliary heads are left behind, and synchronised batch norms become plain ones.

    Args:
        segmentor: an `EncoderDecoder` or `StripEncoderDecoder`; it is copied, not changed.
        fuse: fold batch norms into convolutions and compose external attention (`fuse_model`).

    Raises:
        ValueError: for another kind of segmentor, or one without a data preprocessor that
            normalises.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, segmentor: EncoderDecoder, fuse: bool = False):
        super().__init__()
        if type(segmentor) not in (EncoderDecoder, StripEncoderDecoder):
            raise ValueError(f"segmentor must be an EncoderDecoder, not {type(segmentor).__name__}")
        preprocessor = segmentor.data_preprocessor
        if not hasattr(preprocessor, "mean"):
            raise ValueError("segmentor: its data_preprocessor has no mean and std")
        # Pipelines load BGR; a model that does not convert was trained on it.
        self.bgr = not converts_channels(preprocessor)
        self.register_buffer("mean", preprocessor.mean.float().reshape(1, 3, 1, 1))  # (1, 3, 1, 1)
        self.register_buffer("std", preprocessor.std.float().reshape(1, 3, 1, 1))  # (1, 3, 1, 1)
        parts = nn.ModuleDict({"backbone": segmentor.backbone})
        if segmentor.with_neck:
            parts["neck"] = segmentor.neck
        parts["decode_head"] = segmentor.decode_head
        parts = revert_sync_batchnorm(copy.deepcopy(parts))
        _free_of_size(parts)
        self.parts = fuse_model(parts) if fuse else parts
        self.align_corners = segmentor.align_corners
        self.num_classes = segmentor.out_channels
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        x = images.flip(1) if self.bgr else images
        features = self.parts["backbone"]((x - self.mean) / self.std)
        if "neck" in self.parts:
            features = self.parts["neck"](features)
        scores = self.parts["decode_head"](features)
        if isinstance(scores, (tuple, list)):  # DANet's: the sum, then its two branches
            scores = scores[0]
        return F.interpolate(
            scores, size=images.shape[2:], mode="bilinear", align_corners=self.align_corners
        )  # (B, classes, H, W)


def _free_of_size(module: nn.Module) -> None:
    """Replace mmsegmentation's `Upsample`, whose int() of a size makes a constant of it.

    By a whole factor torch's module computes the same.
    """
    for name, child in module.named_children():
        if isinstance(child, Upsample) and not child.size and child.scale_factor % 1 == 0:
            upsample = nn.Upsample(None, child.scale_factor, child.mode, child.align_corners)
            setattr(module, name, upsample)
        else:
            _free_of_size(child)


def random_images(size: tuple[int, int], batch: int = 1, seed: int = 0) -> Tensor:
    """Images of noise (batch, 3, H, W) with values of 0 to 255."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch, 3, *size, generator=generator) * 255


def export(
    model: WholeImageSegmentor,
    path: str | Path,
    size: tuple[int, int],
    dynamic: bool = False,
    metadata: dict | None = None,
) -> None:
    """Write `path`, in the format of its ending: `.pt2` or `.onnx`, one file with its weights.

    `torch.export.load(path).module()` runs the first; ONNX has the input `images` and the output
    `scores`. The file takes one image of `size`; with `dynamic`, any number of any size.

    Raises:
        ValueError: where a dynamic size is refused or the exporter cannot write the model.
    """
    images, shapes = random_images(size), None
    if dynamic:
        _require_any_size(model, Path(path).suffix)
        images = random_images(size, batch=2)  # torch.export takes a dimension of one as constant
        shapes = ({0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC},)
    write = _write_onnx if Path(path).suffix == SUFFIXES["onnx"] else _write_torch
    try:
        with torch.no_grad():
            write(model, Path(path), images, shapes, metadata or {})
    except OSError:
        raise
    except Exception as error:  # both exporters raise many kinds
        what = "for any size" if dynamic else "for one size"
        message = f"cannot be exported {what}: {' '.join(str(error).split())[:600]}"
        raise ValueError(message) from error


def _require_any_size(model: nn.Module, suffix: str) -> None:
    for module in model.modules():
        if isinstance(module, LambdaLayer) and module.resolution is not None:
            raise ValueError(
                "its lambda layers learn position embeddings for maps of at most "
                f"{module.resolution} (resolution=...): a size of its own each; build "
                "it with receptive_field for any size"
            )
        if suffix == SUFFIXES["onnx"] and isinstance(module, PPM):
            raise ValueError(
                "UPerNet's pyramid pooling divides the map into a fixed number of bins, and ONNX "
                "has no pooling whose windows depend on the size; use --format torch"
            )


def _write_torch(
    model: nn.Module, path: Path, images: Tensor, shapes: tuple | None, metadata: dict
) -> None:
    program = torch.export.export(model, (images,), dynamic_shapes=shapes)
    torch.export.save(program, path, extra_files={METADATA: json.dumps(metadata)})


def _write_onnx(
    model: nn.Module, path: Path, images: Tensor, shapes: tuple | None, metadata: dict
) -> None:
    if "dynamic_shapes" not in inspect.signature(torch.onnx.export).parameters:
        raise ValueError(
            f"torch {torch.__version__} has no exporter to ONNX that knows dynamic shapes; take "
            "torch 2.5 or newer, or --format torch"
        )
    exported = torch.onnx.export(
        model,
        (images,),
        dynamo=True,
        dynamic_shapes=shapes,
        opset_version=OPSET,
        input_names=["images"],
        output_names=["scores"],
        verbose=False,
    )
    texts = {key: json.dumps(value) for key, value in metadata.items()}
    exported.model.metadata_props.update(texts)
    exported.save(path, external_data=False)


class ExportedSegmentor:
    """An exported file as a function of images (B, 3, H, W), and the `metadata` in it."""

    def __init__(self, path: str | Path):
        path = Path(path)
        if path.suffix == SUFFIXES["torch"]:
            extra = {METADATA: ""}
            self._run = torch.export.load(path, extra_files=extra).module()
            self.metadata = json.loads(extra[METADATA])
            return
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        properties = session.get_modelmeta().custom_metadata_map
        self.metadata = {key: json.loads(value) for key, value in properties.items()}
        self._run = lambda images: torch.from_numpy(
            session.run(["scores"], {"images": images.numpy()})[0]
        )

    def __call__(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return self._run(images)


def relative_difference(ours: Tensor, theirs: Tensor) -> float:
    """max |ours - theirs| over max |theirs|."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()

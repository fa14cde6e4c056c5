"""A trained segmentor as one ONNX file, with its metadata inside.

The exported model takes the values of images, normalizes them, and returns class scores.
"""

import copy
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from mmcv.cnn.bricks.conv2d_adaptive_padding import Conv2dAdaptivePadding
from mmengine.config import Config
from mmengine.model.utils import revert_sync_batchnorm
from mmseg.models import EncoderDecoder
from mmseg.models.utils import Upsample
from torch import Tensor, nn
from torch.nn import functional as F

from mmseg_ext.atomic_write import atomic_write
from mmseg_ext.datasets.image_loading import CheckedLoadImage
from mmseg_ext.environment import require_package
from mmseg_ext.errors import StackError, UnreadableFileError, join_names, one_line
from mmseg_ext.images.files import image_files
from mmseg_ext.images.pictures import shown_bands
from mmseg_ext.images.seen import Seen, read_metadata, segment
from mmseg_ext.inference.models import DEFAULT
from mmseg_ext.inference.predictor import Predictor
from mmseg_ext.inference.scale import undescribed_steps
from mmseg_ext.segmentors import StripEncoderDecoder
from mmseg_ext.segmentors.score_maps import labels_of
from mmseg_ext.segmentors.strip_encoder_decoder import prediction, predicts_by_resize
from mmseg_ext.upstream import converts_channels

OPSET = 18  # torch's exporter writes it without a conversion
# Limit of the difference, relative to the largest score. Float32 in another order of operations
# reaches 1e-5.
TOLERANCE = 1e-4
OUTPUT = "class scores, float32, (B, classes, H, W)"
BINARY_OUTPUT = "score of class 1, which a pixel has if sigmoid(score) > threshold, (B, 1, H, W)"
REAL_IMAGES = 3  # of a folder
# Share of a photo's labels that equal `Predictor`'s, below which a file is suspect. Photos that are
# filled to a fixed shape have 0.954 or more (docs/export.md).
LEAST_USED = 0.95


@dataclass(frozen=True)
class Comparison:
    """The scores of an exported file next to the model's.

    Attributes:
        name: of the image, or "random".
        shape: of the images (B, C, H, W).
        difference: the largest one, relative to the largest score.
        agreeing: share of the pixels with the same class.
        used: for a photo, share of the pixels to which the file, used as `demo/run_exported.py`
            does, gives the label of `Predictor`.
    """

    name: str
    shape: tuple[int, ...]
    difference: float
    agreeing: float
    used: float | None = None


@dataclass
class Exported:
    """A written file, and how it compares with the model.

    Attributes:
        path: of the file.
        seen: how the network sees photos, as the metadata says.
        notes: lines for the users of the file.
        compared: images on which file and model were compared.
    """

    path: Path
    seen: Seen
    notes: list[str] = field(default_factory=list)
    compared: list[Comparison] = field(default_factory=list)


def export(
    model: nn.Module | str | Path | Config = DEFAULT,
    weights: str | Path | None = None,
    out: str | Path | None = None,
    *,
    dynamic: bool = False,
    shape: Sequence[int] | None = None,
    images: str | Path | None = None,
) -> Exported:
    """Write a segmentor with its metadata to an ONNX file, and compare the file with the model.

    `mmseg-ext export` calls this function. `demo/run_exported.py` runs the file.

    Args:
        model, weights: of `Predictor`.
        out: the file `NAME.onnx`; by default the config's name with this ending.
        dynamic: let the file take images of any size and number.
        shape: (height, width) or (side,) of the images that the file takes; by default the window
            of a test with sliding windows, or the scale of the test pipeline.
        images: an image or a folder; up to three of its images are compared, besides noise.

    Raises:
        StackError: if a package or a newer torch is needed.
        ValueError: for another ending of `out`, or a `shape` below 1, as `Predictor`, if the model
            cannot be exported, the exporter fails, or the scores of the file differ by more than
            1e-4 of the largest. The file is then not written.
    """
    check_target(out, shape)
    predictor = Predictor(model, weights=weights)
    segmentor, config = predictor.model, predictor.model.cfg
    channels, loader, seen = predictor.channels, predictor.load, predictor.seen
    size = (shape[0], shape[-1]) if shape else _default_size(seen, config, dynamic)
    if not dynamic:
        seen = seen.in_windows(size)
    source = Path(config.filename or "model.py")  # a config from Python has no file
    path = Path(out or f"{source.stem}.onnx")
    real = [] if images is None else _real_images(images, loader)
    result = Exported(path, seen, _notes(seen, config, size, dynamic))
    whole = WholeImageSegmentor(segmentor)
    order = "RGB" if channels == 3 else "bands"
    metadata = {
        "config": source.name,
        "classes": list(predictor.classes),
        "palette": predictor.palette.tolist(),
        "input": f"{order}, 0 to 255, float32, (B, {channels}, H, W)",
        "output": OUTPUT if whole.threshold is None else BINARY_OUTPUT,
        "threshold": whole.threshold,
        "channels": channels,
        "value_range": getattr(loader, "value_range", None),
        "stored_values": getattr(loader, "color_type", "color") == "unchanged",
        "rgb_bands": shown_bands(channels, config.get("rgb_bands")),
        **seen.metadata(),
        "size": list(size),
        "mean": whole.mean.flatten().tolist(),
        "dynamic": dynamic,
        **getattr(segmentor, "terms", {}),
    }
    with atomic_write(path) as part:  # a file that fails the check is deleted
        write_onnx(whole, part, size, dynamic, metadata, channels, name=path)
        try:
            exported = ExportedSegmentor(part)
        except Exception as error:  # onnxruntime's, for a file that it cannot run
            reason = one_line(error, 600).replace(str(part), str(path))
            raise ValueError(f"{path}: not written, does not load: {reason}") from error
        sizes = [size]
        if dynamic:
            sizes.append((size[0] * 3 // 4 + 1, size[1] * 5 // 4 + 3))
        noise = [random_images(each, i, channels) for i, each in enumerate(sizes, 1)]
        for each in noise:
            result.compared.append(_compare(exported, whole, "random", each, path))
        for name, values in real:
            # The file and the model get the same pixels, of the file's shape.
            same = values.astype(np.float32)
            if not dynamic:
                same = np.atleast_3d(cv2.resize(same, size[::-1]))
            given = torch.from_numpy(same.transpose(2, 0, 1).copy())[None]
            compared = _compare(exported, whole, name, given, path)
            if not isinstance(loader, CheckedLoadImage) or metadata["stored_values"]:
                result.compared.append(compared)  # `segment` takes values of 0 to 255
                continue
            # The photo in its own size, as users run the file.
            with torch.no_grad():
                labels = segment(lambda x: exported(torch.from_numpy(x)).numpy(), metadata, values)
            used = float((labels == predictor(values).labels).mean())
            result.compared.append(replace(compared, used=used))
            if used < LEAST_USED:
                text = f"{name}: the file gives only {used:.1%} of its pixels image_demo's label"
                todo = "use --dynamic, or a --shape of the proportions of your photos"
                if dynamic or undescribed_steps(config):
                    todo = "change photos before as the test pipeline does"
                warnings.warn(f"{text}; {todo}", stacklevel=2)
    return result


def check_target(out: str | Path | None, shape: Sequence[int] | None) -> None:
    """Raise a ValueError if no file of these arguments of `export` can be written."""
    if out is not None and Path(out).suffix.lower() != ".onnx":
        # It may be the checkpoint, whose place on a command line is next to it.
        raise ValueError(f"{out}: the exported file's name must end in .onnx")
    if shape is not None and (len(shape) not in (1, 2) or min(shape) < 1):
        given = " ".join(map(str, shape))
        raise ValueError(f"--shape {given}: needs a height and a width, each 1 or more")


def _notes(seen: Seen, config: Any, size: tuple[int, int], dynamic: bool) -> list[str]:
    """Return what changes the labels of photos, and what users of the file have to do."""
    notes = []
    if left_out := undescribed_steps(config):
        text = f"the file leaves out {join_names(left_out)} of the config's test"
        notes.append(f"{text}; change photos before in the same way, else labels differ")
    if not dynamic and (seen.keep_ratio or seen.scale != size[::-1]):
        text = f"photos of other proportions than {size} are filled, which changes some labels"
        notes.append(f"{text}; --images measures it, --dynamic avoids it")
    if seen.window:
        text = f"photos larger than {seen.window} at the scale of the test are cut into windows"
        notes.append(text)
    return notes


def _default_size(seen: Seen, config: Any, dynamic: bool) -> tuple[int, int]:
    """Return (height, width) of the test's windows, or of photos at its scale."""
    if seen.window:
        return seen.window
    if dynamic or not seen.scale:
        height, width = config.get("crop_size") or (512, 512)
        return height, width
    if not seen.keep_ratio:
        return seen.scale[1], seen.scale[0]
    short, long = sorted(seen.scale)
    # In (2048, 512) the long side is a limit that few photos reach.
    return short, long if long <= 2 * short else short


def _real_images(folder: str | Path, loader: Any) -> list[tuple[str, np.ndarray]]:
    """Return name and values (H, W, C), in RGB, of the first images of a folder that are read.

    Raises:
        ValueError: if there is none.
    """
    images: list[tuple[str, np.ndarray]] = []
    for path in image_files(Path(folder), recursive=True):
        if len(images) == REAL_IMAGES:
            break
        try:
            image = np.atleast_3d(loader.transform({"img_path": str(path)})["img"])
        except UnreadableFileError as error:
            warnings.warn(f"not compared: {error}", stacklevel=3)
            continue
        if image.shape[2] == 3:
            image = np.ascontiguousarray(image[..., ::-1])
        images.append((path.name, image))
    if not images:
        raise ValueError(f"--images {folder}: no image there can be read; name another folder")
    return images


def _compare(
    exported: "ExportedSegmentor",
    whole: "WholeImageSegmentor",
    name: str,
    images: Tensor,
    path: Path,
) -> Comparison:
    """Compare the scores of file and model for images (B, C, H, W).

    Raises:
        ValueError: if the file does not run, or they differ by more than `TOLERANCE`.
    """
    shape = "x".join(map(str, images.shape))
    try:
        scores = exported(images)
    except Exception as error:  # onnxruntime's, for sizes that the file does not take
        reason = one_line(error, 300)
        raise ValueError(f"{path}: not written, fails for {shape}: {reason}") from error
    with torch.no_grad():
        expected = whole(images)
    difference = relative_difference(scores, expected)
    if not difference <= TOLERANCE:  # NaN, too
        raise ValueError(
            f"{path}: not written, as its scores for {name} differ from the model's by "
            f"{difference:.1e} of the largest; the limit is {TOLERANCE:g}"
        )
    if whole.threshold is not None:  # of a probability
        scores, expected = scores.sigmoid(), expected.sigmoid()
    same = labels_of(scores, whole.threshold, 1) == labels_of(expected, whole.threshold, 1)
    agreeing = same.double().mean().item()
    return Comparison(name, tuple(images.shape), difference, agreeing)


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
    threshold: float | None  # of the probability of a single class

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
        head = parts["decode_head"]
        self.threshold = head.threshold if head.out_channels == 1 else None
        self.cpu().eval()

    def forward(self, images: Tensor) -> Tensor:
        """Return the class scores (B, classes, H, W) of images (B, C, H, W)."""
        x = images.flip(1) if self.bgr and images.shape[1] == 3 else images
        features = self.parts["backbone"]((x - self.mean) / self.std)
        if "neck" in self.parts:
            features = self.parts["neck"](features)
        head = self.parts["decode_head"]
        scores = prediction(head, head(features))
        return F.interpolate(
            scores, size=images.shape[2:], mode="bilinear", align_corners=self.align_corners
        )  # (B, classes, H, W)


class SameConv2d(Conv2dAdaptivePadding):
    """mmcv's convolution with TensorFlow's padding, for symbolic sizes.

    mmcv writes a size three times, in a division and in a maximum, from which it never cancels, so
    each layer makes the expression of the output's size three times as long, and the exporter takes
    minutes. Here it cancels, and the output's size is ceil(size / stride).
    """

    @staticmethod
    def is_for(conv: nn.Module) -> bool:
        """Return whether the padding is never negative, so no maximum is needed."""
        return isinstance(conv, Conv2dAdaptivePadding) and all(
            dilation * (kernel - 1) + 1 >= stride
            for kernel, stride, dilation in zip(
                conv.kernel_size, conv.stride, conv.dilation, strict=True
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of x (B, C, H, W), of size ceil(size / stride)."""
        padding = []
        for axis in (1, 0):  # of the columns first
            size, stride = x.shape[2 + axis], self.stride[axis]
            covered = (size + stride - 1) // stride * stride - stride
            total = covered + self.dilation[axis] * (self.kernel_size[axis] - 1) + 1 - size
            padding += [total // 2, total - total // 2]
        padded = F.pad(x, padding)
        return F.conv2d(padded, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


def _free_of_size(module: nn.Module) -> None:
    """Replace modules whose sizes the exporter cannot follow by equal ones.

    mmsegmentation's `Upsample` turns a size into a constant with int(); for an integer factor
    torch's module computes the same.
    """
    child: Any
    for name, child in module.named_children():
        factor: Any = getattr(child, "scale_factor", None)
        if SameConv2d.is_for(child):
            child.__class__ = SameConv2d  # with the weights as they are
        elif isinstance(child, Upsample) and not child.size and factor % 1 == 0:
            upsample = nn.Upsample(None, factor, child.mode, child.align_corners)
            setattr(module, name, upsample)
        else:
            _free_of_size(child)


def random_images(size: tuple[int, int], batch: int = 1, channels: int = 3) -> Tensor:
    """Return images of noise (batch, channels, H, W) with values of 0 to 255."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(batch, channels, *size, generator=generator) * 255


def write_onnx(
    model: WholeImageSegmentor,
    path: str | Path,
    size: tuple[int, int],
    dynamic: bool = False,
    metadata: dict | None = None,
    channels: int = 3,
    name: str | Path | None = None,
) -> None:
    """Write one ONNX file with the weights, the input `images` and the output `scores`.

    The file takes one image of `size`, or with `dynamic` any number of images of any size. Its
    properties are the values of `metadata` as JSON. Errors call the file `name`, by default `path`.

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
        for module in model.modules():
            if getattr(module, "exports_one_size", False):
                name = type(module).__name__
                raise ValueError(f"--dynamic: {name} is exported only for one size; run without it")
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
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the exporter's own code
            exported: Any = torch.onnx.export(model, (images,), **options)
    except Exception as error:  # the exporter raises many types
        reason = one_line(error, 600)
        raise ValueError(f"{name or path}: the exporter failed {sizes}: {reason}") from error
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
        self.metadata = read_metadata(properties)

    def __call__(self, images: Tensor) -> Tensor:
        (scores,) = self._session.run(["scores"], {"images": images.numpy()})
        return torch.from_numpy(scores)


def relative_difference(ours: Tensor, theirs: Tensor) -> float:
    """Return max |ours - theirs| / max |theirs|."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()

"""`WholeImageSegmentor` to a file: torch.export's `.pt2` or ONNX, with its metadata inside."""

import json
from pathlib import Path

import torch
from mmseg.models.decode_heads.psp_head import PPM
from torch import Tensor, nn
from torch.export import Dim

from mmseg_ext.deployment.segmentor import WholeImageSegmentor, random_images
from mmseg_ext.errors import ExportError
from mmseg_ext.layers import LambdaLayer

SUFFIXES = {"torch": ".pt2", "onnx": ".onnx"}
METADATA = "metadata.json"  # the name under which a .pt2 keeps what ONNX has as properties
OPSET = 18  # what torch's exporter writes without a conversion


def refusal_of_dynamic_size(model: nn.Module, file_format: str) -> str | None:
    """Why `model` cannot take images of any size in this format; None where it can."""
    for module in model.modules():
        if isinstance(module, LambdaLayer) and module.resolution is not None:
            return (
                "its lambda layers learn position embeddings for maps of at most "
                f"{module.resolution} (resolution=...): a size of its own each; build "
                "it with receptive_field for any size"
            )
        if file_format == "onnx" and isinstance(module, PPM):
            return (
                "UPerNet's pyramid pooling divides the map into a fixed number of bins, and ONNX "
                "has no pooling whose windows depend on the size; use --format torch"
            )
    return None


def export_torch(
    model: WholeImageSegmentor,
    path: str | Path,
    size: tuple[int, int],
    dynamic: bool = False,
    metadata: dict | None = None,
) -> None:
    """Write `path`, which `torch.export.load(path).module()` runs.

    It takes one image of `size`; with `dynamic`, any number of any size.

    Raises:
        ExportError: where a dynamic size is refused or torch.export cannot keep it.
    """
    images, shapes = _example(model, size, dynamic, "torch")
    try:
        with torch.no_grad():
            program = torch.export.export(model, (images,), dynamic_shapes=shapes)
        torch.export.save(program, path, extra_files={METADATA: json.dumps(metadata or {})})
    except Exception as error:  # torch.export raises many kinds
        raise _export_error(error, dynamic) from error


def export_onnx(
    model: WholeImageSegmentor,
    path: str | Path,
    size: tuple[int, int],
    dynamic: bool = False,
    metadata: dict | None = None,
) -> None:
    """Write `path`, one file with its weights; input `images`, output `scores`.

    It takes one image of `size`; with `dynamic`, any number of any size.

    Raises:
        ExportError: where a dynamic size is refused or the exporter cannot write the model.
    """
    images, shapes = _example(model, size, dynamic, "onnx")
    try:
        with torch.no_grad():
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
    except Exception as error:  # and so does torch.onnx
        raise _export_error(error, dynamic) from error
    exported.model.metadata_props.update(
        {key: json.dumps(value) for key, value in (metadata or {}).items()}
    )
    exported.save(path, external_data=False)


def _example(
    model: WholeImageSegmentor, size: tuple[int, int], dynamic: bool, file_format: str
) -> tuple[Tensor, tuple | None]:
    """The images that the model is traced with, and which of their dimensions are free."""
    if not dynamic:
        return random_images(size), None
    refusal = refusal_of_dynamic_size(model, file_format)
    if refusal is not None:
        raise ExportError(refusal)
    # Two images: torch.export takes a dimension of one for a constant.
    return random_images(size, batch=2), ({0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC},)


def _export_error(error: Exception, dynamic: bool) -> ExportError:
    what = "for any size" if dynamic else "for one size"
    return ExportError(f"cannot be exported {what}: {' '.join(str(error).split())[:600]}")


class ExportedSegmentor:
    """An exported file as a function of images (B, 3, H, W): to compare it with the model.

    `metadata` is what the file holds beside the program.
    """

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

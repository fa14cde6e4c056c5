"""Models by name: the configs of this package, and its weights.

`get_model` loads the config, applies the caller's changes, builds the segmentor, fills it from the
file of weights, and adds the classes and the palette.
"""

import copy
import warnings
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from torch import nn

from mmseg_ext.checkpoint.files import (
    best_checkpoint,
    classes_of,
    read_checkpoint,
    terms_of,
    unwrap_state_dict,
)
from mmseg_ext.checkpoint.safe_loading import check_finite, fit_first_convolution
from mmseg_ext.durable.work_dir import checkpoint_folder
from mmseg_ext.engine.build import build_segmentor
from mmseg_ext.engine.config import (
    as_list,
    classes_and_palette,
    load_config,
    model_names,
    type_name,
)
from mmseg_ext.errors import CheckpointError, one_line
from mmseg_ext.inference.scale import tested_dataset

DEFAULT = "ea_lite0_fpn_nuclei_1600"  # of the commands and demo/app.py
# This project's weights. Those for non-commercial use are in a clone, but not in an installation.
PACKAGE = Path(__file__).parents[1]
PRETRAINED = {
    DEFAULT: PACKAGE / f"weights/{DEFAULT}.pth",
    "ea_r18_fpn_nuclei_4k": PACKAGE / "weights/ea_r18_fpn_nuclei_4k.pth",  # of 1.0.0
    "ea_lite0_fpn_camvid_1600": PACKAGE.parent / "weights/ea_lite0_fpn_camvid.pth",
}
WEIGHTS_PAGE = "docs/published_weights.md"


def list_models(pattern: str = "*", pretrained: bool = False) -> list[str]:
    """Return the names of the configs that match `pattern`, sorted: `list_models("ea_*")`.

    With `pretrained` only those whose weights are in this installation.
    """
    names = model_names()
    if pretrained:
        names = sorted(name for name, file in PRETRAINED.items() if file.is_file())
    return [name for name in names if fnmatch(name, pattern)]


def get_model(
    name: str | Path | Config,
    pretrained: bool = False,
    weights: str | Path | None = None,
    device: str | torch.device = "cpu",
    num_classes: int | None = None,
    in_channels: int | None = None,
    **overrides: object,
) -> nn.Module:
    """Return a segmentor in evaluation mode.

    Called with normalized images (B, 3, H, W), as of `model.data_preprocessor`, it returns the
    logits (B, classes, h, w) of the decode head, at the head's resolution, such as a quarter or an
    eighth of the image's; `DANetEAHead` returns a tuple of three. `Predictor` turns images of any
    kind into labels of their size.

    The model has mmsegmentation's attributes `cfg` and `dataset_meta`: classes and palette from the
    checkpoint, or else from the config's test dataset. `terms` has the `license` of the weights and
    what they were `trained_on`, if the file names them. Synchronized batch norms become plain ones.
    Without weights the values are random; `model.init_weights()` applies the config's `init_cfg`,
    which may download ImageNet weights.

    Args:
        name: a name of `list_models()`, the path of a config, or a config.
        pretrained: load this project's weights: see `list_models(pretrained=True)`.
        weights: a `.pth` or `.safetensors` file, read without running code from it. Auxiliary
            heads may be missing in the file or in the model.
        device: where the model is put.
        num_classes: the classes of all heads. Class weights of another length are removed.
        in_channels: bands of the images. The first convolution of weights for three channels is
            fitted by timm's rule, and mean and deviation are repeated, or averaged for one band.
        overrides: changes of the config's model, such as `decode_head=dict(channels=64)`. Tensors
            of the file whose shapes then differ are left out, with a warning.

    Raises:
        ValueError: for an unknown name, for `pretrained` without weights of this project, for
            counts below 1, and for weights that do not fit the model or are not finite.
        OSError: if a file is missing.
    """
    for key, count in (("num_classes", num_classes), ("in_channels", in_channels)):
        if count is not None and count < 1:
            raise ValueError(f"get_model: {key}={count}; pass 1 or more")
    config = copy.deepcopy(name) if isinstance(name, Config) else load_config(str(name))
    if pretrained:
        if weights is not None:
            raise ValueError("get_model: pretrained and weights exclude each other; pass one")
        weights = _weights_of(config)
    config.merge_from_dict({"model": overrides})
    if num_classes is not None:
        _set_classes(config.model, num_classes)
    if in_channels is not None:
        _set_channels(config.model, in_channels)
    with warnings.catch_warnings():  # about a loss, which inference does not compute
        warnings.filterwarnings("ignore", message="Default ``avg_non_ignore``")
        model = build_segmentor(config)
    model.terms, meta = {}, None
    count = getattr(model, "num_classes", None)
    if getattr(model, "out_channels", None) == 1:
        count = 2  # labels, whatever the number of classes
    is_changed = bool(overrides or num_classes)  # so other names than the classes' are expected
    if weights is not None:
        meta = _load_weights(model, weights, is_changed or in_channels is not None)
        if meta and not is_changed and count not in (None, len(meta["classes"])):
            text = f"{weights}: names {len(meta['classes'])} classes, the model has {count}"
            warnings.warn(f"{text}; the names of the config are used", stacklevel=2)
            meta = None
    meta = meta or with_background(model, classes_and_palette(tested_dataset(config)))
    if count not in (None, len(meta["classes"])):
        if not is_changed:
            file, names = config.filename or "config", len(meta["classes"])
            text = f"its dataset names {names} classes, its model has {count}"
            warnings.warn(f"{file}: {text}; they are called class_0, class_1, ...", stacklevel=2)
        meta = _completed([f"class_{i}" for i in range(count)])
    model.dataset_meta = meta
    model.cfg = config
    model.to(device).eval()  # returns None if a segmentor overrides `train` without a return
    return model


def _set_classes(model: ConfigDict, count: int) -> None:
    old = {head.get("num_classes") for head in as_list(model.get("decode_head"))}
    for key in ("decode_head", "auxiliary_head"):
        for head in as_list(model.get(key)):
            if head.get("num_classes") not in old:  # such as STDC's, which finds edges
                continue
            head.update(num_classes=count, out_channels=None)
            for loss in as_list(head.get("loss_decode")):
                if len(loss.get("class_weight") or ()) != count:
                    loss.class_weight = None


def _set_channels(model: Any, count: int) -> None:
    model.backbone.in_channels = count
    preprocessor = model.data_preprocessor
    for key in ("mean", "std"):
        values = list(preprocessor.get(key) or ())
        if values and count == 1:
            preprocessor[key] = [sum(values) / len(values)]
        elif values:
            preprocessor[key] = (values * count)[:count]
    if count != 3 and type_name(preprocessor) == "SegDataPreProcessor":
        preprocessor.type = "BandDataPreProcessor"


def _weights_of(config: Config) -> Path:
    """Return the file of `pretrained_weights`; without one, name the last best checkpoint."""
    path = Path(config.filename or "config")
    found = None
    if path.stem not in list_models(pretrained=True) and config.get("work_dir"):
        found = best_checkpoint(checkpoint_folder(config))
    if path.stem in model_names() and not found:
        return pretrained_weights(path.stem)
    known = repr(str(found)) if found else "FILE"
    raise ValueError(f"{path}: a config needs a checkpoint; pass weights={known}")


def pretrained_weights(name: str) -> Path:
    """Return the file of the weights for a config.

    Raises:
        ValueError: if there are no weights for `name`, or only in a clone.
    """
    available = list_models(pretrained=True)
    if name not in available:
        raise ValueError(
            f"{name}: this installation has no weights for it, only for {', '.join(available)}; "
            "pass weights=FILE, with a file from `weights` of a clone (for non-commercial use) or "
            f"the authors' weights, converted ({WEIGHTS_PAGE})"
        )
    return PRETRAINED[name]


def _load_weights(model: Any, path: str | Path, partial: bool) -> dict | None:
    """Fill the model from a file, and return the file's classes and palette, if it names any."""
    content = read_checkpoint(path)
    weights = unwrap_state_dict(content, str(path))
    check_finite(model, weights)
    model.terms = terms_of(content)
    own = model.state_dict()
    if partial:
        weights = dict(fit_first_convolution(model, weights))
        kept = []
        for key, value in weights.items():
            if key in own and value.shape != own[key].shape:
                weights[key] = own[key]
                kept.append(key)
        if kept:
            names = ", ".join(kept)
            text = f"{path}: shapes differ, so these keep their initial values: {names}"
            warnings.warn(text, stacklevel=3)
    # Auxiliary heads may be missing in the file or in the model.
    fitting = {key: value for key, value in own.items() if key.startswith("auxiliary_head")}
    for key, value in weights.items():
        if key in own or not key.startswith("auxiliary_head"):
            fitting[key] = value
    try:
        model.load_state_dict(fitting)
    except RuntimeError as error:  # lists what is missing, unexpected or of another shape
        reason = one_line(error, 600)
        raise CheckpointError(
            f"{path}: does not fit the config: {reason}; use the config it was trained with"
        ) from error
    meta = classes_of(content, path)
    if meta and "palette" not in meta:
        meta = _completed(meta["classes"])
    return meta and with_background(model, meta)


def with_background(model: Any, meta: dict) -> dict:
    """Return classes and palette, also for label 0 of a single channel if they have only label 1's.

    mmsegmentation's heads predict labels 0 and 1 with `num_classes=1`, too.
    """
    if getattr(model, "out_channels", None) != 1 or len(meta["classes"]) != 1:
        return meta
    return {
        "classes": ("background", *meta["classes"]),
        "palette": [[0, 0, 0], *meta["palette"]],
    }


def _completed(classes: list[str]) -> dict:
    """Return the classes with mmsegmentation's random palette."""
    return classes_and_palette({"type": "BaseSegDataset", "metainfo": {"classes": classes}})

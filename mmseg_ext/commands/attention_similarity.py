"""Measure how alike the attention maps of a backbone's layers and heads are; JSON and figures."""

import argparse
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import torch
from mmcv.transforms import Compose
from mmengine.config import Config
from mmengine.model import PretrainedInit
from mmengine.registry import init_default_scope
from mmseg.registry import DATASETS, MODELS
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from mmseg_ext.atomic_write import write_text
from mmseg_ext.checkpoint.load_report import check_finite
from mmseg_ext.checkpoint.safe_loading import SafeLoading
from mmseg_ext.checkpoint.safe_reading import read_state_dict
from mmseg_ext.commands._one_line import one_line
from mmseg_ext.cost.devices import usable_device
from mmseg_ext.engine.config_options import ConfigOptions
from mmseg_ext.engine.launch import load_settings
from mmseg_ext.inspection.similarity import attention_similarity
from mmseg_ext.inspection.similarity_report import as_report, draw, summary

_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp")
_RANDOM = "random initialisation"


def folder_images(folder: str | Path, count: int) -> list[Path]:
    """The first `count` images of a folder, by name.

    Raises:
        ValueError: where there is no folder or no image in it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    paths = sorted(p for p in folder.iterdir() if p.suffix.lower() in _SUFFIXES)
    if not paths:
        raise ValueError(f"{folder}: no images ({', '.join(_SUFFIXES)}) in it")
    return paths[:count]


def _part(config: Config, name: str) -> Any:
    if name not in config:
        raise ValueError(f"{config.filename}: the config has no {name}")
    return config[name]


def _samples(config: Config, folder: str | None, count: int) -> tuple[int, Iterator[dict]]:
    """How many, and packed samples: a folder's through the test pipeline, or the test data's.

    Raises:
        ValueError: for an image that cannot be read, and for what the config lacks.
    """
    if folder is None:
        dataset = DATASETS.build(_part(config, "test_dataloader").dataset)
        sources = [(f"image {i} of the test data", i) for i in range(min(count, len(dataset)))]
        load = dataset.__getitem__
    else:
        steps = [t for t in _part(config, "test_pipeline") if "LoadAnnotations" not in t["type"]]
        pipeline = Compose(steps)
        sources = [(path, path) for path in folder_images(folder, count)]

        def load(path: Path) -> dict:
            return pipeline({"img_path": str(path), "reduce_zero_label": False})

    def samples() -> Iterator[dict]:
        for name, source in sources:
            with _readable(name):
                sample = load(source)
            yield sample

    return len(sources), samples()


@contextlib.contextmanager
def _readable(image: str | Path) -> Iterator[None]:
    """What mmcv's image loading raises, as a ValueError that names the image."""
    try:
        yield
    except (AssertionError, cv2.error) as error:
        raise ValueError(f"{image}: cannot be read: {str(error).strip()}") from error


def config_images(
    config: Config, preprocessor: nn.Module, folder: str | None, count: int
) -> tuple[int, Iterator[Tensor]]:
    """How many, and normalised images (1, 3, H, W), as the model sees them in a test."""
    number, samples = _samples(config, folder, count)
    batches = ({"inputs": [s["inputs"]], "data_samples": [s["data_samples"]]} for s in samples)
    return number, (preprocessor(batch, False)["inputs"] for batch in batches)


def _load_backbone(model: nn.Module, checkpoint: str) -> None:
    """Weights of a segmentor, or of its backbone alone, into `model`.

    Raises:
        ValueError: listing missing keys of the backbone.
    """
    state = read_state_dict(checkpoint)
    prefix = "backbone."
    if any(key.startswith(prefix) for key in state):
        state = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    check_finite(model.backbone, state)
    missing = model.backbone.load_state_dict(state, strict=False).missing_keys
    if missing:
        raise ValueError(f"{checkpoint}: lacks {len(missing)} keys, the first is {missing[0]}")


def _initialise(backbone: nn.Module) -> list[str]:
    """Run the config's `init_cfg`; the files that it has loaded."""
    settings = backbone.init_cfg or []
    if settings:
        with SafeLoading():
            backbone.init_weights()
    settings = [settings] if isinstance(settings, Mapping) else settings
    return [s["checkpoint"] for s in settings if s["type"] in ("Pretrained", PretrainedInit)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Similarity of attention maps between layers and between heads: "
        "attention_similarity.png and attention_similarity.json."
    )
    parser.add_argument("config", help="a config whose backbone is DeepViT, RMT or EAMLP")
    parser.add_argument(
        "checkpoint",
        nargs="?",
        help="weights; without, those of the backbone's init_cfg, or random ones",
    )
    parser.add_argument("--images", help="folder of images (default: the config's test data)")
    parser.add_argument("--count", type=int, default=16, help="images at most (default 16)")
    parser.add_argument("--threshold", type=float, default=0.9, help="of similar layers (0.9)")
    parser.add_argument("--out", default="work_dirs/attention_similarity", help="output folder")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--cfg-options", nargs="+", action=ConfigOptions, help="key=value ...")
    return parser


@one_line
def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    config = load_settings(args.config, args.cfg_options)
    init_default_scope(config.get("default_scope", "mmseg"))
    torch.manual_seed(0)
    model = MODELS.build(_part(config, "model")).to(usable_device(args.device))
    if args.checkpoint:
        _load_backbone(model, args.checkpoint)
        loaded = [args.checkpoint]
    else:
        loaded = _initialise(model.backbone)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    count, images = config_images(config, model.data_preprocessor, args.images, args.count)
    errors = Console(stderr=True)
    bar = track(images, "images", count, console=errors, disable=not errors.is_terminal)
    groups = attention_similarity(model, bar, args.threshold)
    report = as_report(groups)
    content = {
        "config": args.config,
        "weights": ", ".join(loaded) or _RANDOM,
        "images": count,
        "groups": report,
    }
    path = out / "attention_similarity.json"
    write_text(json.dumps(content, indent=1) + "\n", path)
    names = ", ".join(Path(file).name for file in loaded) or _RANDOM
    draw(report, path.with_suffix(".png"), f"{Path(args.config).stem}, {names}")
    for entry in report:
        print(summary(entry))
    print(f"{path.with_suffix('.png')}\n{path}")
    return 0

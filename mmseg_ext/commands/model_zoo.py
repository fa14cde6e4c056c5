"""The model zoo's table: what each config costs, what its paper reports, what was trained here.

Parameters and multiply-adds are counted on the meta device, at the config's crop, without the
auxiliary head, in both conventions of `measure.MultiplyAdds`.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.model.utils import revert_sync_batchnorm
from mmseg.registry import MODELS
from torch import Tensor, nn

from mmseg_ext import register_all_modules
from mmseg_ext.cost.cost_table import MEBI, machine, markdown
from mmseg_ext.cost.devices import usable_device
from mmseg_ext.cost.measure import count_multiply_adds, paired_times, peak_memory

# mIoU in percent, single scale unless said, with its source. Without one: none was published.
_PWC = "arXiv 2105.02358, as Papers with Code listed it"
_RMT = "arXiv 2309.11523, table of ADE20K"
_MMSEG = "mmsegmentation's metafile, ss / ms+flip"
PUBLISHED = {
    "ea_r101_ade20k_160k": ("45.33", _PWC + "; not said whether ms+flip"),
    "ea_r101_cityscapes_80k": ("81.7", _PWC + "; ms+flip"),
    "ea_r50_cityscapes_40k": ("79.9 / 81.0", "Jittor/JSeg's README, ss / ms"),
    "danet_r101_ade20k_160k": ("44.17 / 45.02", _MMSEG),
    "danet_r101_cityscapes_80k": ("80.47 / 82.02", _MMSEG),
    "fcn_r101_ade20k_160k": ("39.91 / 41.40", _MMSEG),
    "fcn_r101_cityscapes_80k": ("75.52 / 76.61", _MMSEG),
    "fpn_rmt_tiny_ade20k_80k": ("46.4", _RMT),
    "fpn_rmt_small_ade20k_80k": ("49.4", _RMT),
    "fpn_rmt_base_ade20k_80k": ("50.4", _RMT),
    "fpn_rmt_large_ade20k_80k": ("51.4", _RMT),
    "upernet_rmt_small_ade20k_160k": ("49.8", _RMT),
    "upernet_rmt_base_ade20k_160k": ("52.0", _RMT),
    "upernet_rmt_large_ade20k_160k": ("52.8", _RMT),
}

# What was trained here, in percent on the validation set; every other config was not.
TRAINED = {
    "ea_r18_shapes": "75.0, ms+flip 77.8",
    "fcn_r18_shapes": "76.8, ms+flip 79.5",
    "danet_r18_shapes": "77.6, ms+flip 80.3",
    "ea_r18_camvid_4k": "57.1, ms+flip 59.4",
}


@dataclass
class Row:
    """One config. Time in milliseconds and memory in MiB are of a forward as `measure` makes it."""

    name: str
    crop: tuple[int, int]
    parameters: int
    module_multiply_adds: int
    all_multiply_adds: int
    milliseconds: float | None = None
    mebibytes: float | None = None

    def cells(self) -> list[str]:
        miou, source = PUBLISHED.get(self.name, ("none", ""))
        return [
            f"`{self.name}`",
            f"{self.crop[0]}x{self.crop[1]}",
            f"{self.parameters / 1e6:.2f}",
            f"{self.module_multiply_adds / 1e9:.2f}",
            f"{self.all_multiply_adds / 1e9:.2f}",
            "" if self.milliseconds is None else f"{self.milliseconds:,.0f}",
            "" if self.mebibytes is None else f"{self.mebibytes:,.0f}",
            miou,
            source,
            TRAINED.get(self.name, "not trained"),
        ]


HEADINGS = [
    "config",
    "crop",
    "parameters, M",
    "GMAC, modules",
    "GMAC, all",
    "ms",
    "MiB",
    "published mIoU",
    "source",
    "here",
]


class _Network(nn.Module):
    """Backbone, neck and decode head: images (B, 3, H, W) to scores on the head's own map."""

    def __init__(self, model: dict):
        super().__init__()
        model = {**model, "auxiliary_head": None, "pretrained": None, "train_cfg": None}
        self.segmentor = revert_sync_batchnorm(MODELS.build(model))

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.segmentor.decode_head(self.segmentor.extract_feat(images))


def count(path: Path) -> Row:
    """The config's row without measured times; allocates no weights."""
    config = Config.fromfile(path)
    with torch.device("meta"):
        network = _Network(config.model).eval()
        counted = count_multiply_adds(network, torch.empty(1, 3, *config.crop_size))
    parameters = sum(p.numel() for p in network.parameters())
    return Row(path.stem, tuple(config.crop_size), parameters, counted.modules, counted.all)


def measure(path: Path, row: Row, rounds: int, batch: int = 1, **placement) -> None:
    """Fill in the median time and the peak memory of a forward with random weights.

    Of `batch` crops; `placement` is what `Module.to` takes: device, dtype, memory_format.
    """
    config = Config.fromfile(path)
    network = _Network(config.model).to(**placement).eval()
    images = torch.randn(batch, 3, *config.crop_size).to(**placement)

    def run() -> None:
        with torch.no_grad():
            network(images)

    row.milliseconds = 1e3 * statistics.median(paired_times({"": run}, rounds, warmup=1)[""])
    row.mebibytes = peak_memory(run, images.device) / MEBI


def table(rows: Sequence[Row]) -> str:
    return markdown(HEADINGS, [row.cells() for row in rows])


def main(argv: Sequence[str] | None = None) -> int:
    """The command line of `tools/analysis_tools/model_zoo.py`."""
    parser = argparse.ArgumentParser(description="Table of what the configs cost.")
    parser.add_argument("configs", nargs="+", type=Path)
    parser.add_argument("--time", action="store_true", help="measure a forward of one crop, too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1, help="crops of the measured forward")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--channels-last", action="store_true")
    args = parser.parse_args(argv)
    register_all_modules()
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    placement = {"dtype": getattr(torch, args.dtype), "memory_format": layout}
    try:
        placement["device"] = usable_device(args.device)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    rows = []
    for path in args.configs:
        if not path.is_file():
            print(f"error: there is no config {str(path)!r}", file=sys.stderr)
            return 1
        rows.append(count(path))
        if args.time:
            measure(path, rows[-1], args.rounds, args.batch, **placement)
            print(" | ".join(rows[-1].cells()), file=sys.stderr)
    if args.time:
        forward = f"{args.dtype}, {layout}, {args.batch} a forward".replace("torch.", "")
        print(f"{machine(args.device)}; {forward}", end="\n\n")
    print(table(rows), end="")
    return 0

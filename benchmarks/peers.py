"""Train other networks on the nuclei with the data, crops, optimizer and iterations of ours.

    python -m venv --system-site-packages PEERS; PEERS/bin/pip install segmentation-models-pytorch
    PEERS/bin/python -m benchmarks.peers unet

`fcn` is mmsegmentation's FCN head on the same backbone and pyramid. `unet` is
segmentation_models.pytorch's `Unet("resnet18", encoder_weights=None)`. The script resumes an
interrupted run, and prints the scores of `benchmarks.nuclei_scores` on val.
"""

import argparse
from pathlib import Path

import torch
from mmengine.config import Config

from benchmarks.nuclei_scores import print_scores
from mmseg_ext import register_all_modules
from mmseg_ext.engine.build import build_train_runner

ROOT = Path(__file__).resolve().parents[1]
OURS = next((ROOT / "configs").glob("ea_r18_fpn_nuclei_*.py"))


def config_of(peer: str) -> Config:
    """Return our config with the network of a peer."""
    config = Config.fromfile(OURS)
    head = config.model.decode_head
    if peer == "fcn":
        del head["ea_channels"], head["memory_size"]
        head.update(type="FCNHead", num_convs=2, concat_input=False)
    else:
        config.model.backbone = dict(type="SmpUnet", classes=head.num_classes)
        config.model.pop("neck")
        kept = {key: head[key] for key in ("num_classes", "align_corners", "loss_decode")}
        config.model.decode_head = dict(type="UnetHead", **kept)
        config.custom_imports.imports.append("benchmarks.unet")
    return config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peer", choices=("fcn", "unet"))
    args = parser.parse_args()
    register_all_modules()
    torch.set_num_threads(1)
    folder = ROOT / "work_dirs" / f"nuclei_{args.peer}"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "peer.py"
    config_of(args.peer).dump(config)
    runner = build_train_runner(str(config), {}, str(folder), resume=True)
    runner.train()
    print_scores({str(config): str(folder / f"iter_{runner.max_iters}.pth")}, "val")


if __name__ == "__main__":
    main()

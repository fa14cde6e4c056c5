"""Draw the README's picture: `street.jpg` beside its segmentation, with a legend.

python demo/draw_segmented_street.py docs/images/segmented_street.png [CONFIG CHECKPOINT]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

from mmseg_ext.commands.image_demo import main
from mmseg_ext.datasets.camvid import CamVidDataset

STREET = Path(__file__).with_name("street.jpg")


def draw(labels: np.ndarray, overlay: np.ndarray, path: str) -> None:
    figure = Figure(figsize=(8, 4.2), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.03, wspace=0)
    pictures = {"a drawn street": np.asarray(Image.open(STREET)), "segmented": overlay}
    for axis, (title, picture) in zip(figure.subplots(1, 2), pictures.items(), strict=True):
        axis.imshow(picture)
        axis.set_title(title, fontsize=14)
        axis.axis("off")
    names, colours = CamVidDataset.METAINFO["classes"], CamVidDataset.METAINFO["palette"]
    seen = [i for i in range(len(names)) if (labels == i).mean() >= 0.001]
    patches = [Patch(fc=np.array(colours[i]) / 255, ec="black", label=names[i]) for i in seen]
    options = dict(ncols=5, frameon=False, fontsize=13, columnspacing=1.4, handlelength=1.2)
    figure.legend(handles=patches, loc="outside lower center", **options)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    target, *model = sys.argv[1:]
    with tempfile.TemporaryDirectory() as out:
        if main([str(STREET), *model, "--out", out, "--opacity", "0.6"]):
            raise SystemExit(1)
        labels = np.asarray(Image.open(Path(out, "labels/street.png")))
        overlay = np.asarray(Image.open(Path(out, "overlays/street.png")))[: len(labels)]
    draw(labels, overlay, target)

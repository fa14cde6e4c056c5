"""Draw a validation frame of CamVid, its labels, and the prediction of the weights in `weights/`.

python demo/draw_camvid_frame.py FRAME weights/camvid_frame.jpg [--data-root data/camvid]

With FRAME 'median' the picture shows the frame whose pixel accuracy is the median of all frames.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

import mmseg_ext

VOID = 11  # the label of pixels without a class
CREDIT = "Frame: CamVid, Brostow et al. 2009, CC BY-NC 4.0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("frame", help="name without suffix, or 'median'")
    parser.add_argument("out", help="the picture to write")
    parser.add_argument("--data-root", type=Path, default=Path("data/camvid"))
    args = parser.parse_args()
    model = mmseg_ext.get_model("ea_lite0_fpn_camvid_1600", pretrained=True)
    predictor = mmseg_ext.Predictor(model)

    def read(name: str) -> tuple[str, np.ndarray]:
        labels = Image.open(args.data_root / "valannot" / f"{name}.png")
        return str(next(args.data_root.glob(f"val/{name}.*"))), np.asarray(labels)  # (H, W)

    def accuracy(name: str) -> float:
        path, labels = read(name)
        return (predictor(path).labels == labels)[labels < VOID].mean()

    frame = args.frame
    if frame == "median":
        names = sorted(p.stem for p in args.data_root.glob("valannot/*.png"))
        frame = sorted(names, key=accuracy)[len(names) // 2]
        print(frame)
    path, labels = read(frame)
    result = predictor(path)
    image, predicted = result.image, result.labels
    palette = np.zeros((VOID + 1, 3), np.uint8)
    palette[:VOID] = result.palette

    figure = Figure(figsize=(11, 3.6), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.03, wspace=0)
    pictures = {"frame": image, "labels": palette[labels], "prediction": palette[predicted]}
    for axis, (title, picture) in zip(figure.subplots(1, 3), pictures.items(), strict=True):
        axis.imshow(picture)
        axis.set_title(title, fontsize=14)
        axis.axis("off")
    names = result.classes
    seen = [i for i in range(VOID) if (np.stack([labels, predicted]) == i).any()]
    patches = [Patch(fc=palette[i] / 255, ec="black", label=names[i]) for i in seen]
    options = dict(ncols=11, frameon=False, fontsize=10, columnspacing=1.1, handlelength=1.2)
    figure.legend(
        handles=patches, loc="outside lower center", title=CREDIT, title_fontsize=8, **options
    )
    figure.savefig(args.out, dpi=110, pil_kwargs={"quality": 88})


if __name__ == "__main__":
    main()

"""Draw what the project's own model finds in the nuclei.

    python -m benchmarks.nuclei_pictures

docs/images/nuclei.png is demo/nuclei.png next to its nuclei. mmseg_ext/weights/examples.jpg shows
an image of each kind of the test split, its labels and its prediction: the image whose F1 is the
median of its kind.
"""

from collections import defaultdict
from pathlib import Path

import cv2
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import mmseg_ext
from benchmarks.nuclei_scores import kind_of, match
from mmseg_ext.atomic_write import save_figure
from mmseg_ext.datasets.nuclei import NucleiDataset, number_nuclei
from mmseg_ext.inference.models import DEFAULT

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 500  # pixels of an image in the README


def draw_pair(predictor: mmseg_ext.Predictor, image: Path, out: Path) -> int:
    """Draw an image next to its overlay with the legend, and return the count of nuclei."""
    result = predictor(image)
    overlay = result.overlay()
    picture = Image.new("RGB", (2 * overlay.width + 8, overlay.height), "white")
    picture.paste(Image.fromarray(result.image), (0, 0))
    picture.paste(overlay, (overlay.width + 8, 0))
    scale = WIDTH / overlay.width
    size = (round(picture.width * scale), round(picture.height * scale))
    picture.resize(size, Image.Resampling.BICUBIC).save(out, optimize=True)
    return len(result.objects("nucleus"))


def median_of_kinds(predictor: mmseg_ext.Predictor) -> dict[str, str]:
    """Return the path of an image of median F1 for each kind in the test split."""
    scored = defaultdict(list)
    dataset = NucleiDataset(str(ROOT / "data/nuclei"), "test")
    for i in range(len(dataset)):
        path = dataset.get_data_info(i)["img_path"]
        labels = predictor(path).labels
        matched, objects, nuclei = match(labels, number_nuclei(Path(path).parents[1]))
        f1 = 2 * matched / max(objects + nuclei, 1)
        scored[kind_of(cv2.imread(path))].append((f1, path))
    return {kind: sorted(found)[len(found) // 2][1] for kind, found in scored.items()}


def draw_examples(predictor: mmseg_ext.Predictor, paths: dict[str, str], out: Path) -> None:
    """Draw a row for each kind: the image, its labels, and the prediction."""
    figure = Figure(figsize=(10, 3.3 * len(paths)), layout="constrained", facecolor="white")
    rows = figure.subplots(len(paths), 3, squeeze=False)
    for axes, (kind, path) in zip(rows, sorted(paths.items()), strict=True):
        result, folder = predictor(path), Path(path).parents[1]
        name = f"{folder.name}.png"
        stored = next((folder.parents[1]).glob(f"label_maps*/{name}"))
        labels = np.asarray(Image.open(stored))
        outlined = int(number_nuclei(folder).max())
        counted = len(result.objects("nucleus"))
        shown = {
            kind: result.image,
            f"{outlined} nuclei": result.palette[labels],
            f"{counted} found": result.palette[result.labels],
        }
        for axis, (title, picture) in zip(axes, shown.items(), strict=True):
            axis.imshow(picture)
            axis.set_title(title)
            axis.axis("off")
    save_figure(figure, out, dpi=90)


def main() -> None:
    predictor = mmseg_ext.Predictor(mmseg_ext.get_model(DEFAULT, pretrained=True))
    count = draw_pair(predictor, ROOT / "demo/nuclei.png", ROOT / "docs/images/nuclei.png")
    print(f"demo/nuclei.png: {count} nuclei")
    paths = median_of_kinds(predictor)
    draw_examples(predictor, paths, ROOT / "mmseg_ext/weights/examples.jpg")


if __name__ == "__main__":
    main()

"""The README's pictures: samples of the embedded dataset, and the predictions of a demo run."""

import shutil
from pathlib import Path

from PIL import Image

from mmseg_ext.datasets.shapes import METAINFO, render
from mmseg_ext.reports.panels import draw_panels

SHOWN = 8


def draw_samples(path: Path, seed: int = 0) -> None:
    """The first training scenes of `seed` with their labels, as PNG."""
    images, labels = zip(*(render(seed, index) for index in range(SHOWN)), strict=True)
    rows = {"image": list(images), "label": list(labels)}
    draw_panels(rows, METAINFO["classes"], METAINFO["palette"], path)


def draw_readme_pictures(demo_dir: Path, destination: Path) -> list[Path]:
    """Write `shapes_samples.png`, `shapes_predictions.png` and `shapes_curves.png`.

    The latter two are those of the demo run in `demo_dir`, reduced in size.

    Raises:
        ValueError: if `demo_dir` holds no finished demo run.
    """
    sources = [demo_dir / name for name in ("predictions.png", "curves.png")]
    missing = [str(path) for path in sources if not path.is_file()]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing: run tools/demo.py first")
    destination.mkdir(parents=True, exist_ok=True)
    written = [destination / "shapes_samples.png"]
    draw_samples(written[0])
    for source in sources:
        written.append(destination / f"shapes_{source.name}")
        shutil.copyfile(source, written[-1])
    for path in written:
        reduce_colours(path)
    return written


def reduce_colours(path: Path) -> None:
    """Rewrite a PNG with a dithered palette of 256 colours: noisy images shrink to a third."""
    with Image.open(path) as picture:
        colours = picture.convert("RGB")
    palette = colours.quantize(256, method=Image.Quantize.MEDIANCUT)
    colours.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG).save(path, optimize=True)

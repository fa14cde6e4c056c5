"""The legend below a segmented picture, and a banner across it."""

from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

_FONT = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")


def _font(size: float) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(_FONT), round(size))


def with_legend(
    picture: np.ndarray, labels: np.ndarray, classes: tuple[str, ...], palette: np.ndarray
) -> np.ndarray:
    """Return `picture` (H, W, 3) above a strip that lists the classes of `labels` (H, W).

    The largest class comes first. Each has its color of `palette` (classes, 3) and its share of the
    pixels. The text grows with the picture. If a line is wider than the picture, so is the strip.
    """
    counts = np.bincount(labels.ravel(), minlength=len(classes))[: len(classes)]
    order = [i for i in np.argsort(-counts, kind="stable") if counts[i]]
    shares = [counts[i] / labels.size for i in order]
    texts = [f"{share:.1%}" if share >= 0.0005 else "< 0.1%" for share in shares]
    entries = [f"{classes[i]} {text}" for i, text in zip(order, texts, strict=True)]
    height, width = picture.shape[:2]
    font = _font(max(12, (height * width) ** 0.5 / 40))
    row, box = round(1.8 * font.size), round(font.size)
    column = round(max(map(font.getlength, entries)) + 2.5 * box)
    columns = max(1, (width - box // 2) // column)
    rows = -(-len(entries) // columns)
    strip = (max(width, column + box // 2), height + rows * row + box // 2)
    page = Image.new("RGB", strip, "white")
    page.paste(Image.fromarray(picture))
    draw = ImageDraw.Draw(page)
    for n, (i, entry) in enumerate(zip(order, entries, strict=True)):
        x = box // 2 + n % columns * column
        y = height + box // 4 + n // columns * row + row // 2
        square = (x, y - box // 2, x + box, y - box // 2 + box)
        draw.rectangle(square, tuple(map(int, palette[i])), "black")
        draw.text((x + 1.4 * box, y), entry, "black", font, anchor="lm")
    return np.asarray(page)


def with_banner(picture: np.ndarray, text: str) -> np.ndarray:
    """Return `picture` with `text` in white on red across its top, as large as the width allows."""
    height, width = picture.shape[:2]
    size = max(8, 0.9 * width / _font(100).getlength(text) * 100)
    font = _font(min(size, max(12, (height * width) ** 0.5 / 20)))
    page = Image.fromarray(picture)
    draw = ImageDraw.Draw(page)
    draw.rectangle((0, 0, width, 1.6 * font.size), (190, 0, 0))
    draw.text((width / 2, 0.8 * font.size), text, "white", font, anchor="mm")
    return np.asarray(page)

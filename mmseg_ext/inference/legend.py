"""The legend below a segmented picture."""

from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

_FONT = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")


def with_legend(
    picture: Image.Image, labels: np.ndarray, classes: tuple[str, ...], palette: np.ndarray
) -> Image.Image:
    """Return `picture` above a strip that lists the classes of `labels` (H, W).

    The largest class comes first. Each has its color of `palette` (classes, 3) and its share of the
    pixels. The text grows with the picture. If a line is wider than the picture, so is the strip.
    """
    counts = np.bincount(labels.ravel(), minlength=len(classes))
    order = [i for i in np.argsort(-counts, kind="stable") if counts[i]]
    shares = counts[order] / labels.size
    texts = [f"{share:.1%}" if share >= 0.0005 else "< 0.1%" for share in shares]
    entries = [f"{classes[i]} {text}" for i, text in zip(order, texts, strict=True)]
    width, height = picture.size
    box = max(12, round((height * width) ** 0.5 / 40))  # height of the text, side of a square
    font = ImageFont.truetype(str(_FONT), box)
    column = round(max(map(font.getlength, entries))) + 3 * box
    columns = max(1, width // column)
    rows = -(-len(entries) // columns)
    size = (max(width, column), height + rows * 2 * box)
    page = Image.new("RGB", size, "white")
    page.paste(picture)
    draw = ImageDraw.Draw(page)
    for n, (i, entry) in enumerate(zip(order, entries, strict=True)):
        x, y = box // 2 + n % columns * column, height + box // 2 + n // columns * 2 * box
        draw.rectangle((x, y, x + box, y + box), tuple(palette[i].tolist()), "black")
        draw.text((x + 1.5 * box, y + box / 2), entry, "black", font, anchor="lm")
    return page

"""What a check of a dataset has found: as tables, as JSON and as a picture of label maps."""

import json
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mmseg_ext.atomic_write import save_figure
from mmseg_ext.datasets.check.pairs import Pair, Part, Problem, Split, Summary
from mmseg_ext.datasets.files import as_stored, decode, read_bytes
from mmseg_ext.datasets.labels import decode_label

IGNORED_COLOUR = (255, 255, 255)
_SHOWN_SIZES = 5
_LEGEND_COLUMNS = 6


def print_summaries(summaries: Sequence[Summary], console: Console) -> None:
    """One table of sizes, and one of classes for each list of classes that occurs."""
    sizes = Table("split", "pairs", "ignored", "image sizes", title="Images")
    for summary in summaries:
        sizes.add_row(
            summary.split, f"{summary.pairs:,}", _share(summary.ignored, summary), _sizes(summary)
        )
    console.print(sizes)
    for classes in dict.fromkeys(s.classes for s in summaries if s.classes):
        group = [s for s in summaries if s.classes == classes]
        table = Table("", "class", title="Classes: pixels, and images that show the class")
        for summary in group:
            table.add_column(summary.split, justify="right")
            table.add_column("", justify="right")
            table.add_column("images", justify="right")
        for i, name in enumerate(classes):
            cells: list[str] = []
            for s in group:
                cells += [f"{s.pixels[i]:,}", _share(s.pixels[i], s), f"{s.images[i]:,}"]
            table.add_row(str(i), escape(name), *cells)  # a name may hold [brackets]
        console.print(table)


def absent_classes(summary: Summary) -> list[str]:
    """Names of the classes that have no pixel in a split whose label maps were read."""
    if not summary.pixels.any():
        return []
    return [name for name, n in zip(summary.classes, summary.pixels, strict=True) if n == 0]


def _share(pixels: int, summary: Summary) -> str:
    total = summary.ignored + int(summary.pixels.sum())
    return f"{pixels / total:.2%}" if total else "-"


def _sizes(summary: Summary) -> str:
    common = summary.sizes.most_common(_SHOWN_SIZES)
    text = ", ".join(f"{width}x{height} ({count})" for (width, height), count in common)
    others = len(summary.sizes) - len(common)
    if others > 0:
        widths, heights = zip(*summary.sizes, strict=True)
        text += (
            f", {others} others; width {min(widths)} to {max(widths)}, "
            f"height {min(heights)} to {max(heights)}"
        )
    return text or "-"


def to_json(
    config: str, splits: Sequence[Split], problems: Sequence[Problem], summaries: Sequence[Summary]
) -> str:
    """The whole result. Pixels and image counts are in the order of the split's classes."""
    result = {
        "config": config,
        "clean": not problems,
        "splits": {
            summary.split: {
                "also": split.aliases,
                "pairs": summary.pairs,
                "classes": list(summary.classes),
                "pixels": summary.pixels.tolist(),
                "images": summary.images.tolist(),
                "ignored_pixels": summary.ignored,
                "exif_orientations": summary.tagged,
                "sizes": {f"{w}x{h}": n for (w, h), n in summary.sizes.most_common()},
            }
            for split, summary in zip(splits, summaries, strict=True)
        },
        "problems": [
            {"kind": p.kind, "split": p.split, "file": p.file, "message": p.message}
            | ({"values": p.values} if p.values else {})
            for p in problems
        ],
    }
    return json.dumps(result, indent=1) + "\n"


def draw_overlays(
    splits: Sequence[Split], problems: Sequence[Problem], path: Path, columns: int = 4
) -> bool:
    """Write a picture of `columns` images per split, evenly spaced, above their label maps.

    Files with a problem are left out, and pixels that are ignored are white. False, and no
    picture, if no label map is left.
    """
    bad = {problem.file for problem in problems}
    rows = [(split, _choose(split, bad, columns)) for split in splits]
    rows = [(split, chosen) for split, chosen in rows if chosen]
    if not rows:
        return False
    figure = Figure(figsize=(3 * columns, 4.6 * len(rows) + 1.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2 * len(rows), columns, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    seen: dict[tuple[int, str], tuple[float, ...]] = {}
    for row, (split, chosen) in enumerate(rows):
        for column, (part, pair) in enumerate(chosen):
            image, label = _read(part, pair)
            above, below = axes[2 * row, column], axes[2 * row + 1, column]
            above.imshow(image)
            title = f"{split.name}: {part.name_of(pair.image)}"
            above.set_title(title, fontsize=7, parse_math=False)
            below.imshow(_blend(image, label, part.palette))
            for i in np.unique(label[label < len(part.classes)]):
                seen[i, part.classes[i]] = tuple(np.array(part.palette[i]) / 255)
    handles = [
        Patch(facecolor=colour, edgecolor="grey", label=name)
        for (_, name), colour in sorted(seen.items())
    ]
    handles.append(Patch(facecolor="white", edgecolor="grey", label="ignored"))
    legend = figure.legend(
        handles=handles, loc="outside lower center", ncols=_LEGEND_COLUMNS, fontsize=8
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a name may hold dollars
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(figure, path, 100)
    return True


def _choose(split: Split, bad: set[str], count: int) -> list[tuple[Part, Pair]]:
    good = [
        (part, pair)
        for part in split.parts
        for pair in part.pairs
        if pair.mask is not None and not {pair.image, pair.mask} & bad
    ]
    positions = np.linspace(0, len(good) - 1, min(count, len(good))).astype(int)
    return [good[i] for i in positions]


def _read(part: Part, pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    """Image (H, W, 3) RGB and label map (H, W) of classes."""
    reading = part.reading
    data = read_bytes(pair.image, reading.backend_args)
    image = decode(data, pair.image, as_stored("color"), reading.image_backend)
    data = read_bytes(pair.mask, reading.backend_args)
    label = pair.rule.apply(decode_label(data, pair.mask, reading.mask_backend), pair.mask)
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB), label


def _blend(image: np.ndarray, label: np.ndarray, palette: Sequence) -> np.ndarray:
    colours = np.full((256, 3), IGNORED_COLOUR, np.uint8)
    colours[: len(palette)] = palette
    grey = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return cv2.addWeighted(grey, 0.4, colours[label], 0.6, 0)  # hues are the classes' alone

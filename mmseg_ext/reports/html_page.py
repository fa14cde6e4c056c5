"""The report of one or several runs as one HTML page that needs nothing else.

No script, no font, no request: pictures are data URIs, curves are SVG, and the page's own policy
forbids the rest. Colours follow the reader's light or dark setting.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image

from mmseg_ext.atomic_write import write_text
from mmseg_ext.reports.curves import Curve
from mmseg_ext.reports.panels import colourise
from mmseg_ext.reports.run_data import Example, Run, read_run

_NUMBERED_CLASSES = 24  # a matrix of more is a picture without numbers
_PAIRS = 10

_STYLE = """
:root { color-scheme: light dark; --page: #fbfbfd; --card: #fff; --text: #1c2230; --soft: #5b6270;
  --line: #e1e4eb; --accent: #2f6fde; --good: #1d8a5f; --bad: #cf3f2b;
  --s0: #2f6fde; --s1: #d9541e; --s2: #1d8a5f; --s3: #8b5cd6; --s4: #b8860b; --s5: #c2317f; }
@media (prefers-color-scheme: dark) { :root { --page: #12151c; --card: #1a1f29; --text: #e8ebf2;
  --soft: #9aa4b5; --line: #303846; --accent: #6ea1ff; --good: #55c99a; --bad: #ff8573;
  --s0: #6ea1ff; --s1: #ff935c; --s2: #55c99a; --s3: #b596f5; --s4: #e0b94a; --s5: #f277b4; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 24px 16px 64px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 40px 0 12px; }
h3 { font-size: 15px; margin: 20px 0 8px; overflow-wrap: anywhere; }
p { margin: 6px 0; } .soft { color: var(--soft); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 250px), 1fr));
  gap: 12px; margin-top: 16px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 14px 16px; min-width: 0; }
.card h3 { margin: 0 0 2px; } .big { font-size: 30px; font-weight: 650; line-height: 1.2; }
.wide { overflow-x: auto; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 12px; text-align: right; white-space: nowrap; }
th { font-weight: 600; color: var(--soft); }
thead th { border-bottom: 1px solid var(--line); }
tbody tr + tr > * { border-top: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
tbody th { color: var(--text); font-weight: 500; }
.pairs th:nth-child(2), .facts th { text-align: left; }
td.text { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 9em; }
.up { color: var(--good); } .down { color: var(--bad); }
.key { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 7px;
  border: 1px solid var(--line); vertical-align: -1px; }
.bar { display: inline-block; width: 64px; height: 7px; border-radius: 4px; margin-left: 8px;
  background: var(--line); overflow: hidden; text-align: left; vertical-align: 1px; }
.bar i { display: block; height: 100%; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr));
  gap: 16px; align-items: start; }
.two > * { min-width: 0; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 12px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 6px 0 10px; }
.matrix td, .matrix th { padding: 5px 8px; text-align: center; font-size: 13px; border: 0; }
.matrix tbody th { text-align: left; } .matrix img { width: 100%; image-rendering: pixelated; }
.shots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr));
  gap: 16px; }
.shot { display: grid; grid-template-columns: repeat(4, 1fr); gap: 6px; margin: 8px 0 0; }
.shot figure { margin: 0; min-width: 0; } .shot figcaption { font-size: 12px; color: var(--soft); }
.shot img { width: 100%; display: block; border-radius: 5px; }
@media (max-width: 560px) { .shot { grid-template-columns: repeat(2, 1fr); }
  svg text { font-size: 15px; } .bar { display: none; } th, td { padding: 6px 9px; } }
pre { overflow-x: auto; font-size: 12.5px; margin: 0; padding: 12px 16px; }
details { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  margin: 8px 0; } summary { padding: 10px 16px; cursor: pointer; overflow-wrap: anywhere; }
"""


def write_report(work_dirs: Sequence[Path], path: Path, **options) -> list[Run]:
    """Write the page for the runs in `work_dirs` and return them; `options` go to `read_run`.

    Raises:
        ValueError: as `read_run` does.
    """
    runs = [read_run(Path(work_dir), **options) for work_dir in work_dirs]
    names = [run.name for run in runs]
    runs = [
        run if names.count(run.name) == 1 else replace(run, name=f"{run.name} ({i + 1})")
        for i, run in enumerate(runs)
    ]
    write_text(page(runs), path)
    return runs


def page(runs: Sequence[Run]) -> str:
    """The whole page for runs, which are named uniquely.

    Raises:
        ValueError: without a run.
    """
    if not runs:
        raise ValueError("runs must hold at least one run")
    names = ", ".join(run.name for run in runs)
    sections = [
        _summary(runs),
        _section("Learning curves", _curves(runs)),
        _section("IoU of each class", _classes(runs)),
        _section("Confusion", "".join(_confusion(run) for run in runs)),
        _section("Images", "".join(_shots(run) for run in runs)),
        _section("Cost of one forward", _costs(runs)),
        _section("Configuration and environment", _configuration(runs)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "img-src data:; style-src 'unsafe-inline'\">"
        f'<link rel="icon" href="data:,"><title>Report: {escape(names)}</title>'
        f"<style>{_STYLE}</style></head>\n<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """A table of ready HTML cells; the first of each row is its heading."""
    cells = "".join(f'<th scope="col">{h}</th>' for h in head)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(c if c.startswith("<td") else f"<td>{c}</td>" for c in row[1:])
        + "</tr>"
        for row in rows
    )
    table = f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide {kind}" tabindex="0">{table}</div>'


def _percent(value: float, digits: int = 1) -> str:
    return "–" if np.isnan(value) else f"{100 * value:.{digits}f}"


def _difference(value: float) -> str:
    """A difference of IoUs in percentage points, coloured by its sign."""
    if np.isnan(value):
        return "–"
    kind = "up" if value > 0.0005 else "down" if value < -0.0005 else "soft"
    return f'<span class="{kind}">{100 * value:+.1f}</span>'


def _key(colour: str) -> str:
    return f'<span class="key" style="background:{colour}"></span>'


def _series(index: int) -> str:
    return f"var(--s{index % 6})"


def _class_key(colour: Sequence[int]) -> str:
    return _key(f"rgb({','.join(map(str, colour))})")


# --- sections -----------------------------------------------------------------------------------


def _summary(runs: Sequence[Run]) -> str:
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    cards = []
    for i, run in enumerate(runs):
        than = ""
        if i:
            difference = _difference(run.miou - runs[0].miou)
            than = f"<p>{difference} points against {escape(runs[0].name)}</p>"
        last = run.curves.get("mIoU")
        logged = f"; {last.values[-1]:.2f} % at its last validation" if last else ""
        cards.append(
            f'<div class="card"><h3>{_key(_series(i))}{escape(run.name)}</h3>'
            f'<div class="big" data-miou="{run.miou:.6f}">{_percent(run.miou, 2)} %</div>{than}'
            f'<p class="soft">mIoU on {run.images} images{logged}. '
            f"Pixel accuracy {_percent(run.pixel_accuracy)} %.</p>"
            f'<p class="soft">{run.cost.parameters / 1e6:.2f} M parameters, '
            f"{escape(run.checkpoint.name)}</p></div>"
        )
    return f'<h1>{escape(title)}</h1><div class="cards">{"".join(cards)}</div>'


def _curves(runs: Sequence[Run]) -> str:
    wanted = (("loss", "Training loss"), ("mIoU", "Validation mIoU, %"))
    charts = []
    for name, title in wanted:
        lines = [(i, _finite(r.curves[name])) for i, r in enumerate(runs) if name in r.curves]
        lines = [(i, curve) for i, curve in lines if curve.steps]
        if lines:
            charts.append(f'<div class="card"><h3>{title}</h3>{_chart(lines)}</div>')
    if not charts:
        return '<p class="soft">The work directories hold no scalars.</p>'
    return _legend(runs) + f'<div class="two">{"".join(charts)}</div>'


def _finite(curve: Curve) -> Curve:
    """Without the points that no chart has a place for, as a loss that ran away."""
    points = [point for point in zip(*curve, strict=True) if np.isfinite(point[1])]
    return Curve([step for step, _ in points], [value for _, value in points])


def _legend(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return ""
    keys = (f"<span>{_key(_series(i))}{escape(r.name)}</span>" for i, r in enumerate(runs))
    return f'<div class="legend">{"".join(keys)}</div>'


def _ticks(high: float) -> list[float]:
    """Round numbers from 0 to at least `high`, four to six of them."""
    raw = max(high, 1e-9) / 4
    power = 10.0 ** np.floor(np.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    return [step * i for i in range(int(np.ceil(high / step - 1e-9)) + 1)]


def _apart(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions of labels at least `gap` apart, in the same order, between `low` and `high`."""
    order = sorted(range(len(positions)), key=positions.__getitem__)
    placed = [0.0] * len(positions)
    for before, i in zip([None, *order], order, strict=False):
        free = low if before is None else placed[before] + gap
        placed[i] = max(positions[i], free)
    for after, i in zip([None, *order[::-1]], order[::-1], strict=False):
        free = high if after is None else placed[after] - gap
        placed[i] = min(placed[i], free)
    return placed


def _chart(lines: Sequence[tuple[int, Curve]]) -> str:
    """An SVG of curves against the iteration, from zero."""
    width, height, left, bottom, top, right = 480, 250, 44, 30, 14, 68
    xs, ys = (
        _ticks(max(max(getattr(curve, part)) for _, curve in lines)) for part in ("steps", "values")
    )
    limit = max(max(curve.steps) for _, curve in lines)

    def at(step: float, value: float) -> tuple[float, float]:
        x = left + (width - left - right) * step / limit
        return x, height - bottom - (height - bottom - top) * value / ys[-1]

    parts = []
    for value in ys:
        _, y = at(0, value)
        parts.append(
            f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="var(--line)"/><text x="{left - 6}" y="{y + 4:.1f}" '
            f'text-anchor="end">{value:g}</text>'
        )
    for step in (s for s in xs if s <= limit):
        x, _ = at(step, 0)
        parts.append(f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle">{step:g}</text>')
    ends = [at(curve.steps[-1], curve.values[-1]) for _, curve in lines]
    heights = _apart([y for _, y in ends], 14, top, height - bottom)
    for (index, curve), (x, _), y in zip(lines, ends, heights, strict=True):
        parts.append(
            f'<text x="{x + 7:.1f}" y="{y + 4:.1f}" '
            f'style="fill:{_series(index)};font-weight:600">{curve.values[-1]:.4g}</text>'
        )
    for index, curve in lines:
        points = [at(s, v) for s, v in zip(curve.steps, curve.values, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{_series(index)}" '
            'stroke-width="1.8" stroke-linejoin="round"/>'
        )
        if len(points) <= 20:
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_series(index)}"/>'
                for x, y in points
            ]
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="curves against the iteration">{"".join(parts)}</svg>'
        '<p class="soft">against the iteration</p>'
    )


def _same_classes(runs: Sequence[Run]) -> bool:
    return all(tuple(run.classes) == tuple(runs[0].classes) for run in runs)


def _classes(runs: Sequence[Run]) -> str:
    if not _same_classes(runs):
        parts = (f"<h3>{escape(run.name)}</h3>{_classes([run])}" for run in runs)
        return '<p class="soft">The runs have different classes.</p>' + "".join(parts)
    first = runs[0]
    head = ["class", "pixels, %", *(escape(run.name) for run in runs)]
    head += [f"{escape(run.name)} − {escape(first.name)}" for run in runs[1:]]
    ious = [run.iou for run in runs]
    area = first.confusion.sum(1) / max(first.confusion.sum(), 1)
    rows = []
    for c, name in enumerate(first.classes):
        cells = [_class_key(first.palette[c]) + escape(name), f"{100 * area[c]:.1f}"]
        cells += [_percent(iou[c]) + _bar(iou[c], i) for i, iou in enumerate(ious)]
        cells += [_difference(iou[c] - ious[0][c]) for iou in ious[1:]]
        rows.append(cells)
    mean = ["<b>mean</b>", "", *(f"<b>{_percent(run.miou)}</b>{_bar(0, None)}" for run in runs)]
    mean += [_difference(run.miou - first.miou) for run in runs[1:]]
    return _table(head, [*rows, mean])


def _bar(value: float, index: int | None) -> str:
    if index is None:
        return '<span class="bar" style="background:none"></span>'
    width = 0 if np.isnan(value) else 100 * value
    style = f"width:{width:.1f}%;background:{_series(index)}"
    return f'<span class="bar"><i style="{style}"></i></span>'


def _confusion(run: Run) -> str:
    shares = run.confusion / np.maximum(run.confusion.sum(1, keepdims=True), 1)
    heading = f"<h3>{escape(run.name)}</h3>"
    note = '<p class="soft">Percent of each true class (row) by prediction (column).</p>'
    if len(run.classes) > _NUMBERED_CLASSES:
        matrix = _matrix_picture(shares)
    else:
        matrix = _table(
            ["", *map(escape, run.classes)],
            [
                [escape(name), *(_cell(v, i == j) for j, v in enumerate(row))]
                for i, (name, row) in enumerate(zip(run.classes, shares, strict=True))
            ],
            "matrix",
        )
    return f'{heading}{note}<div class="two">{matrix}{_pairs(run, shares)}</div>'


def _cell(share: float, right: bool) -> str:
    colour = "var(--good)" if right else "var(--bad)"
    mix = f"color-mix(in srgb, {colour} {60 * share**0.6:.0f}%, transparent)"
    text = f"{100 * share:.0f}" if share >= 0.005 else "·"
    return f'<td style="background:{mix}">{text}</td>'


def _matrix_picture(shares: np.ndarray) -> str:
    strength = (255 * shares**0.6).astype(np.uint8)
    opaque = np.full_like(strength, 255)
    colours = np.stack([strength, strength // 3, 255 - strength, opaque], -1)
    return f'<div class="wide matrix"><img alt="confusion matrix" src="{_png(colours)}"></div>'


def _pairs(run: Run, shares: np.ndarray) -> str:
    """The commonest confusions by pixels."""
    wrong = run.confusion * (1 - np.eye(len(run.classes), dtype=np.int64))
    rows = []
    for flat in wrong.ravel().argsort(kind="stable")[::-1][:_PAIRS]:
        truth, guess = divmod(int(flat), len(run.classes))
        if wrong[truth, guess]:
            part = 100 * wrong[truth, guess] / run.confusion.sum()
            rows.append(
                [
                    _class_key(run.palette[truth]) + escape(run.classes[truth]),
                    f'<td class="text">{_class_key(run.palette[guess])}'
                    f"{escape(run.classes[guess])}</td>",
                    f"{100 * shares[truth, guess]:.1f}",
                    f"{part:.2f}",
                ]
            )
    return _table(["truth", "taken for", "% of class", "% of all"], rows, "pairs")


def error_overlay(example: Example, ignored: int = 255) -> np.ndarray:
    """The picture in grey with wrong pixels red and ignored ones white, (H, W, 3) uint8."""
    grey = 0.55 * example.image.mean(-1, keepdims=True) + 60
    out = np.repeat(grey, 3, -1)
    out[(example.truth != example.prediction) & (example.truth != ignored)] = (235, 52, 40)
    out[example.truth == ignored] = 255
    return out.astype(np.uint8)


def _shots(run: Run) -> str:
    keys = "".join(
        f"<span>{_class_key(colour)}{escape(name)}</span>"
        for name, colour in zip(run.classes, run.palette, strict=True)
    )
    shots = "".join(_shot(run, example) for example in run.examples)
    return (
        f"<h3>{escape(run.name)}: best, median and worst by the image's mean IoU</h3>"
        f'<div class="legend">{keys}</div><div class="shots">{shots}</div>'
    )


def _shot(run: Run, example: Example) -> str:
    pictures = {
        "image": _jpeg(example.image),
        "truth": _png(colourise(example.truth, run.palette)),
        "prediction": _png(colourise(example.prediction, run.palette)),
        "error": _png(error_overlay(example)),
    }
    figures = "".join(
        f'<figure><img alt="{name} of {escape(example.name)}" src="{uri}">'
        f"<figcaption>{name}</figcaption></figure>"
        for name, uri in pictures.items()
    )
    return (
        f'<div class="card"><b>{example.rank}</b> {_percent(example.miou)} % '
        f'<span class="soft">{escape(example.name)}</span><div class="shot">{figures}</div></div>'
    )


def _costs(runs: Sequence[Run]) -> str:
    head = ["", "input", "parameters", "GMAC, modules", "GMAC, all", "latency, ms", "peak, MiB"]
    rows = []
    for run in runs:
        cost = run.cost
        rows.append(
            [
                escape(run.name),
                " × ".join(map(str, cost.input_shape)),
                f"{cost.parameters:,}",
                f"{cost.module_multiply_adds / 1e9:.3f}",
                f"{cost.all_multiply_adds / 1e9:.3f}",
                f"{cost.inference_ms:.1f}",
                "–" if cost.inference_mib is None else f"{cost.inference_mib:.1f}",
            ]
        )
    machines = sorted({run.machine for run in runs})
    return _table(head, rows) + (
        '<p class="soft">Multiply-adds of convolution and linear modules, and of every product. '
        f"Latency is the median of five forwards; measured on {escape('; '.join(machines))}.</p>"
    )


def _configuration(runs: Sequence[Run]) -> str:
    parts = [f'<p class="soft">{escape(note)}</p>' for run in runs for note in run.notes]
    differing = _differing_settings(runs)
    if len(runs) > 1:
        rows = [[escape(key), *(_text(v) for v in values)] for key, values in differing]
        head = ["setting that differs", *(escape(run.name) for run in runs)]
        if rows:
            parts.append(_table(head, rows, "facts"))
        else:
            parts.append("<p>The configurations are the same.</p>")
    keys = list(dict.fromkeys(key for run in runs for key in run.environment))
    if keys:
        rows = [[escape(k), *(_text(run.environment.get(k, "–")) for run in runs)] for k in keys]
        heading = "<h3>Environment of the training</h3>"
        head = ["", *(escape(run.name) for run in runs)]
        parts.append(heading + _table(head, rows, "facts"))
    for run in runs:
        text = escape(run.config.pretty_text)
        parts.append(
            f"<details><summary>Configuration of {escape(run.name)}</summary>"
            f"<pre>{text}</pre></details>"
        )
    return "".join(parts)


def _text(value: object) -> str:
    return f'<td class="text">{escape(str(value))}</td>'


def _differing_settings(runs: Sequence[Run]) -> list[tuple[str, list[object]]]:
    flat = [dict(_flattened(run.config.to_dict())) for run in runs]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    rows = ((key, [settings.get(key, "–") for settings in flat]) for key in keys)
    return [(key, values) for key, values in rows if any(v != values[0] for v in values[1:])]


def _flattened(settings: object, prefix: str = ""):
    if isinstance(settings, dict) and settings:
        for key, value in settings.items():
            yield from _flattened(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, settings


# --- pictures -----------------------------------------------------------------------------------


def _uri(image: Image.Image, form: str, **options) -> str:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return f"data:image/{form.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _png(pixels: np.ndarray) -> str:
    return _uri(Image.fromarray(pixels), "PNG", optimize=True)


def _jpeg(pixels: np.ndarray) -> str:
    return _uri(Image.fromarray(pixels), "JPEG", quality=88)

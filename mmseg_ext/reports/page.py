"""The report of one or several runs as one self-contained HTML page.

Pictures are data URIs, curves are SVG, and the page's own policy forbids scripts and requests.
Colors follow the reader's light or dark setting.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from mmseg_ext.atomic_write import write_text
from mmseg_ext.reports.curves import COLORS, curves_svg
from mmseg_ext.reports.run_data import Results, Run, read_run

_MATRIX_CLASSES = 30  # a wider table cannot be read
_PAIRS = 10  # of classes that are confused most


def write_report(work_dirs: Sequence[Path], path: Path) -> list[Run]:
    """Write the page of the runs in `work_dirs`, and return the runs.

    Raises:
        ValueError: as `read_run`.
    """
    runs = [read_run(Path(work_dir)) for work_dir in work_dirs]
    names = [run.name for run in runs]
    for i, run in enumerate(runs):
        if names.count(run.name) > 1:
            run.name += f" ({i + 1})"
    write_text(page(runs), path)
    return runs


def page(runs: Sequence[Run]) -> str:
    """Return the HTML of runs with unique names."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "duration": duration}
    tested = [run for run in runs if run.results]
    results = {run.name: run.results for run in runs if run.results}
    comparable = len({tuple(found.classes) for found in results.values()}) == 1
    return environment.get_template("report.html.j2").render(
        runs=runs,
        colors=COLORS,
        curves=Markup(curves_svg({run.name: run.curves for run in runs})),
        groups=[tested] if comparable else [[run] for run in tested],
        confusions={name: _most_common(found) for name, found in results.items()},
        matrix_classes=_MATRIX_CLASSES,
        facts=list(dict.fromkeys(key for run in runs for key in run.environment)),
    )


def percent(share: float, digits: int = 1, sign: str = "") -> str:
    """Return a share in percent; a dash for NaN. With the sign "+" also positive ones have it."""
    return "–" if np.isnan(share) else f"{100 * share:{sign}.{digits}f}"


def duration(seconds: float) -> str:
    """Return a time in seconds, minutes, or hours and minutes."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def _most_common(results: Results) -> list[tuple[int, int, float, float]]:
    """Return truth, prediction, share of the class and of all pixels of the main confusions."""
    counts = results.confusion
    wrong = counts - np.diag(counts.diagonal())
    largest = np.argsort(-wrong, axis=None, kind="stable")[:_PAIRS]
    truths, guesses = np.unravel_index(largest[wrong.flat[largest] > 0], wrong.shape)
    pixels = wrong[truths, guesses]
    shares = pixels / counts.sum(1)[truths], pixels / counts.sum()
    return list(zip(truths, guesses, *shares, strict=True))

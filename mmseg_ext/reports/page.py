"""The report of one or several runs as one HTML page that needs nothing else.

No script, no font, no request: pictures are data URIs, curves are SVG, and the page's own policy
forbids the rest. Colours follow the reader's light or dark setting.
"""

import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from mmseg_ext.atomic_write import write_text
from mmseg_ext.reports.curves import COLOURS, curves_svg
from mmseg_ext.reports.run_data import Results, Run, read_run

_MATRIX_CLASSES = 30  # a table of more is too wide to read
_PAIRS = 10


def write_report(work_dirs: Sequence[Path], path: Path) -> list[Run]:
    """Write the page for the runs in `work_dirs` and return them.

    Raises:
        ValueError: as `read_run` does.
    """
    runs = [read_run(Path(work_dir)) for work_dir in work_dirs]
    names = [run.name for run in runs]
    runs = [
        run if names.count(run.name) == 1 else replace(run, name=f"{run.name} ({i + 1})")
        for i, run in enumerate(runs)
    ]
    write_text(page(runs), path)
    return runs


def page(runs: Sequence[Run]) -> str:
    """The whole page for runs, which are named uniquely."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "duration": duration, "signed": signed}
    tested = [run for run in runs if run.results]
    comparable = len({tuple(run.results.classes) for run in tested}) == 1
    return environment.get_template("report.html.j2").render(
        runs=runs,
        colours=COLOURS,
        curves=Markup(curves_svg({run.name: run.curves for run in runs})),
        groups=[tested] if comparable else [[run] for run in tested],
        confusions={run.name: _commonest(run.results) for run in tested},
        matrix_classes=_MATRIX_CLASSES,
        differences=[(run.name, _difference(runs[0], run)) for run in runs[1:]],
        facts=list(dict.fromkeys(key for run in runs for key in run.environment)),
    )


def percent(share: float, digits: int = 1) -> str:
    return "–" if np.isnan(share) else f"{100 * share:.{digits}f}"


def signed(difference: float) -> str:
    """A difference of shares in percentage points."""
    return "–" if np.isnan(difference) else f"{100 * difference:+.1f}"


def duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def _commonest(results: Results) -> list[tuple[int, int, float, float]]:
    """Truth, prediction, share of the class and of all pixels of the commonest confusions."""
    wrong = results.confusion * (1 - np.eye(len(results.classes), dtype=np.int64))
    of_class = np.maximum(results.confusion.sum(1), 1)
    pairs = []
    for flat in wrong.ravel().argsort(kind="stable")[::-1][:_PAIRS]:
        truth, guess = divmod(int(flat), len(results.classes))
        if pixels := wrong[truth, guess]:
            shares = pixels / of_class[truth], pixels / results.confusion.sum()
            pairs.append((truth, guess, *map(float, shares)))
    return pairs


def _difference(first: Run, run: Run) -> str:
    lines = [r.config.splitlines() for r in (first, run)]
    return "\n".join(list(difflib.unified_diff(*lines, n=1, lineterm=""))[2:])

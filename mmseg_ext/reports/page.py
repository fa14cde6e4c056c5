"""The report of one or several runs as one self-contained HTML page.

Pictures are data URIs, curves are SVG, and the page's own policy forbids scripts and requests.
Colors follow the reader's light or dark setting.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from mmseg_ext.reports.curves import COLORS, curves_svg
from mmseg_ext.reports.run_data import Results, Run, read_run
from mmseg_ext.reports.scores import COLUMNS, Table, mean_and_deviation, score_table

_MATRIX_CLASSES = 30  # a wider table cannot be read
_PAIRS = 10  # of classes that are confused most
# LaTeX writes box_1 as box\_1.
_LATEX = {character: f"\\{character}" for character in "&%$#_{}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def read_runs(work_dirs: Sequence[Path]) -> list[Run]:
    """Read work directories; runs of the same name get a number.

    Raises:
        ValueError: as `read_run`.
    """
    runs = [read_run(Path(work_dir)) for work_dir in work_dirs]
    names = [run.name for run in runs]
    for i, run in enumerate(runs):
        if names.count(run.name) > 1:
            run.name += f" ({i + 1})"
    return runs


def template(name: str, folder: Path = Path(__file__).parent):
    """Return the Jinja template of a folder, which may include those of this folder."""
    environment = Environment(
        loader=FileSystemLoader([folder, Path(__file__).parent]),
        autoescape="html" in name,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "duration": duration}
    environment.filters["latex"] = lambda text: text.translate(str.maketrans(_LATEX))
    return environment.get_template(name)


def scores_text(runs: Sequence[Run], suffix: str) -> str:
    """Return the scores of runs as a '.csv' or '.tex' file, with mean and deviation."""
    tables = _score_tables(runs)
    summary = mean_and_deviation(list(tables.values()))
    return template(f"scores{suffix}.j2").render(columns=COLUMNS, tables=tables, summary=summary)


def _score_tables(runs: Sequence[Run]) -> dict[str, Table]:
    return {run.name: score_table(run.results) for run in runs if run.results is not None}


def page(runs: Sequence[Run]) -> str:
    """Return the HTML of runs with unique names."""
    tables = _score_tables(runs)
    tested, confusions = [], {}
    class_lists = set()
    facts: dict[str, None] = {}  # the rows of the last table, in order
    for run in runs:
        facts |= dict.fromkeys(run.environment)
        if run.results is not None:
            tested.append(run)
            confusions[run.name] = _most_common(run.results)
            class_lists.add(tuple(run.results.classes))
    groups = [[run] for run in tested]  # a table for each
    if len(class_lists) == 1:
        groups = [tested]
    return template("report.html.j2").render(
        runs=runs,
        colors=COLORS,
        curves=Markup(curves_svg({run.name: run.curves for run in runs})),
        groups=groups,
        tables=tables,
        summary=mean_and_deviation(list(tables.values())),
        confusions=confusions,
        matrix_classes=_MATRIX_CLASSES,
        facts=list(facts),
    )


def percent(share: float, digits: int = 1, sign: str = "") -> str:
    """Return a share in percent; a dash for NaN. With the sign "+" also positive ones have it."""
    if np.isnan(share):
        return "–"
    return f"{100 * share:{sign}.{digits}f}"


def duration(seconds: float) -> str:
    """Return a time in seconds, minutes, or hours and minutes."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def _most_common(results: Results) -> list[tuple[int, int, float, float]]:
    """Return truth, prediction, share of the class and of all pixels of the main confusions."""
    counts = results.confusion
    wrong = counts - np.diag(counts.diagonal())
    largest = np.argsort(-wrong, axis=None, kind="stable")[:_PAIRS]
    truths, guesses = np.unravel_index(largest[wrong.flat[largest] > 0], wrong.shape)
    pixels = wrong[truths, guesses]
    of_class, of_all = pixels / counts.sum(1)[truths], pixels / counts.sum()
    return list(zip(truths, guesses, of_class, of_all, strict=True))

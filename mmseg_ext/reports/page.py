"""The report of one or several runs as one self-contained HTML page.

Pictures are data URIs, curves are SVG, and the page's own policy forbids scripts and requests.
Colors follow the reader's light or dark setting.
"""

import itertools
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from mmseg_ext.atomic_write import write_text
from mmseg_ext.reports.curves import COLORS, curves_svg
from mmseg_ext.reports.run_data import Results, Run, read_run
from mmseg_ext.reports.scores import (
    COLUMNS,
    Table,
    deviation,
    group_runs,
    score_table,
    spread,
)

_MATRIX_CLASSES = 30  # a wider table cannot be read
_PAIRS = 10  # of classes that are confused most
# LaTeX writes box_1 as box\_1.
_LATEX = {character: f"\\{character}" for character in "&%$#_{}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def report(
    work_dirs: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    csv: bool = False,
    latex: bool = False,
    evaluate: bool = False,
) -> tuple[list[Run], list[Path]]:
    """Write what one or several runs recorded on one HTML page; return the runs and the files.

    Args:
        out: the page; by default `report.html` in the first of `work_dirs`.
        csv: also write the scores, in percent, next to the page.
        latex: also write them as a `.tex` file of tables of booktabs.
        evaluate: first test the best checkpoint of each run, in another process.

    Raises:
        ValueError: for a folder without a run or that is named twice, damaged results, an `out`
            that is no name of a page, or a test that fails.
    """
    work_dirs = [work_dirs] if isinstance(work_dirs, str | Path) else work_dirs
    named: dict[Path, str | Path] = {}  # by the folder itself
    for work_dir in work_dirs:
        other = named.setdefault(Path(work_dir).resolve(), work_dir)
        if other is not work_dir:
            raise ValueError(f"{work_dir}: is the same run as {other}; name it once")
    file = Path(out) if out else Path(work_dirs[0], "report.html")
    if file.suffix in (".csv", ".tex"):
        raise ValueError(f"--out {file}: is the page; name it {file.with_suffix('.html').name}")
    if file.is_dir():
        raise ValueError(f"--out {file}: is a folder; name a file such as {file / 'report.html'}")
    runs = [read_run(Path(work_dir)) for work_dir in work_dirs]
    if evaluate:
        _test(runs, work_dirs)
        runs = [read_run(Path(work_dir)) for work_dir in work_dirs]
    _make_names_unique(runs)
    tested = [(run, run.results.images_of) for run in runs if run.results is not None]
    for run, images in tested:
        first, of_first = tested[0]
        if images != of_first:
            run.notes.append(
                f"{run.name}: has scores of {images}, but {first.name} of {of_first}; to compare "
                "the models, test both on one split"
            )
    written = {file: page(runs)}
    for suffix, is_wanted in ((".csv", csv), (".tex", latex)):
        if is_wanted:
            written[file.with_suffix(suffix)] = scores_text(runs, suffix)
    for path, text in written.items():
        write_text(text, path)
    return runs, list(written)


def _test(runs: Sequence[Run], work_dirs: Sequence[str | Path]) -> None:
    """Test the best checkpoint of each run, after all runs are known to have one."""
    tests = []
    for run, work_dir in zip(runs, work_dirs, strict=True):
        if run.config_file is None or run.checkpoint is None:
            raise ValueError(
                f"{work_dir}: evaluating needs a config (*.py) and a checkpoint (*.pth); pass the "
                "folder of a training, or leave out --evaluate"
            )
        tests.append([str(run.config_file), str(run.checkpoint), "--work-dir", str(work_dir)])
    for work_dir, words in zip(work_dirs, tests, strict=True):
        # Another process, so a config that fails or a full memory does not end this one.
        if subprocess.run([sys.executable, "-m", "mmseg_ext", "test", *words]).returncode:
            command = shlex.join(["mmseg-ext", "test", *words])
            raise ValueError(f"{work_dir}: the test failed; run: {command}")


def _make_names_unique(runs: Sequence[Run]) -> None:
    """Number the runs that share a name, because the page finds a run by its name."""
    names = [run.name for run in runs]
    taken = set(names)
    for i, (run, name) in enumerate(zip(runs, names, strict=True), start=1):
        if names.count(name) > 1:
            numbered = (f"{name} ({number})" for number in itertools.count(i))
            run.name = next(one for one in numbered if one not in taken)
            taken.add(run.name)


def template(name: str, folder: Path = Path(__file__).parent):
    """Return the Jinja template of a folder, which may include templates of this folder."""
    environment = Environment(
        loader=FileSystemLoader([folder, Path(__file__).parent]),
        autoescape="html" in name,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "duration": duration, "spread": spread}
    environment.filters["latex"] = lambda text: text.translate(str.maketrans(_LATEX))
    environment.filters["math"] = lambda text: text.replace("±", r"\pm").replace(" (", r"\ (")
    return environment.get_template(name)


def scores_text(runs: Sequence[Run], suffix: str) -> str:
    """Return the scores of runs as a '.csv' or '.tex' file, with mean and deviation of groups."""
    return template(f"scores{suffix}.j2").render(
        columns=COLUMNS,
        tables=_score_tables(runs),
        summaries=_summaries(runs),
        overview=overview(runs),
    )


class Summary(NamedTuple):
    """The scores of runs that repeat an experiment; NaN where a run lacks the score."""

    mean: Table
    deviation: Table | None  # None for two runs
    spreads: list[list[str]]  # of the mean's values, in percent; see `spread`
    results: Results | None  # of one of the runs


def _summaries(runs: Sequence[Run]) -> dict[str, Summary]:
    """Return a summary of each group of repetitions with the same rows, by its title."""
    found = {}
    for title, group in _repetitions(runs):
        tables = [*_score_tables(group).values()]
        rows = tables[0].rows
        if len(tables) < 2 or any(table.rows != rows for table in tables):
            continue
        values = np.array([table.values for table in tables])
        deviations = deviation(values)
        percents = np.moveaxis(100 * values, 0, -1)  # (rows, columns, runs)
        found[title] = Summary(
            Table(rows, values.mean(axis=0)),
            None if deviations is None else Table(rows, deviations),
            [[spread(of_runs) for of_runs in row] for row in percents],
            group[0].results,
        )
    return found


def overview(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """Return a row for each run, and for each group of repetitions after its runs.

    A row has the name, and the mIoU in percent without and with test-time augmentation. A group has
    the mean with its `spread`.
    """
    rows = []
    for title, group in _repetitions(runs):
        columns = []
        for kind in ("results", "augmented"):
            found = [getattr(run, kind) for run in group]
            columns.append([np.nan if results is None else results.miou for results in found])
        for i, run in enumerate(group):
            cells = ["" if np.isnan(column[i]) else percent(column[i], 2) for column in columns]
            rows.append((run.name, *cells))
        if len(group) > 1:
            cells = []
            for column in columns:
                mean, percents = float(np.mean(column)), 100 * np.array(column)
                known = not np.isnan(mean)
                cells.append(f"{percent(mean, 2)} {spread(percents.tolist(), 2)}" if known else "")
            rows.append((f"mean of {title}", *cells))
    return rows


def _repetitions(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Return the groups of tested runs that repeat an experiment, each with its title."""
    groups = group_runs([run for run in runs if run.results is not None])
    titles = [f"{len(group)} runs" for group in groups]
    if len(groups) > 1:
        titles = [f"{len(group)} runs like {group[0].name}" for group in groups]
    return list(zip(titles, groups, strict=True))


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
        columns=COLUMNS,
        tables=tables,
        summaries=_summaries(runs),
        overview=overview(runs),
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

"""A run, read from its work directory: logs, results and pictures of training and testing.

A work directory may come from anyone. Its files are read as text, JSON or bytes; nothing is
executed, and no model or dataset is built. Links to files outside the directory are not followed.
"""

import base64
import json
import math
import re
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path

import numpy as np

from mmseg_ext.reports.curves import Curve, read_scalars
from mmseg_ext.reports.results_hook import PICTURES, RESULTS, class_iou

_LIMIT = 2**27  # bytes of a file
# The time at the start of mmengine's log lines.
_STAMP = re.compile(r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?= - )", re.M)
_STAMP_FORMAT = "%Y/%m/%d %H:%M:%S"
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass
class Results:
    """One validation or test.

    `trained` names config, head, backbone and dataset. `confusion` (classes, classes) counts pixels
    by truth (rows) and prediction. `examples` are (name, picture as data URI, mean IoU or None).
    """

    source: str
    images: int
    trained: str
    classes: list[str]
    palette: list[tuple[int, int, int]]
    confusion: np.ndarray
    examples: list[tuple[str, str, float | None]]

    @cached_property
    def iou(self) -> np.ndarray:
        """IoU of each class, (classes,); NaN for a class without truth and prediction."""
        return class_iou(self.confusion)

    @cached_property
    def miou(self) -> float:
        return math.nan if np.isnan(self.iou).all() else float(np.nanmean(self.iou))

    @cached_property
    def class_shares(self) -> np.ndarray:
        """Share of all pixels that each class has in the truth, (classes,)."""
        return self.confusion.sum(1) / max(self.confusion.sum(), 1)

    @property
    def pixel_accuracy(self) -> float:
        return float(self.confusion.trace() / max(self.confusion.sum(), 1))


@dataclass
class Run:
    """A run; `results` is None before the first validation, `notes` name what was not read.

    `seconds` is the time between the first and the last line of each log with training, summed over
    the starts of the run. It is 0 without logs.
    """

    name: str
    config: str
    environment: dict[str, str]
    curves: dict[str, Curve]
    results: Results | None
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return self.results.trained if self.results else self.name

    @property
    def iterations(self) -> int:
        return max((step for curve in self.curves.values() for step in curve), default=0)


def read_run(work_dir: Path) -> Run:
    """Read a work directory.

    Raises:
        ValueError: if it contains no run, or results that cannot be read.
    """
    notes: list[str] = []
    curves = read_curves(work_dir, notes)
    results = _latest_results(work_dir)
    if not curves and results is None:
        raise ValueError(f"{work_dir}: contains neither vis_data/scalars.json nor {RESULTS}")
    if results is None:
        notes.append(f"{work_dir}: no validation with CheckedIoUMetric has written {RESULTS} yet")
    return Run(
        name=work_dir.resolve().name,
        config=_newest(work_dir, "*/config.py", notes),
        environment=_environment(_newest(work_dir, "*/run.json", notes)),
        curves=curves,
        results=results,
        seconds=_seconds_of_training(work_dir, notes),
        notes=notes,
    )


def _read(path: Path, work_dir: Path) -> bytes:
    """Return the content of a file in `work_dir`.

    Raises:
        ValueError: for a link to the outside, a pipe, a device, or a file above the limit.
    """
    if not path.is_file() or not path.resolve().is_relative_to(work_dir.resolve()):
        raise ValueError(f"{path}: is not a file inside the work directory")
    if path.stat().st_size > _LIMIT:
        raise ValueError(f"{path}: is larger than {_LIMIT >> 20} MiB")
    return path.read_bytes()


def read_curves(work_dir: Path, notes: list[str]) -> dict[str, Curve]:
    """Return every scalar of a run; a resumed run replaces the values of the steps it repeats.

    `notes` gets a line for each file, or part of a file, that is left out.
    """
    merged: dict[str, Curve] = {}
    for path in sorted(work_dir.glob("*/vis_data/scalars.json")):
        try:
            curves, damaged = read_scalars(_read(path, work_dir).decode(errors="replace"))
        except ValueError as error:
            notes.append(str(error))
            continue
        if damaged:
            notes.append(f"{path}: {damaged} damaged lines are left out")
        for name, curve in curves.items():
            merged.setdefault(name, {}).update(curve)
    return {name: dict(sorted(curve.items())) for name, curve in merged.items()}


def _seconds_of_training(work_dir: Path, notes: list[str]) -> float:
    seconds = 0.0
    for path in sorted(work_dir.glob("*/*.log")):
        if path.stem != path.parent.name:
            continue  # of another rank
        try:
            text = _read(path, work_dir).decode(errors="replace")
            stamps = sorted(_STAMP.findall(text))
            if "(train) " in text and stamps:  # a test has a log, too
                begin, end = (datetime.strptime(stamps[i], _STAMP_FORMAT) for i in (0, -1))
                seconds += (end - begin).total_seconds()
        except ValueError as error:
            notes.append(f"{path}: {error}")
    return seconds


def _newest(work_dir: Path, pattern: str, notes: list[str]) -> str:
    """Return the text of the last file by name; an empty one if there is none."""
    path = max(work_dir.glob(pattern), default=None)
    try:
        return "" if path is None else _read(path, work_dir).decode(errors="replace")
    except ValueError as error:
        notes.append(str(error))
        return ""


def _environment(text: str) -> dict[str, str]:
    """Return the entries of a `run.json`, the versions among them; nothing if it is malformed."""
    try:
        facts = json.loads(text)
        facts |= facts.pop("versions")
        lists = {name: " ".join(map(str, x)) for name, x in facts.items() if isinstance(x, list)}
        return {name: str(value) for name, value in (facts | lists).items()}
    except _MALFORMED:
        return {}


def _latest_results(work_dir: Path) -> Results | None:
    """Return the newest results; with test-time augmentation only if there are no others."""
    found = []
    for path in work_dir.glob(f"*/{RESULTS}"):
        try:
            content = json.loads(_read(path, work_dir))
            key = not content["augmented"], float(content["time"])
            found.append((key, _results(content, path.parent / PICTURES, work_dir)))
        except _MALFORMED as error:
            what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise ValueError(f"{path}: is not what a run writes ({what})") from error
    return max(found, key=lambda entry: entry[0])[1] if found else None


def _results(content: dict, pictures: Path, work_dir: Path) -> Results:
    classes = [str(name) for name in content["classes"]]
    palette = [(int(red), int(green), int(blue)) for red, green, blue in content["palette"]]
    confusion = np.array(content["confusion"], dtype=np.int64)
    if confusion.shape != (len(classes),) * 2 or len(palette) != len(classes):
        raise ValueError("classes, palette and confusion do not fit each other")
    examples = []
    for entry in content["examples"]:
        pixels = _read(pictures / Path(str(entry["file"])).name, work_dir)
        uri = f"data:image/jpeg;base64,{base64.b64encode(pixels).decode()}"
        score = None if entry["miou"] is None else float(entry["miou"])
        examples.append((str(entry["name"]), uri, score))
    return Results(
        source=str(content["source"]),
        images=int(content["images"]),
        trained="{config}: {head} on {backbone}, {dataset}".format(**content),
        classes=classes,
        palette=palette,
        confusion=confusion,
        examples=examples,
    )

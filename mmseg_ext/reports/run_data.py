"""A run, read from its work directory: logs, results and pictures of training and testing.

A work directory may come from anyone. Its files are read as text, JSON or bytes; nothing is
executed, and no model or dataset is built. Links to files outside the directory are not followed.
"""

import base64
import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from mmseg_ext.reports.curves import Curve, read_scalars
from mmseg_ext.reports.results_hook import PICTURES, RESULTS, class_iou

_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError)


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
    """A run; `results` is None before the first validation, `notes` name what was not read."""

    name: str
    config: str
    environment: dict[str, str]
    curves: dict[str, Curve]
    results: Results | None
    notes: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return self.results.trained if self.results else self.name

    @property
    def iterations(self) -> int:
        return max((max(curve) for curve in self.curves.values()), default=0)

    @property
    def seconds(self) -> float:
        """Time of the training iterations, without validations."""
        times = self.curves.get("time", {})
        return float(np.nansum(np.diff([0, *times]) * np.array(list(times.values()))))


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
        notes=notes,
    )


def _read(path: Path, work_dir: Path) -> bytes:
    """Return the content of a file in `work_dir`.

    Raises:
        ValueError: for a link to the outside, a pipe or a device.
    """
    if not path.is_file() or not path.resolve().is_relative_to(work_dir.resolve()):
        raise ValueError(f"{path}: is not a file inside the work directory")
    return path.read_bytes()


def _text(path: Path, work_dir: Path, notes: list[str]) -> str:
    """Return the text of a file; if it is not read, an empty one, and add the reason to `notes`."""
    try:
        return _read(path, work_dir).decode(errors="replace")
    except ValueError as error:
        notes.append(str(error))
        return ""


def read_curves(work_dir: Path, notes: list[str]) -> dict[str, Curve]:
    """Return every scalar of a run; a resumed run replaces the values of the steps it repeats.

    `notes` gets a line for each file, or part of a file, that is left out.
    """
    merged: dict[str, Curve] = {}
    for path in sorted(work_dir.glob("*/vis_data/scalars.json")):
        curves, damaged = read_scalars(_text(path, work_dir, notes))
        if damaged:
            notes.append(f"{path}: {damaged} damaged lines are left out")
        for name, curve in curves.items():
            merged.setdefault(name, {}).update(curve)
    return {name: dict(sorted(curve.items())) for name, curve in merged.items()}


def _newest(work_dir: Path, pattern: str, notes: list[str]) -> str:
    """Return the text of the last file by name; an empty one if there is none."""
    path = max(work_dir.glob(pattern), default=None)
    return "" if path is None else _text(path, work_dir, notes)


def _environment(text: str) -> dict[str, str]:
    """Return the entries of a `run.json`, the versions among them; nothing if it is malformed."""
    try:
        record = json.loads(text)
        versions = record.pop("versions")
        facts = (record | versions).items()
    except _MALFORMED:
        return {}
    return {k: " ".join(map(str, v)) if isinstance(v, list) else str(v) for k, v in facts}


def _latest_results(work_dir: Path) -> Results | None:
    """Return the newest results; with test-time augmentation only if there are no others."""
    found = []
    for path in work_dir.glob(f"*/{RESULTS}"):
        try:
            content = json.loads(_read(path, work_dir))
            key = not content["augmented"], float(content["time"])
            found.append((key, _results(content, path.parent / PICTURES, work_dir)))
        except _MALFORMED as error:
            what = f"{type(error).__name__}: {error}"
            raise ValueError(f"{path}: is not what a run writes ({what})") from error
    return max(found, key=lambda entry: entry[0])[1] if found else None


def _results(content: dict, pictures: Path, work_dir: Path) -> Results:
    classes = list(map(str, content["classes"]))
    palette, confusion = (np.array(content[key], np.int64) for key in ("palette", "confusion"))
    if confusion.shape != (len(classes),) * 2 or palette.shape != (len(classes), 3):
        raise ValueError("classes, palette and confusion do not fit each other")
    examples = []
    for entry in content["examples"]:
        path = pictures / Path(str(entry["file"])).name
        pixels = _read(path, work_dir)
        if pixels[:3] != b"\xff\xd8\xff":
            raise ValueError(f"{path} is not a JPEG")
        uri = f"data:image/jpeg;base64,{base64.b64encode(pixels).decode()}"
        score = None if entry["miou"] is None else float(entry["miou"])
        examples.append((str(entry["name"]), uri, score))
    return Results(
        source=str(content["source"]),
        images=int(content["images"]),
        trained="{config}: {head} on {backbone}, {dataset}".format(**content),
        classes=classes,
        palette=list(map(tuple, palette.tolist())),
        confusion=confusion,
        examples=examples,
    )

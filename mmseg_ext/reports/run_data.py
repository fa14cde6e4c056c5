"""A run as its work directory tells it: logs, figures and pictures that training and testing wrote.

A work directory may come from anyone. Everything in it is read as text, JSON or bytes; nothing is
executed, and neither a model nor a dataset is built.
"""

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mmseg_ext.reports.curves import Curve, read_scalars
from mmseg_ext.reports.results_hook import PICTURES, RESULTS, class_iou

_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)


@dataclass
class Results:
    """One validation or test.

    `trained` names config, head, backbone and dataset. `confusion` (classes, classes) counts pixels
    by truth (rows) and prediction. `examples` are names, pictures as data URIs, mean IoUs or None.
    """

    source: str
    images: int
    trained: str
    classes: list[str]
    palette: list[tuple[int, int, int]]
    confusion: np.ndarray
    cost: dict[str, int] | None
    size: tuple[int, int] | None
    examples: list[tuple[str, str, float | None]]

    @property
    def iou(self) -> np.ndarray:
        """IoU of each class, (classes,); NaN for a class that is neither there nor predicted."""
        return class_iou(self.confusion)

    @property
    def miou(self) -> float:
        return float(np.nanmean(self.iou))

    @property
    def pixel_accuracy(self) -> float:
        return float(self.confusion.trace() / max(self.confusion.sum(), 1))


@dataclass
class Run:
    """A run; `results` is None before the first validation, `notes` say what cannot be read."""

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
        return max(curve.steps[-1] for curve in self.curves.values()) if self.curves else 0

    @property
    def seconds(self) -> float:
        """Time of the training's iterations, validations left out."""
        steps, times = self.curves.get("time", Curve([], []))
        return float(np.dot(np.diff([0, *steps]), times))


def read_run(work_dir: Path) -> Run:
    """Read a work directory.

    Raises:
        ValueError: where there is no run, and for results that cannot be read.
    """
    notes: list[str] = []
    curves = read_curves(work_dir, notes)
    results = _latest_results(work_dir)
    if not curves and results is None:
        raise ValueError(f"{work_dir} holds no run: neither vis_data/scalars.json nor {RESULTS}")
    if results is None:
        notes.append(f"{work_dir}: no validation with CheckedIoUMetric has written {RESULTS} yet")
    config = _newest(work_dir, "*/config.py")
    return Run(
        name=work_dir.resolve().name,
        config=config.read_text(encoding="utf-8", errors="replace") if config else "",
        environment=_environment(_newest(work_dir, "*/run.json")),
        curves=curves,
        results=results,
        notes=notes,
    )


def read_curves(work_dir: Path, notes: list[str]) -> dict[str, Curve]:
    """Every scalar of a run; where training was resumed, the later of two values of a step.

    `notes` gets a line for each file or part of one that is left out.
    """
    merged: dict[str, dict[int, float]] = {}
    for path in sorted(work_dir.glob("*/vis_data/scalars.json")):
        if not path.stat().st_size:  # a test's
            continue
        try:
            curves = read_scalars(path, notes.append)
        except ValueError as error:
            notes.append(str(error))
            continue
        for name, curve in curves.items():
            values = zip(curve.steps, curve.values, strict=True)
            merged.setdefault(name, {}).update(values)
    return {
        name: Curve(sorted(points), [points[step] for step in sorted(points)])
        for name, points in merged.items()
    }


def _newest(work_dir: Path, pattern: str) -> Path | None:
    """The last file by name."""
    return max((path for path in work_dir.glob(pattern) if path.is_file()), default=None)


def _environment(path: Path | None) -> dict[str, str]:
    """What a training's `run.json` says of the run, the software and the machine; or nothing."""
    try:
        record = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        facts = {**record, **record["versions"]}
        del facts["versions"]
        lists = {name: " ".join(map(str, x)) for name, x in facts.items() if isinstance(x, list)}
        return {str(name): str(value) for name, value in (facts | lists).items()}
    except _MALFORMED:
        return {}


def _latest_results(work_dir: Path) -> Results | None:
    """Those written last; with test-time augmentation only where there are no others."""
    found = []
    for path in work_dir.glob(f"*/{RESULTS}"):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found.append(
                (not content["augmented"], float(content["time"]), _results(content, path.parent))
            )
        except _MALFORMED as error:
            what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise ValueError(f"{path}: is not what a run writes ({what})") from error
    return max(found, key=lambda entry: entry[:2])[2] if found else None


def _results(content: dict, folder: Path) -> Results:
    classes = [str(name) for name in content["classes"]]
    palette = [tuple(int(value) % 256 for value in colour) for colour in content["palette"]]
    confusion = np.array(content["confusion"], dtype=np.int64)
    if confusion.shape != (len(classes),) * 2 or [len(c) for c in palette] != [3] * len(classes):
        raise ValueError("classes, palette and confusion do not fit each other")
    cost, counts = content["cost"], ("parameters", "module_multiply_adds", "all_multiply_adds")
    return Results(
        source=str(content["source"]),
        images=int(content["images"]),
        trained="{config}: {head} on {backbone}, {dataset}".format(**content),
        classes=classes,
        palette=palette,
        confusion=confusion,
        cost=cost and {name: int(cost[name]) for name in counts},
        size=cost and tuple(int(n) for n in cost["input_shape"][2:]),
        examples=[_example(entry, folder / PICTURES) for entry in content["examples"]],
    )


def _example(entry: dict, folder: Path) -> tuple[str, str, float | None]:
    """Name, data URI and mean IoU of a picture in `folder`."""
    path = folder / Path(str(entry["file"])).name
    pixels = path.read_bytes() if path.is_file() else b""
    if pixels[:3] != b"\xff\xd8\xff":
        raise ValueError(f"{path} is no JPEG")
    uri = f"data:image/jpeg;base64,{base64.b64encode(pixels).decode()}"
    return str(entry["name"]), uri, None if entry["miou"] is None else float(entry["miou"])

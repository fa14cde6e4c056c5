"""A run, read from its work directory: logs, results and pictures of training and testing.

Its files are read as text, JSON or bytes; nothing is executed, and no model or dataset is built.
"""

import ast
import base64
import json
import math
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mmseg_ext.checkpoint.files import best_checkpoint
from mmseg_ext.errors import format_error
from mmseg_ext.reports.curves import Curve, read_scalars
from mmseg_ext.reports.records import read_object, read_records
from mmseg_ext.reports.results_hook import PICTURES, RESULTS, TYPICAL
from mmseg_ext.reports.scores import OBJECT_SCORES, class_scores, mean_of_known

SCALARS = "vis_data/scalars.json"
COST = "cost.json"  # parameters and multiply-adds
# Top-level entries of a resolved config that a repetition of an experiment may change.
_OF_A_REPETITION = {"work_dir", "experiment_name", "fold", "launcher", "load_from", "randomness"}
_OF_A_REPETITION |= {"resume", "seed"}
_FOLD = re.compile(r"fold[-_ ]?\d+", re.IGNORECASE)  # fold3 in the name of a list


@dataclass(eq=False)  # arrays have no truth value
class Results:
    """One validation or test.

    `trained` names config, head, backbone and dataset. `confusion` (classes, classes) counts pixels
    by truth (rows) and prediction. `examples` have a name, a kind, a picture as data URI, and the
    shares `miou` and `wrong`, NaN if not known. `objects` are the scores of each `ObjectMetric`, 0
    to 1, by its prefix.
    """

    source: str
    images: int
    trained: str
    classes: list[str]
    palette: list[tuple[int, int, int]]
    confusion: np.ndarray
    examples: list[dict[str, Any]]
    ignore_index: int = 255
    objects: dict[str, dict[str, float]] = field(default_factory=dict)
    nan_to_num: float | None = None
    split: str = ""  # the folder or list of the images; '' of version 1.0.0

    @property
    def images_of(self) -> str:
        """The images as '8 images of val'; equal for the folds of an experiment."""
        name = _FOLD.sub("fold", self.split)
        count = "" if name != self.split else f"{self.images} "
        return f"{count}images of {Path(name).name}" if name else f"{self.images} images"

    @cached_property
    def scores(self) -> dict[str, np.ndarray]:
        """IoU, Dice, precision and recall of each class, (classes,), as in the log."""
        return class_scores(self.confusion, self.ignore_index, self.nan_to_num)

    @property
    def iou(self) -> np.ndarray:
        return self.scores["IoU"]

    @cached_property
    def miou(self) -> float:
        return float(mean_of_known(self.iou))

    @cached_property
    def class_shares(self) -> np.ndarray:
        """Share of all pixels that each class has in the truth, (classes,)."""
        return self.confusion.sum(1) / max(self.confusion.sum(), 1)

    @property
    def pixel_accuracy(self) -> float:
        return float(self.confusion.trace() / max(self.confusion.sum(), 1))


@dataclass(eq=False)
class Run:
    """A run; `results` is None before the first validation, `notes` name what is missing.

    `augmented` are the newest results with test-time augmentation, next to `results` without it.

    `seconds` is the time between the start of the training and its end, or its last checkpoint,
    summed over the starts of the run. Version 1.0.0 recorded no times: a start then counts as 0.
    `preview` is a data URI of a project's images. `config_file` is the resolved config, with the
    options of the training, `first_config` the text of the config of its first start,
    `checkpoint` the best checkpoint, else the last, and `next_commands` what to do with both.
    """

    name: str
    config: str
    environment: dict[str, str]
    curves: dict[str, Curve]
    results: Results | None
    augmented: Results | None = None
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    preview: str = ""
    config_file: Path | None = None
    checkpoint: Path | None = None
    cost: dict[str, str] = field(default_factory=dict)
    first_config: str = ""
    next_commands: list[str] = field(default_factory=list)

    @property
    def training(self) -> dict[str, str]:
        """Time, learning rate and size, as the page shows them."""
        facts = {}
        validated = self.curves.get("mIoU", {})  # with the time of an image
        times = [t for step, t in self.curves.get("time", {}).items() if step not in validated]
        if times:
            seconds = float(np.median(times))
            facts["minutes per iteration"] = f"{seconds / 60:.2g} ({seconds:.3g} s)"
        rates = self.curves.get("lr")
        if rates:
            facts["highest learning rate"] = f"{max(rates.values()):.3g}"
        return facts | self.cost

    @cached_property
    def experiment(self) -> str:
        """The part of the config that repetitions share: all but seed, fold and folders.

        Nothing is executed. A run without a config repeats no other one.
        """
        if not self.config:
            return f"run {id(self)}"
        try:
            settings, first = _assignments(self.config), _assignments(self.first_config)
        except (SyntaxError, ValueError):  # of another program
            return self.config
        folder = settings.get("work_dir")
        folder = f"{folder.value}/" if isinstance(folder, ast.Constant) else ""
        kept = []
        for name, value in settings.items():
            if name in _OF_A_REPETITION:
                continue
            part: Any
            for part in ast.walk(value):  # such as the path of the label maps
                text = getattr(part, "value", None)
                if isinstance(text, str) and folder:
                    part.value = text.removeprefix(folder)
            kept.append(f"{name} = {ast.unparse(value)}")
        resumes = first.get("resume")
        if "load_from" in first and not (isinstance(resumes, ast.Constant) and resumes.value):
            kept.append(f"load_from = {ast.unparse(first['load_from'])}")  # the first weights
        return _FOLD.sub("fold", "\n".join(kept))

    @property
    def title(self) -> str:
        return self.results.trained if self.results else self.name

    @property
    def progress(self) -> str:
        """Return when the mIoU of the validations, in percent, stopped rising; '' before three."""
        scores: Curve = {}
        for step, score in self.curves.get("mIoU", {}).items():
            if math.isfinite(score):
                scores[step] = score
        if len(scores) < 3:
            return ""
        best = max(scores, key=lambda step: scores[step])
        close = next(step for step, score in scores.items() if score > scores[best] - 1)
        line = f"The highest mIoU of {len(scores)} validations is {scores[best]:.1f} % at {best:,}"
        if close == max(scores):
            return f"{line} iterations, and the score was still rising."
        return f"{line} iterations; after {close:,} it rose by less than a point."

    @property
    def iterations(self) -> int:
        return max((max(curve) for curve in self.curves.values() if curve), default=0)


def _assignments(text: str) -> dict[str, ast.expr]:
    """Return the values that a config assigns to its top-level names."""
    found = {}
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            found[statement.targets[0].id] = statement.value
    return found


def read_run(work_dir: Path) -> Run:
    """Read a work directory.

    Raises:
        ValueError: if it is no folder, or contains no run, or results that cannot be read.
    """
    todo = "pass the work directory of one run, such as work_dirs/CONFIG"
    if not work_dir.is_dir():
        what = "is a file" if work_dir.exists() else "does not exist"
        raise ValueError(f"{work_dir}: {what}; {todo}")
    notes: list[str] = []
    folders, records = _log_folders(work_dir)
    curves = read_curves(work_dir, notes)
    folder = work_dir.resolve()
    name, preview = folder.name, ""
    if folder.name == "work_dir" and (folder.parent / "config.py").is_file():  # of a project
        name = folder.parent.name
        picture = folder.parent / "preview.png"
        if picture.is_file():
            preview = data_uri(picture.read_bytes(), "png")
    results, augmented = _latest_results(folders, name, notes)
    if not curves and results is None:
        log = _newest(folders, SCALARS) or next(reversed(records), None)
        if log is None:
            raise ValueError(f"{work_dir}: has no TIME/{SCALARS} or TIME/{RESULTS}; {todo}")
        raise ValueError(
            f"{log}: contains no logged values, and no validation or test wrote {RESULTS}; train "
            "longer, or set a shorter default_hooks.logger.interval"
        )
    starts, seconds = [*records.values()], 0.0
    for record in starts:
        if "started" in record and "ended" in record:
            begin = datetime.fromisoformat(record["started"])
            seconds += (datetime.fromisoformat(record["ended"]) - begin).total_seconds()
    environment = _facts(starts[-1] if starts else {})
    if results is None:
        notes.append(
            f"{work_dir}: no validation or test wrote {RESULTS}; for classes, confusion and images "
            f"run mmseg-ext report --evaluate {shlex.quote(str(work_dir))}"
        )
    # mmengine's own Runner writes no run.json, and its config next to the scalars.
    config = _newest(folders, "config.py") or _newest(folders, "vis_data/config.py")
    file, checkpoint = None if config is None else config.resolve(), best_checkpoint(folder)
    cost = _newest(folders, COST)
    begins = bool(starts) and starts[0].get("start_iteration") == 0  # else of another folder
    first = next(iter(records)) / "config.py" if begins else None
    return Run(
        name=name,
        config="" if config is None else config.read_text(errors="replace"),
        environment=environment,
        curves=curves,
        results=results,
        augmented=augmented,
        seconds=seconds,
        notes=notes,
        preview=preview,
        config_file=file,
        checkpoint=checkpoint,
        cost={} if cost is None else _facts(read_object(cost)),
        first_config=first.read_text(errors="replace") if first and first.is_file() else "",
        next_commands=next_commands(file, checkpoint, folder) if file and checkpoint else [],
    )


def next_commands(
    config: Path, checkpoint: Path, work_dir: Path, is_segmentor: bool = True
) -> list[str]:
    """Return the commands that use a trained model, with absolute paths as a shell reads them."""
    model = shlex.join([str(config), str(checkpoint)])
    report = f"mmseg-ext report {shlex.quote(str(work_dir))}"
    commands = [f"mmseg-ext test {model}", report]
    if is_segmentor:
        commands += [f"mmseg-ext image_demo IMAGE {model}", f"mmseg-ext export {model}"]
    return commands


def read_curves(work_dir: Path, notes: list[str]) -> dict[str, Curve]:
    """Return every scalar of a run; a resumed run replaces the values of the steps it repeats.

    `notes` gets a line for what a file lacks.
    """
    merged: dict[str, Curve] = {}
    folders, records = _log_folders(work_dir)
    for folder in folders:
        path = folder / SCALARS
        if not path.is_file():
            continue
        begin = records.get(folder, {}).get("start_iteration")  # None of mmengine's own Runner
        curves, found = read_scalars(path.read_text(errors="replace"), begin or 0)
        notes += [f"{path}: {note}" for note in found]
        for curve in merged.values():  # of a run that resumed an earlier checkpoint
            for step in list(curve):
                if begin is not None and step > begin:
                    del curve[step]
        for name, curve in curves.items():
            merged.setdefault(name, {}).update(curve)
    return {name: dict(sorted(curve.items())) for name, curve in merged.items()}


def _log_folders(work_dir: Path) -> tuple[list[Path], dict[Path, dict[str, Any]]]:
    """Return the log folders of the newest training and its tests, and the records of its starts.

    Both are in the order of time. A training that starts at iteration 0 replaces what an earlier
    one left in the same folder. Without such a record, as of mmengine's own Runner, all log folders
    belong to one run.
    """
    records = read_records(work_dir)
    begins = [log.name for log, one in records.items() if one.get("start_iteration") == 0]
    begin = begins[-1] if begins else ""
    folders = [path for path in work_dir.glob("*") if path.is_dir() and path.name >= begin]
    return sorted(folders), {log: one for log, one in records.items() if log.name >= begin}


def _newest(folders: Sequence[Path], name: str) -> Path | None:
    """Return the file of this name in the last folder that has one."""
    return next((log / name for log in reversed(folders) if (log / name).is_file()), None)


def _facts(record: dict[str, Any]) -> dict[str, str]:
    """Return the entries of a record, the versions among them, as texts."""
    facts = {**record, **record.get("versions", {})}
    facts.pop("versions", None)
    texts = {}
    for name, value in facts.items():
        if isinstance(value, dict):
            value = [f"{key}={part}" for key, part in value.items()]
        texts[name] = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return texts


def _latest_results(
    folders: Iterable[Path], name: str, notes: list[str]
) -> tuple[Results | None, Results | None]:
    """Return the newest results of log folders without and with test-time augmentation.

    If there are only results with it, they are the first.

    `name` replaces "config", which every project's config is called. `notes` gets a line for each
    picture of the first that cannot be read.
    """
    found: dict[bool, tuple[float, Results, list[str]]] = {}
    for path in (folder / RESULTS for folder in folders):
        if not path.is_file():
            continue
        try:
            content = json.loads(path.read_text())
            if content["config"] == "config":
                content["config"] = name
            written = float(content["time"])
            other = found.get(bool(content["augmented"]))
            results, missing = _results(content, path.parent / PICTURES)
            if other is None or other[0] <= written:
                found[bool(content["augmented"])] = written, results, missing
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            what = format_error(error)
            raise ValueError(f"{path}: is not what a run writes ({what}); delete it") from error
    if not found:
        return None, None
    _, first, missing = found[min(found)]
    notes += missing
    return first, found[True][1] if len(found) > 1 else None


def data_uri(picture: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"


def _results(content: dict, pictures: Path) -> tuple[Results, list[str]]:
    """Return the results of a file, and a note for each picture that cannot be read."""
    objects, nan_to_num = content.get("objects", {}), content.get("nan_to_num")
    if "F1" in objects:  # up to 1.1.0, of one metric
        objects = {"objects": objects}
    classes = [str(name) for name in content["classes"]]
    palette = [(int(red), int(green), int(blue)) for red, green, blue in content["palette"]]
    confusion = np.array(content["confusion"], dtype=np.int64)
    if len(palette) < len(classes) or confusion.shape != (len(classes), len(classes)):
        size = "x".join(map(str, confusion.shape))
        raise ValueError(
            f"{len(classes)} classes, {len(palette)} colors, and a confusion matrix of {size}"
        )
    examples, notes = [], []
    for entry in content["examples"]:
        picture = pictures / Path(str(entry["file"])).name
        try:
            uri = data_uri(picture.read_bytes(), "jpeg")
        except OSError as error:
            notes.append(f"{picture}: is left out ({error.strerror}); test again to write it")
            continue
        example = {"name": str(entry["name"]), "kind": entry.get("kind", TYPICAL), "picture": uri}
        for key in ("miou", "wrong"):  # 1.0.0 wrote neither a kind nor `wrong`
            share = entry.get(key)
            example[key] = math.nan if share is None else float(share)
        examples.append(example)
    results = Results(
        source=str(content["source"]),
        images=int(content["images"]),
        trained="{config}: {head} on {backbone}, {dataset}".format(**content),
        classes=classes,
        palette=palette,
        confusion=confusion,
        examples=examples,
        ignore_index=int(content.get("ignore_index", 255)),  # 1.0.0 wrote none
        objects={
            prefix: {name: float(scores[name]) for name in OBJECT_SCORES}
            for prefix, scores in objects.items()
        },
        nan_to_num=None if nan_to_num is None else float(nan_to_num),
        split=str(content.get("split", "")),
    )
    return results, notes

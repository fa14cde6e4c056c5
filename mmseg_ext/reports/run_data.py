"""What a report shows of a run: read from its work directory, and measured with its weights."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmseg.registry import DATASETS
from PIL import Image
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from mmseg_ext.cost.model_cost import Cost, count_cost, machine, measure_cost
from mmseg_ext.datasets.metainfo import unwrapped
from mmseg_ext.engine.load_trained import load_trained
from mmseg_ext.reports.confusion import class_iou, confusion_matrix
from mmseg_ext.reports.curves import Curve, read_scalars
from mmseg_ext.reports.run_config import read_config, require_known_types

_SHOWN_SIDE = 320  # pixels of an example's longer side


@dataclass
class Example:
    """One image: the picture (H, W, 3), truth and prediction (H, W), and its mean IoU."""

    name: str
    rank: str
    miou: float
    image: np.ndarray
    truth: np.ndarray
    prediction: np.ndarray


@dataclass
class Run:
    """A run. `confusion` (classes, classes) counts pixels by truth (rows) and prediction."""

    name: str
    config: Config
    checkpoint: Path
    environment: dict[str, str]
    curves: dict[str, Curve]
    classes: Sequence[str]
    palette: Sequence[Sequence[int]]
    images: int
    confusion: np.ndarray
    examples: list[Example]
    cost: Cost
    machine: str
    notes: list[str] = field(default_factory=list)  # what could not be read

    @property
    def iou(self) -> np.ndarray:
        """IoU of each class, (classes,); NaN for a class that is neither there nor predicted."""
        return class_iou(self.confusion)

    @property
    def miou(self) -> float:
        return float(np.nanmean(self.iou))

    @property
    def pixel_accuracy(self) -> float:
        return float(self.confusion.trace() / self.confusion.sum())


# --- the work directory -------------------------------------------------------------------------


def find_config(work_dir: Path) -> Path:
    """The config of a run's training, as it was written beside the scalars.

    The copy in the work directory itself is taken where there are none: a later test overwrites
    it, with the wrapped model and the pipeline of `--tta` if that was asked for.

    Raises:
        ValueError: where there is none, or no single one.
    """
    trained = [path.with_name("config.py") for path in _scalar_files(work_dir)]
    trained = [path for path in trained if path.is_file()]
    if trained:
        return trained[-1]
    configs = sorted(work_dir.glob("*.py"))
    if len(configs) != 1:
        raise ValueError(f"{work_dir} must hold the config of one run, found {len(configs)} .py")
    return configs[0]


def _scalar_files(work_dir: Path) -> list[Path]:
    """Those of a run's trainings, in order; a test leaves none or an empty one."""
    paths = sorted(work_dir.glob("*/vis_data/scalars.json"))
    return [path for path in paths if path.stat().st_size]


def find_checkpoint(work_dir: Path) -> Path:
    """The weights of a run: the last checkpoint, or else the newest.

    Raises:
        ValueError: where there is none.
    """
    pointer = work_dir / "last_checkpoint"
    if pointer.is_file():
        name = Path(pointer.read_text(errors="replace").strip()).name  # the folder may have moved
        path = work_dir / name
        if path.is_file():
            return path
    found = sorted(work_dir.glob("*.pth"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise ValueError(f"{work_dir} holds no checkpoint")
    return found[-1]


def read_curves(work_dir: Path, warn: Callable[[str], None] | None = None) -> dict[str, Curve]:
    """Every scalar of a run; where training was resumed, the later of two values of a step.

    A file that holds none is left out; `warn` is called with what is left out.
    """
    merged: dict[str, dict[int, float]] = {}
    for path in _scalar_files(work_dir):
        try:
            curves = read_scalars(path, warn)
        except ValueError as error:
            if warn is not None:
                warn(str(error))
            continue
        for name, curve in curves.items():
            values = zip(curve.steps, curve.values, strict=True)
            merged.setdefault(name, {}).update(values)
    return {
        name: Curve(sorted(points), [points[step] for step in sorted(points)])
        for name, points in merged.items()
    }


def read_environment(work_dir: Path) -> dict[str, str]:
    """What the last training's `run.json` says of the software and the machine; empty without."""
    for path in sorted(work_dir.glob("*/run.json"), reverse=True):
        try:
            record = json.loads(path.read_text(encoding="utf-8", errors="replace"))
            return {
                "command": " ".join(map(str, record["command"])),
                "commit": str(record["git_commit"]),
                **{name: str(version) for name, version in record["versions"].items()},
                "devices": ", ".join(map(str, record["devices"])),
                "processes": str(record["world_size"]),
                "seed": str(record["seed"]),
            }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return {}


# --- with the weights ---------------------------------------------------------------------------


def read_run(
    work_dir: Path,
    limit: int | None = None,
    examples: int = 2,
    device: str = "cpu",
    options: dict | None = None,
) -> Run:
    """Read a work directory and test its weights on the run's test data, single scale.

    Where the test data come without label maps, as a server's do, the validation data are taken.
    Nothing in the directory is executed: the config is read as data.

    Args:
        limit: the first images only.
        examples: how many images for each of best, median and worst.
        options: merged into the config, as `--cfg-options` are.

    Raises:
        ValueError: for a directory without config or checkpoint, or test data without images, where
            neither test nor validation data have label maps, and for a config that is no data or
            names types that are not registered.
    """
    path = find_config(work_dir)
    config = read_config(path)
    config.merge_from_dict(options or {})
    data = labelled_data(config)
    require_known_types([config.to_dict()["model"], data.to_dict()], str(path))
    init_default_scope("mmseg")
    notes: list[str] = []
    checkpoint = find_checkpoint(work_dir)
    model = load_trained(config, checkpoint)[0].to(device)
    dataset = DATASETS.build(data)
    count = len(dataset) if limit is None else min(limit, len(dataset))
    if not count:
        raise ValueError(f"the test data of {work_dir} has no image")
    classes = dataset.metainfo["classes"]
    total, scores = np.zeros((len(classes),) * 2, np.int64), []
    errors = Console(stderr=True)
    indices = track(range(count), "testing", console=errors, disable=not errors.is_terminal)
    for i, (truth, prediction) in enumerate(_predictions(model, dataset, indices)):
        matrix = confusion_matrix(truth, prediction, len(classes), dataset.ignore_index)
        total += matrix
        scores.append((float(np.nanmean(class_iou(matrix))) if matrix.any() else np.nan, i))
    return Run(
        name=work_dir.resolve().name,
        config=config,
        checkpoint=checkpoint,
        environment=read_environment(work_dir),
        curves=read_curves(work_dir, notes.append),
        classes=classes,
        palette=dataset.metainfo["palette"],
        images=count,
        confusion=total,
        examples=_examples(model, dataset, scores, examples),
        cost=_cost(work_dir.resolve().name, model, dataset[0]),
        machine=machine(device),
        notes=notes,
    )


def labelled_data(config: Config) -> dict:
    """The settings of the test data, or of the validation data where those load no label maps.

    Raises:
        ValueError: where neither do.
    """
    for name in ("test_dataloader", "val_dataloader"):
        settings = (config.get(name) or {}).get("dataset")
        pipeline = unwrapped(settings).get("pipeline", []) if settings else []
        if any(transform["type"].endswith("LoadAnnotations") for transform in pipeline):
            return settings
    raise ValueError("neither test_dataloader nor val_dataloader loads label maps to compare with")


def _batch(sample: dict) -> dict:
    return {"inputs": [sample["inputs"]], "data_samples": [sample["data_samples"]]}


def _predictions(
    model: nn.Module, dataset, indices: Iterable[int]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Truth and prediction (H, W) of images."""
    for i in indices:
        with torch.no_grad():
            result = model.test_step(_batch(dataset[i]))[0]
        truth, prediction = result.gt_sem_seg.data[0], result.pred_sem_seg.data[0]
        yield truth.cpu().numpy(), prediction.cpu().numpy()


def ranked(scores: Sequence[tuple[float, int]], count: int) -> list[tuple[str, int]]:
    """The best, median and worst `count` of (score, index), each index once; NaN is left out."""
    order = sorted((s for s in scores if s[0] == s[0]), key=lambda s: (-s[0], s[1]))
    middle = max(0, (len(order) - count) // 2)
    parts = (
        ("best", order[:count]),
        ("median", order[middle : middle + count]),
        ("worst", order[::-1][:count]),
    )
    seen: set[int] = set()
    chosen = []
    for rank, part in parts:
        for _, index in part:
            if index not in seen:
                seen.add(index)
                chosen.append((rank, index))
    return chosen


def _examples(model: nn.Module, dataset, scores: list, count: int) -> list[Example]:
    by_index = {index: score for score, index in scores}
    chosen = ranked(scores, count)
    examples = []
    labels = _predictions(model, dataset, [index for _, index in chosen])
    for (rank, index), (truth, prediction) in zip(chosen, labels, strict=True):
        path = dataset.get_data_info(index)["img_path"]
        height, width = truth.shape
        scale = min(1.0, _SHOWN_SIDE / max(height, width))
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        with Image.open(path) as picture:
            image = np.asarray(picture.convert("RGB").resize(size, Image.Resampling.LANCZOS))
        small = [
            np.asarray(Image.fromarray(x.astype(np.int32)).resize(size, Image.Resampling.NEAREST))
            for x in (truth, prediction)
        ]
        examples.append(Example(Path(path).name, rank, by_index[index], image, *small))
    return examples


def _cost(name: str, model: nn.Module, sample: dict) -> Cost:
    """Of one forward of one image."""
    inputs: Tensor = model.data_preprocessor(_batch(sample), False)["inputs"]
    cost = count_cost(name, model, inputs)
    with contextlib.suppress(RuntimeError):  # the peak can be read on Linux and on GPUs only
        measure_cost(cost, model, inputs)
    return cost

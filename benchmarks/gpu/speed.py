"""The stages that measure time and memory, one after the other."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from mmseg.models import EncoderDecoder
from torch import nn

from benchmarks import class_maps
from benchmarks.gpu.stage import Row, Run, attempt, measure
from mmseg_ext import Predictor, get_model
from mmseg_ext.comparison.timing import MEBI, Result
from mmseg_ext.inference.export import (
    ExportedSegmentor,
    WholeImageSegmentor,
    random_images,
    relative_difference,
    write_onnx,
)
from mmseg_ext.inference.models import DEFAULT
from mmseg_ext.segmentors import StripEncoderDecoder, score_maps, strip_losses


def number(value: float) -> str:
    """Return a number with three digits."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def strips(run: Run) -> Iterator[Row]:
    """Compare class maps in strips of three sizes with mmsegmentation's."""
    cases = class_maps.CASES
    if run.quick:
        cases = {f"{n} images": class_maps.Case(5, (32, 48), batch=n) for n in (0, 2)}
    for name, case in cases.items():
        if run.left() < 3:
            return
        for mib in (16, 64, 256)[: 1 if run.quick else 3]:
            yield attempt({"case": name, "strips of MiB": mib}, compare_strips, run, case, mib)


def compare_strips(run: Run, case: class_maps.Case, mib: int) -> Row:
    score_maps.STRIP_BYTES_GPU = strip_losses.LOSS_STRIP_BYTES_GPU = mib * MEBI
    kinds = {"stock": EncoderDecoder, "strips": StripEncoderDecoder}
    steps = {name: class_maps.step(case, kind, run.device) for name, kind in kinds.items()}
    costs = measure(run, steps)
    row: Row = {}
    for name, cost in costs.items():
        measured = isinstance(cost, Result)
        row[f"{name}, ms"] = number(cost.ms) if measured else cost
        row[f"{name}, MiB"] = number(cost.mib) if measured else ""
    stock, ours = costs["stock"], costs["strips"]
    if isinstance(stock, Result) and isinstance(ours, Result):
        row["stock / strips"] = number(stock.ms / ours.ms)
        theirs, mine = (step() for step in steps.values())
        if case.batch:
            errors = [relative_difference(*pair) for pair in zip(mine, theirs, strict=True)]
            row["differs"] = f"loss {errors[0]:.0e}, gradient {errors[1]:.0e}"
        else:
            different = (theirs[0] != mine[0]).sum().item()
            row["differs"] = f"{different:,} of {mine[0].numel():,} labels"
    return row


def inference(run: Run) -> Iterator[Row]:
    """Measure the shipped model: images per second, tiles, and its export to ONNX."""
    torch.set_float32_matmul_precision("high")
    model = get_model(DEFAULT, pretrained=True, device=run.device)
    side, count = (32, 2) if run.quick else (256, 64)
    images = [*np.random.RandomState(0).randint(0, 256, (count, side, side, 3), np.uint8)]
    ways: dict[str, dict] = {
        "batch 1, fast": dict(fast=True),
        "batch 16, fast": dict(batch_size=16, fast=True),
        "batch 1": {},
        "batch 16": dict(batch_size=16),
        "batch 1, amp": dict(amp=True),
        "batch 16, amp": dict(batch_size=16, amp=True),
        "batch 16, fast, amp": dict(batch_size=16, fast=True, amp=True),
    }
    tiles: dict[str, dict] = {
        "tiles, fast": dict(fast=True),
        "tiles": {},
        "tiles, fast, amp": dict(fast=True, amp=True),
        "tiles, amp": dict(amp=True),
    }
    plain = [result.labels for result in Predictor(model)(images)]
    for way, options in ways.items():
        row = {"model": DEFAULT, "way": way, "size": f"{side}x{side}"}
        reason = run.why_not("bfloat16" if "amp" in options else "float32")
        if reason:
            yield {**row, "skipped": reason}
        else:
            yield attempt(row, predict_row, run, model, images, options, np.stack(plain))
    height, width = (96, 128) if run.quick else (8000, 10_000)
    tile = 64 if run.quick else 1024
    big = np.random.RandomState(1).randint(0, 256, (height, width, 3), np.uint8)
    for way, options in tiles.items():
        row = {"way": way, "image": f"{width}x{height}", "tile": tile}
        reason = run.why_not("bfloat16" if "amp" in options else "float32")
        if reason:
            yield {**row, "skipped": reason}
        else:
            settings = dict(tile=tile, batch_size=8, **options)
            yield attempt(row, tile_row, run, model, big, settings)
    row = {"way": f"export of the model on {run.device}"}
    yield attempt(row, export_row, model, (32, 48) if run.quick else (256, 256))


def predict_row(
    run: Run, model: nn.Module, images: list, options: dict, expected: np.ndarray
) -> Row:
    predict = Predictor(model, **options)
    for _ in range(3):  # graphs are captured at the third use of a size
        predict(images[:16])
    cost = measure(run._replace(quick=True), {"images": lambda: predict(images)})["images"]
    if not isinstance(cost, Result):
        return {"failed": cost}
    labels = np.stack([result.labels for result in predict(images)])
    row: Row = {"images per s": number(1e3 * len(images) / cost.ms), "MiB": number(cost.mib)}
    return {**row, "same labels as one by one": f"{(labels == expected).mean():.2%}"}


def tile_row(run: Run, model: nn.Module, image: np.ndarray, options: dict) -> Row:
    predict = Predictor(model, **options)
    predict(image[: len(image) // 4])  # the first batches choose kernels and capture graphs
    if run.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    labels = predict(image).labels
    seconds = time.perf_counter() - begin
    memory = f"{torch.cuda.max_memory_allocated() / MEBI:.0f}" if run.on_gpu else ""
    row: Row = {"s": f"{seconds:.1f}", "megapixels per s": number(labels.size / 1e6 / seconds)}
    return {**row, "peak MiB": memory}


def export_row(model: nn.Module, size: tuple[int, int]) -> Row:
    """Export the model from its device, and compare the file with it on the CPU."""
    segmentor = WholeImageSegmentor(model)
    images = random_images(size)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder, "model.onnx")
        write_onnx(segmentor, path, size)
        scores = ExportedSegmentor(path)(images)
        difference = relative_difference(scores, segmentor(images))
    return {"difference": f"{difference:.1e}"}

"""The stages that measure time and memory, one after the other."""

import copy
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from mmseg.models import EncoderDecoder
from torch import Tensor, nn

from benchmarks import class_maps, external_attention, lambda_layer
from benchmarks.docs_tables import results as stored_results
from benchmarks.gpu.stage import Row, Run, attempt, measure, time_limit
from benchmarks.gpu.training import build_wrapper, random_batch, set_precision, training_config
from benchmarks.reference import Plain
from benchmarks.reference.manhattan_attention import plain_manhattan_attention
from benchmarks.tables import MEBI, STEPS, Result, in_published_order
from mmseg_ext import Predictor, get_model, register_all_modules
from mmseg_ext.cost.step_memory import build_training_model
from mmseg_ext.inference.export import (
    ExportedSegmentor,
    WholeImageSegmentor,
    random_images,
    relative_difference,
    write_onnx,
)
from mmseg_ext.inference.models import DEFAULT
from mmseg_ext.layers import ManhattanAttention, ReAttention
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


class PlainManhattan(Plain):
    """Manhattan attention by its equations."""

    def forward(self, x: Tensor) -> Tensor:
        return plain_manhattan_attention(self.layer, x)


def layer_cases(run: Run) -> Iterator[tuple[str, dict[str, nn.Module], Tensor]]:
    """Yield the ways to compute each layer, at sizes of 512x512 crops, with an input."""
    batch, scale = (1, 8) if run.quick else (4, 1)
    channels, side = 512 // scale, 64 // scale
    names = ("EA, composed", "EA, published order", "self-attention")
    names += ("self-attention, stored weights", "dual attention (DA)")
    ways = {name: external_attention.BLOCKS[name].build(channels) for name in names}
    yield "external attention", ways, torch.randn(batch, channels, side, side)
    for form, width, heads, side in (("full", 256, 8, 32), ("decomposed", 64, 4, 128)):
        layer = ManhattanAttention(width, heads, decomposed=form == "decomposed")
        x = torch.randn(batch, side // scale, side // scale, width)
        yield f"Manhattan, {form}", {"ours": layer, "plain": PlainManhattan(layer)}, x
    layer, tokens = ReAttention(384, 12), 1025 // scale
    ways = {"blocks": layer, "plain": in_published_order(copy.deepcopy(layer))}
    yield "re-attention", ways, torch.randn(batch, tokens, 384)
    if not run.quick:
        for case in (*lambda_layer.local(), *lambda_layer.global_context()):
            x = torch.cat([case.x] * batch)
            yield f"lambda, {case.name}", dict(case.modules), x


def layers(run: Run) -> Iterator[Row]:
    """Measure time and memory of each layer in its forms."""
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    for name, ways, x in layer_cases(run):
        x = x.to(run.device)
        modules = {way: module.to(run.device) for way, module in ways.items()}
        for precision in ("float32", "bfloat16"):
            for mode in STEPS:
                if run.left() < 4:
                    return
                reason = run.why_not(precision)
                if reason:
                    yield {"layer": name, "mode": f"{mode}, {precision}", "skipped": reason}
                    continue
                yield from measure_layer(run, name, modules, x, mode, precision)


def measure_layer(run, name, modules, x, mode, precision) -> Iterator[Row]:
    half = torch.autocast(x.device.type, torch.bfloat16, enabled=precision == "bfloat16")
    steps = {way: half(STEPS[mode](module, x)) for way, module in modules.items()}
    first = None
    for way, cost in measure(run, steps).items():
        title = {"layer": name, "mode": f"{mode}, {precision}", "way": way}
        if not isinstance(cost, Result):
            yield {**title, "failed": cost}
            continue
        first = first or cost.ms
        row: Row = {"ms": number(cost.ms), "over the first": number(cost.ms / first)}
        yield {**title, **row, "MiB": number(cost.mib)}


CONFIGS = ("ea_r101_ade20k_160k", "fpn_rmt_small_ade20k_80k", "danet_r101_ade20k_160k")
CONFIGS += ("upernet_deepvit_s_ade20k_160k", "upernet_lambda_r101_ade20k_160k")
PLAIN = ("TF32", "bfloat16")
STOCK = ("TF32, EncoderDecoder", "bfloat16, EncoderDecoder")


def variants(quick: bool) -> list[tuple[str, str]]:
    """Return configs with variants, the most important ones first."""
    if quick:
        return [("ea_r18_shapes", variant) for variant in PLAIN]
    groups = [(CONFIGS, PLAIN[:1]), (CONFIGS[:1], PLAIN + STOCK), (CONFIGS, PLAIN)]
    groups += [(CONFIGS, ("float32",)), (CONFIGS, STOCK)]
    return [*dict.fromkeys((name, v) for names, found in groups for v in found for name in names)]


def steps(run: Run) -> Iterator[Row]:
    """Measure training steps of five configs: images per second and peak memory."""
    register_all_modules()
    torch.backends.cudnn.benchmark = True
    for name, variant in variants(run.quick):
        title: Row = {"config": name, "variant": variant}
        left, reason = run.left(), run.why_not(variant.partition(",")[0])
        if not run.quick and left < 10:
            reason = f"{left:.0f} s are left"
        if reason:
            yield {**title, "skipped": reason}
            continue
        with time_limit(min(left - 5, 30)):
            row = attempt(title, training_row, run, name, variant)
        yield row


def training_row(run: Run, name: str, variant: str) -> Row:
    """Measure the training step of a config on random images."""
    precision = variant.partition(",")[0]
    set_precision(precision)
    config = training_config(name, "EncoderDecoder" in variant, run.quick)
    model = build_training_model(config, torch.device(run.device))
    model.to(run.device)
    wrapper = build_wrapper(model, config, precision == "bfloat16")
    batch = random_batch(config)
    images, step = len(batch["inputs"]), model.train_step
    begin = time.perf_counter()
    step(batch, wrapper)
    first = time.perf_counter() - begin
    cost = measure(run, {"step": lambda: step(batch, wrapper)})["step"]
    if not isinstance(cost, Result):
        return {"failed": cost}
    row: Row = {"images": images, "ms": number(cost.ms)}
    row["images per s"] = number(1e3 * images / cost.ms)
    # The last call of a measurement starts with the allocator's peak reset.
    row["peak GiB"] = f"{torch.cuda.max_memory_allocated() / 2**30:.2f}" if run.on_gpu else ""
    # Computed for strips.
    stored = {} if "," in variant else stored_results("memory").get(name, {})
    computed = stored.get("amp" if variant.startswith("bfloat16") else "float32")
    row["model_cost, GiB"] = f"{computed['total'] / 2**30:.2f}" if computed else ""
    row["first step, s"] = f"{first:.0f}"
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

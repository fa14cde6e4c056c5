"""Train EANet on the embedded dataset, test it, draw its predictions: `make demo`.

`--compare` trains FCN and DANet under the same budget too: `make compare`.
"""

import argparse
import contextlib
import io
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from mmengine.config import Config
from mmseg.datasets import BaseSegDataset
from mmseg.registry import DATASETS

from mmseg_ext.atomic_write import write_text
from mmseg_ext.commands._short_run import Outcome, predict, train_and_test
from mmseg_ext.evaluation.colour_classifier import colour_miou, images_and_labels
from mmseg_ext.reports.curves import plot_curves
from mmseg_ext.reports.html_page import write_report
from mmseg_ext.reports.panels import draw_panels

DEMO_CONFIG = "configs/ea_r18_shapes.py"
COMPARED = {
    "EANet": DEMO_CONFIG,
    "FCN": "configs/fcn_r18_shapes.py",
    "DANet": "configs/danet_r18_shapes.py",
}
REQUIRED_MIOU = 0.70
SHOWN = 8


def build_datasets(config: str, options: dict | None = None) -> tuple[BaseSegDataset, ...]:
    """Training and validation set of a config, without their pipelines."""
    cfg = Config.fromfile(config)
    cfg.merge_from_dict(options or {})
    splits = (cfg.train_dataloader.dataset, cfg.val_dataloader.dataset)
    return tuple(DATASETS.build({**split, "pipeline": []}) for split in splits)


def draw_predictions(outcome: Outcome, val: BaseSegDataset, path: Path) -> None:
    """The first validation images with truth and single-scale prediction, as they come."""
    pairs = [pair for pair, _ in zip(images_and_labels(val), range(SHOWN), strict=False)]
    images, labels = map(list, zip(*pairs, strict=True))
    rows = {"image": images, "truth": labels, "prediction": predict(outcome, images)}
    draw_panels(rows, val.metainfo["classes"], val.metainfo["palette"], path)


def demo(work_dir: Path, options: dict | None = None) -> bool:
    """Train, test, draw, report into `work_dir`; True if the single-scale mIoU is 0.70 or more."""
    start = time.perf_counter()
    print("mmseg_ext demo: EANet on the embedded dataset ShapesDataset")
    train, val = build_datasets(DEMO_CONFIG, options)
    classes = val.metainfo["classes"]
    print(f"  {len(train)} training scenes, {len(val)} others for validation")
    outcome = train_and_test(DEMO_CONFIG, work_dir, options)
    colour = colour_miou(train, val)
    curves, panels = work_dir / "curves.png", work_dir / "predictions.png"
    plot_curves({"EANet": outcome.curves}, curves)
    draw_predictions(outcome, val, panels)
    report = work_dir / "report.html"
    _report([outcome], report, options)
    print(
        f"\nmIoU on the {len(val)} validation scenes, the mean over {len(classes)} classes "
        f"({', '.join(classes)}):\n"
        f"  EANet, single scale             {outcome.miou:.3f}\n"
        f"  EANet, multi-scale and flip     {outcome.miou_tta:.3f}\n"
        f"  each pixel's colour alone       {colour:.3f}\n"
        f"{outcome.iterations} iterations in {outcome.train_seconds:.0f} s, "
        f"{time.perf_counter() - start:.0f} s in all, {torch.get_num_threads()} threads\n"
        f"pictures: {panels}  {curves}\n"
        f"log:      {outcome.log}\n"
        f"report:   {report}"
    )
    if outcome.miou < REQUIRED_MIOU:
        print(f"FAILED: mIoU {outcome.miou:.3f} is below {REQUIRED_MIOU:.2f}")
    return outcome.miou >= REQUIRED_MIOU


def compare(work_dir: Path, options: dict | None = None) -> list[Outcome]:
    """Train each of `COMPARED` under the same budget; a table, curves and one page of all runs."""
    outcomes = {}
    for name, config in COMPARED.items():
        print(f"{name} ({config})", flush=True)
        outcomes[name] = train_and_test(config, work_dir / name.lower(), options)
    table = comparison_table(outcomes)
    write_text(table, work_dir / "compare.md")
    rows = {name: _numbers(outcome) for name, outcome in outcomes.items()}
    write_text(json.dumps(rows, indent=1) + "\n", work_dir / "compare.json")
    plot_curves({name: o.curves for name, o in outcomes.items()}, work_dir / "curves.png")
    _report(list(outcomes.values()), work_dir / "report.html", options)
    print(f"\n{table}\n{work_dir}/compare.md, compare.json, curves.png, report.html")
    return list(outcomes.values())


def _report(outcomes: list[Outcome], path: Path, options: dict | None) -> None:
    with contextlib.redirect_stdout(io.StringIO()):  # the loader's lines
        write_report([outcome.checkpoint.parent for outcome in outcomes], path, options=options)


def comparison_table(outcomes: dict[str, Outcome]) -> str:
    """Markdown, best single-scale mIoU first."""
    ranked = sorted(outcomes.items(), key=lambda item: -item[1].miou)
    lines = [
        "| model | mIoU | mIoU, ms + flip | parameters | iterations | training, s |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {o.miou:.3f} | {o.miou_tta:.3f} | {o.parameters / 1e6:.2f} M "
        f"| {o.iterations} | {o.train_seconds:.0f} |"
        for name, o in ranked
    ]
    return "\n".join(lines) + "\n"


def _numbers(outcome: Outcome) -> dict:
    fields = ("config", "miou", "miou_tta", "parameters", "iterations")
    return {
        **{field: getattr(outcome, field) for field in fields},
        "train_seconds": round(outcome.train_seconds, 1),
        "test_seconds": round(outcome.test_seconds, 1),
    }


def data_root_options(data_root: str) -> dict:
    """Config options that put the datasets of all splits at `data_root`."""
    loaders = ("train_dataloader", "val_dataloader", "test_dataloader")
    return {f"{loader}.dataset.data_root": data_root for loader in loaders}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work-dir", type=Path, default=Path("work_dirs/demo"))
    parser.add_argument("--data-root", help="where the dataset is, or is generated (data/shapes)")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="train FCN and DANet under the same budget too, and write a table",
    )
    args = parser.parse_args(argv)
    if not Path(DEMO_CONFIG).is_file():
        print(
            f"mmseg_ext: there is no {DEMO_CONFIG} here: run it in the repository's folder",
            file=sys.stderr,
        )
        return 1
    options = data_root_options(args.data_root) if args.data_root else None
    try:
        if args.compare:
            return int(not compare(args.work_dir, options))
        return int(not demo(args.work_dir, options))
    except FileExistsError as error:  # another recipe's scenes
        print(f"mmseg_ext: data: {error}", file=sys.stderr)
        return 1

"""Train EANet on the embedded dataset, test it, draw its predictions: `make demo`."""

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path

import torch
from mmcv.image import imread
from mmseg.apis import inference_model
from mmseg.registry import DATASETS

from mmseg_ext.atomic_write import save_figure, write_text
from mmseg_ext.commands import exit_on_error
from mmseg_ext.commands._flags import demo as parser
from mmseg_ext.commands._short_run import Outcome, data_root_options, train_and_test
from mmseg_ext.cost.model_cost import markdown
from mmseg_ext.engine.launch import load_settings
from mmseg_ext.engine.load_trained import load_trained
from mmseg_ext.environment import configs_folder
from mmseg_ext.reports.curves import curves_figure
from mmseg_ext.reports.page import write_report
from mmseg_ext.reports.pictures import draw_panels

DEMO_CONFIG = str(configs_folder() / "ea_r18_shapes.py")
COMPARED = {
    "EANet": DEMO_CONFIG,
    "FCN": str(configs_folder() / "fcn_r18_shapes.py"),
    "DANet": str(configs_folder() / "danet_r18_shapes.py"),
}
REQUIRED_MIOU = 0.70
SHOWN = 8


def demo(work_dir: Path, options: dict | None = None, required: float = REQUIRED_MIOU) -> bool:
    """Train, test, draw and report into `work_dir`; True if the single-scale mIoU is `required`."""
    print("mmseg_ext demo: EANet on the embedded dataset ShapesDataset", flush=True)
    outcome = train_and_test(DEMO_CONFIG, work_dir, options)
    curves, panels = work_dir / "curves.png", work_dir / "predictions.png"
    save_figure(curves_figure({"EANet": outcome.curves}), curves, 130)
    draw_predictions(outcome, options, panels)
    report = work_dir / "report.html"
    write_report([work_dir], report)
    print(
        "\nmIoU on the validation scenes, the mean over the classes, background included:\n"
        f"  EANet, single scale             {outcome.miou:.3f}\n"
        f"  EANet, multi-scale and flip     {outcome.miou_tta:.3f}\n"
        f"{outcome.iterations} iterations in {outcome.seconds:.0f} s, "
        f"{torch.get_num_threads()} threads\n"
        f"pictures: {panels}  {curves}\n"
        f"log:      {outcome.log}\n"
        f"report:   {report}"
    )
    if outcome.miou < required:
        print(f"FAILED: mIoU {outcome.miou:.3f} is below {required:.2f}")
    return outcome.miou >= required


def draw_predictions(outcome: Outcome, options: dict | None, path: Path) -> None:
    """The first validation images with truth and single-scale prediction, as they come."""
    settings = load_settings(outcome.config, options)
    scenes = DATASETS.build({**settings.val_dataloader.dataset, "pipeline": []})
    infos = [scenes.get_data_info(i) for i in range(min(SHOWN, len(scenes)))]
    with contextlib.redirect_stdout(io.StringIO()):  # the loader's lines
        model, _ = load_trained(settings, outcome.checkpoint)
    found = [inference_model(model, info["img_path"]).pred_sem_seg.data[0] for info in infos]
    rows = {
        "image": [imread(info["img_path"], channel_order="rgb") for info in infos],
        "truth": [imread(info["seg_map_path"], "unchanged", backend="pillow") for info in infos],
        "prediction": [labels.cpu().numpy() for labels in found],
    }
    draw_panels(rows, scenes.metainfo["classes"], scenes.metainfo["palette"], path)


def compare(work_dir: Path, options: dict | None = None) -> None:
    """Train each of `COMPARED` under the same budget; a table, curves and one page of all runs."""
    outcomes = {}
    for name, config in COMPARED.items():
        print(f"{name} ({config})", flush=True)
        outcomes[name] = train_and_test(config, work_dir / name.lower(), options)
    table = comparison_table(outcomes)
    write_text(table, work_dir / "compare.md")
    figure = curves_figure({name: outcome.curves for name, outcome in outcomes.items()})
    save_figure(figure, work_dir / "curves.png", 130)
    write_report([o.checkpoint.parent for o in outcomes.values()], work_dir / "report.html")
    print(f"\n{table}\n{work_dir}/compare.md, curves.png, report.html")


def comparison_table(outcomes: dict[str, Outcome]) -> str:
    """Markdown, best single-scale mIoU first."""
    ranked = sorted(outcomes.items(), key=lambda item: -item[1].miou)
    headings = ["model", "mIoU", "mIoU, ms + flip", "parameters", "iterations", "training, s"]
    rows = []
    for name, o in ranked:
        scores = [f"{o.miou:.3f}", f"{o.miou_tta:.3f}", f"{o.parameters / 1e6:.2f} M"]
        rows.append([name, *scores, str(o.iterations), f"{o.seconds:.0f}"])
    return markdown(headings, rows)


@exit_on_error
def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    options = data_root_options(args.data_root) if args.data_root else None
    if args.compare:
        compare(args.work_dir, options)
        return 0
    return int(not demo(args.work_dir, options))

"""The demo: a shortened training reaches its floor, and what it prints is what it measured."""

from pathlib import Path

import pytest
from mmengine.config import Config

from mmseg_ext.commands import _demos
from mmseg_ext.commands._demos import (
    COMPARED,
    DEMO_CONFIG,
    Outcome,
    compare_heads,
    data_root_options,
    segmentation_demo,
    train,
    train_and_test,
)
from mmseg_ext.reports.curves import read_scalars

# Measured: 0.365 (seed 0, one thread). The color of a pixel alone gives 0.16.
ITERATIONS = 400
REQUIRED_MIOU = 0.28


def shortened(root: Path, iterations: int, train: int, val: int) -> dict:
    """Options that shorten the schedule and the dataset, of smaller scenes."""
    loaders = ("train_dataloader", "val_dataloader", "test_dataloader")
    recipe = {"seed": 0, "train": train, "val": val, "size": 96}
    warm_up = max(iterations // 10, 1)
    return {
        **data_root_options(str(root / "shapes")),
        **{f"{loader}.dataset.recipe": recipe for loader in loaders},
        "train_dataloader.dataset.pipeline.2.scale": (96, 96),
        "train_dataloader.dataset.pipeline.3.crop_size": (72, 72),
        "model.data_preprocessor.size": (72, 72),
        "param_scheduler.0.end": warm_up,
        "param_scheduler.1.begin": warm_up,
        "param_scheduler.1.end": iterations,
        "train_cfg.max_iters": iterations,
        "train_cfg.val_interval": iterations,
        "default_hooks.checkpoint.interval": iterations,
        "default_hooks.logger.interval": 2,
    }


def test_a_shortened_demo_reaches_its_floor(tmp_path, capsys):
    options = shortened(tmp_path, ITERATIONS, train=320, val=32)
    assert segmentation_demo(tmp_path, options, required=REQUIRED_MIOU)
    printed = capsys.readouterr().out
    assert f"{ITERATIONS} iterations" in printed and "FAILED" not in printed
    assert f"iteration   300/{ITERATIONS}  loss " in printed
    assert str(tmp_path / "report.html") in printed and (tmp_path / "report.html").is_file()


def curves_of(work_dir: Path) -> dict:
    logs = [p.read_text() for p in work_dir.glob("*/vis_data/scalars.json")]
    (curves,) = (read_scalars(text)[0] for text in logs if '"loss"' in text)
    return curves


def test_one_seed_gives_one_run_and_a_low_miou_fails(tmp_path, monkeypatch, capsys):
    options = shortened(tmp_path, 4, train=24, val=8)
    outcome = train_and_test(DEMO_CONFIG, tmp_path / "run", options)
    curves = curves_of(tmp_path / "run")
    assert outcome.iterations == 4 and curves["loss"].steps == [2, 4]
    # The single-scale test repeats the last validation, on the weights read back from the file.
    assert outcome.miou == pytest.approx(curves["mIoU"].values[-1] / 100, abs=1e-9)
    assert any("Iter(train) [4/4]" in p.read_text() for p in tmp_path.glob("run/*/*.log"))
    train(DEMO_CONFIG, tmp_path / "again", options)
    again = curves_of(tmp_path / "again")
    assert all(again[name].values == curves[name].values for name in ("loss", "mIoU"))
    monkeypatch.setattr(_demos, "train_and_test", lambda *_: outcome)
    assert not segmentation_demo(tmp_path / "run", options)
    printed = capsys.readouterr().out
    assert f"single scale             {outcome.miou:.3f}" in printed
    assert f"multi-scale and flip     {outcome.miou_tta:.3f}" in printed
    assert f"FAILED: mIoU {outcome.miou:.3f} is below 0.70" in printed


def test_compared_configs_differ_in_the_head_alone():
    def rest(config: str) -> dict:
        settings = Config.fromfile(config).to_dict()
        settings.pop("norm_cfg", None)
        settings["model"].pop("decode_head")
        return settings

    assert all(rest(config) == rest(DEMO_CONFIG) for config in COMPARED.values())


def test_compare_ranks_by_miou(tmp_path, monkeypatch, capsys):
    def outcome(config, work_dir, options):
        miou = {"ea": 0.71, "fcn": 0.74, "danet": 0.69}[Path(config).stem.split("_")[0]]
        return Outcome(miou, miou + 0.01, parameters=10**6, iterations=5, seconds=60.0)

    reported = []
    monkeypatch.setattr(_demos, "train_and_test", outcome)
    monkeypatch.setattr(_demos, "write_report", lambda runs, *args, **_: reported.extend(runs))
    compare_heads(tmp_path)
    assert reported == [tmp_path / name.lower() for name in COMPARED]
    table = (tmp_path / "compare.md").read_text()
    names = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert names == ["FCN", "EANet", "DANet"]
    assert "| FCN | 0.740 | 0.750 | 1.00 M | 5 | 60 |" in table
    assert table in capsys.readouterr().out

"""The demo: a shortened training reaches its floor, and what it prints is what it measured."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
from mmengine.config import Config

from mmseg_ext.commands import _demos, demo, demo_det
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


@pytest.mark.slow
def test_a_shortened_demo_reaches_its_floor(tmp_path, capsys):
    options = shortened(tmp_path, ITERATIONS, train=320, val=32)
    assert segmentation_demo(tmp_path, options, required=REQUIRED_MIOU)
    printed = capsys.readouterr().out
    assert f"{ITERATIONS} iterations" in printed and "FAILED" not in printed
    assert f"iteration   300/{ITERATIONS}  loss " in printed
    assert str(tmp_path / "report.html") in printed and (tmp_path / "report.html").is_file()


@pytest.mark.slow
def test_one_seed_gives_one_run(tmp_path, capsys):
    """The second one starts anew in the folder of the first."""
    options = shortened(tmp_path, 4, train=24, val=8)
    outcome = train_and_test(DEMO_CONFIG, tmp_path / "run", options)
    assert train(DEMO_CONFIG, tmp_path / "run", options)[1] < 100
    logs = [p.read_text() for p in sorted(tmp_path.glob("run/*/vis_data/scalars.json"))]
    curves, again = (read_scalars(text)[0] for text in logs if '"loss"' in text)
    assert outcome.iterations == 4 and [*curves["loss"]] == [2, 4]
    # The single-scale test repeats the last validation, on the weights read back from the file.
    assert outcome.miou == pytest.approx(curves["mIoU"][4] / 100, abs=1e-9)
    assert any("Iter(train) [4/4]" in p.read_text() for p in tmp_path.glob("run/*/*.log"))
    assert all(again[name] == curves[name] for name in ("loss", "mIoU"))
    assert 0 < outcome.seconds < 100 and outcome.parameters == 973_214
    assert "testing, single scale\n  testing, multi-scale" in capsys.readouterr().out


@pytest.mark.parametrize(("miou", "reached"), [(0.7, True), (0.69, False)])
def test_a_low_miou_fails(miou, reached, tmp_path, monkeypatch, capsys):
    outcome = Outcome(miou, 0.75, parameters=10**6, iterations=5, seconds=60.0)
    monkeypatch.setattr(_demos, "train_and_test", lambda *_: outcome)
    monkeypatch.setattr(_demos, "write_report", Mock())
    assert segmentation_demo(tmp_path) == reached
    _demos.write_report.assert_called_once_with([tmp_path], tmp_path / "report.html")
    printed = capsys.readouterr().out
    assert printed.startswith("mmseg_ext demo: EANet") and "5 iterations in 60 s" in printed
    assert f"single scale             {miou:.3f}" in printed
    assert "multi-scale and flip     0.750" in printed
    assert ("FAILED: mIoU 0.690 is below 0.70" in printed) != reached


def test_lines_of_progress(monkeypatch, capsys):
    clock = iter((10.0, 30.0, 60.0))
    monkeypatch.setattr(_demos, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    losses = {"train/loss": SimpleNamespace(mean=lambda count: count / 50)}
    hub = SimpleNamespace(get_scalar=losses.__getitem__)
    runner, line = SimpleNamespace(iter=50, max_iters=350, message_hub=hub), _demos.ProgressLine()
    line.before_train(runner)
    for runner.iter in (98, 99, 100, 349):
        line.after_train_iter(runner, 0)
    line.after_val_epoch(runner, {"aAcc": 3.0, "mIoU": 12.5})
    assert capsys.readouterr().out.splitlines() == [
        "  iteration   100/350  loss 2.000   2.5 it/s  ETA 1:40",
        "  iteration   350/350  loss 2.000   6.0 it/s  ETA 0:00",
        "  validation: mIoU 12.5",
    ]


def test_flags_of_the_demos(monkeypatch):
    called = Mock()
    for name in ("segmentation_demo", "compare_heads", "detection_demo"):
        monkeypatch.setattr(_demos, name, getattr(called, name))
        getattr(called, name).return_value = None  # the demo failed
    assert demo.main(["--work-dir", "w"]) == 1
    assert demo.main(["--compare", "--data-root", "d"]) == 0
    assert demo_det.main(["--resume"]) == 1
    root = {f"{split}_dataloader.dataset.data_root": "d" for split in ("train", "val", "test")}
    assert called.mock_calls == [
        call.segmentation_demo(Path("w"), None),
        call.compare_heads(Path("work_dirs/demo"), root),
        call.detection_demo(Path("work_dirs/demo_det"), Path("data/shapes"), True),
    ]


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

    monkeypatch.setattr(_demos, "train_and_test", outcome)
    monkeypatch.setattr(_demos, "write_report", Mock())
    compare_heads(tmp_path)
    runs = [tmp_path / name.lower() for name in COMPARED]
    _demos.write_report.assert_called_once_with(runs, tmp_path / "report.html")
    table = (tmp_path / "compare.md").read_text()
    names = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert names == ["FCN", "EANet", "DANet"]
    assert "| FCN | 0.740 | 0.750 | 1.00 M | 5 | 60 |" in table
    printed = capsys.readouterr().out
    assert table in printed and all(f"{name} (" in printed for name in names)

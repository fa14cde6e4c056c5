"""The flags --iterations and --size of train and print_config."""

import shlex
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import PARAM_SCHEDULERS

import mmseg_ext
from mmseg_ext import commands
from mmseg_ext.engine.build import Training, build_test_runner
from mmseg_ext.engine.config import crop_size
from mmseg_ext.errors import LaunchError
from mmseg_ext.reports.run_data import read_run
from tests.engine.runs import log_text, train_here, write_config
from tests.engine.states import logged
from tests.messages import lines_with, raises_message

FLAGS = ("--iterations", "3", "--size", "16")


def train_config(name: str, options: dict | None = None, **flags: int) -> Config:
    return Training(name, options, **flags).resolve()


def schedule(cfg) -> list:
    """Return the numbers of a schedule: of its loop, of the checkpoints, and of the schedulers."""
    ends = [(one.get("begin"), one.end) for one in cfg.param_scheduler]
    interval = cfg.default_hooks.checkpoint.interval
    return [cfg.train_cfg.max_iters, cfg.train_cfg.val_interval, interval, *ends]


@pytest.mark.parametrize(
    ("name", "iterations", "expected"),
    [
        ("ea_r101_ade20k_160k", 1000, [1000, 100, 100, (0, 1000)]),
        ("ea_r101_ade20k_160k", 320000, [320000, 32000, 32000, (0, 320000)]),
        ("ea_r101_voc_45k", 4500, [4500, 60, 300, (0, 4500)]),
        ("upernet_deepvit_s_ade20k_160k", 1600, [1600, 160, 160, (0, 15), (15, 1600)]),
        ("upernet_deepvit_s_ade20k_160k", 20, [20, 2, 2, (0, 2), (0, 20)]),
        ("upernet_deepvit_s_ade20k_160k", 1, [1, 1, 1, (0, 2), (0, 2)]),
    ],
)
def test_schedules_keep_their_shares(name, iterations, expected):
    assert schedule(train_config(name, iterations=iterations)) == expected


@pytest.mark.parametrize("iterations", [3, 12, 150, 170, 1000])
def test_a_short_warm_up_ends(iterations):
    """Its shares are 0.03 to 9.4 iterations; the rate stayed at its start, 1e-6 of the rate."""
    cfg = train_config("upernet_deepvit_s_ade20k_160k", iterations=iterations)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedulers = []
    for settings in cfg.param_scheduler:
        schedulers.append(PARAM_SCHEDULERS.build({**settings, "optimizer": optimizer}))
    rates = []
    for _ in range(iterations):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    assert max(rates) > 0.4 and rates[0] < 1e-5


def test_other_lengths_of_schedulers(tmp_path):
    """In iterations; what is in epochs stays, and options win."""
    schedulers = "param_scheduler = [dict(type='MultiStepLR', milestones=[4, 8], by_epoch=False),"
    schedulers += "dict(type='MultiStepLR', milestones=[4, 8], by_epoch=True)]\n"
    schedulers += "custom_hooks = [dict(type='EMAHook', begin_iter=6)]\n"
    schedulers += "default_hooks = dict(checkpoint=dict(save_begin=4))\n"
    config = str(write_config(tmp_path, schedulers))
    cfg = train_config(config, {"train_cfg.val_interval": 3}, iterations=6)
    assert [one.milestones for one in cfg.param_scheduler] == [[2, 4], [4, 8]]
    assert cfg.train_cfg.max_iters == 6 and cfg.train_cfg.val_interval == 3
    assert cfg.default_hooks.checkpoint.save_begin == 2 and cfg.custom_hooks[0].begin_iter == 3


# Of a config: crops, their padding, the steps of training and of validation that have sizes,
# windows, and the first view.
SIZES = {
    ("ea_r101_ade20k_160k", 256): [
        (256, 256),
        (256, 256),
        [("RandomResize", (1024, 256)), ("RandomCrop", (256, 256))],
        [("Resize", (1024, 256))],
        None,
        0.25,
    ],
    ("fpn_rmt_tiny_cityscapes_80k", 128): [
        (128, 256),
        (128, 256),
        [("RandomResize", (512, 256)), ("RandomCrop", (128, 256))],
        [("Resize", (512, 256))],
        None,
        0.125,
    ],
    ("ea_r101_cityscapes_80k", 1538): [
        (1538, 1538),
        (1538, 1538),
        [("RandomResize", (4098, 2050)), ("RandomCrop", (1538, 1538))],
        [("Resize", (4098, 2050))],
        ((1538, 1538), (1026, 1026)),
        1.0,
    ],
    # Validation has no resize, so it gets one.
    ("ea_r18_shapes", 48): [
        (48, 48),
        (48, 48),
        [("RandomResize", (64, 64)), ("RandomCrop", (48, 48))],
        [("Resize", 0.5)],
        None,
        0.375,
    ],
    # Images at their own scale keep it.
    ("ea_r101_voc_45k", 257): [
        (257, 257),
        (257, 257),
        [("Pad", (257, 257)), ("RandomCrop", (257, 257))],
        [],
        None,
        None,
    ],
    ("ea_r18_fpn_nuclei_4k", 128): [
        (128, 128),
        (128, 128),
        [("RandomCrop", (128, 128))],
        [],
        None,
        1.0,
    ],
}


def sizes_of(cfg) -> list:
    found = []
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        dataset = loader.dataset
        steps = dataset.get("datasets", [dataset])[-1].pipeline
        keys = ("scale", "crop_size", "scale_factor", "size")
        found.append([(s.type, s[key]) for s in steps for key in keys if key in s])
    windows = cfg.model.test_cfg
    slide = (windows.crop_size, windows.stride) if windows.mode == "slide" else None
    first_view = cfg.tta_pipeline[1].transforms[0][0].get("scale_factor")
    return [cfg.crop_size, cfg.model.data_preprocessor.size, *found, slide, first_view]


@pytest.mark.parametrize("row", SIZES, ids=lambda row: f"{row[0]}-{row[1]}")
def test_all_sizes_change_by_one_factor(row):
    name, size = row
    assert sizes_of(train_config(name, size=size)) == SIZES[row]


def test_tiles_keep_the_scale_of_the_images(tmp_path):
    """As in a project with --tiles: training resizes parts that it has cut from the images."""
    cut = "crop = dict(type='RandomCrop', crop_size=(32, 32))\ncrop_size = (24, 24)\n"
    cut += "again = dict(type='RandomCrop', crop_size=crop_size)\n"
    cut += "resize = dict(type='RandomResize', scale=(32, 32), ratio_range=(0.8, 1.25))\n"
    cut += "steps = [*load[:2], crop, resize, again, load[2]]\n"
    cut += "train_dataloader['dataset'] = {**dataset, 'pipeline': steps}\n"
    cut += (
        "val_dataloader['dataset']['pipeline'].insert(1, dict(type='Resize', scale_factor=1.0))\n"
    )
    cut += "model['test_cfg'] = dict(mode='slide', crop_size=(32, 32), stride=(24, 24))\n"
    found = sizes_of(train_config(str(write_config(tmp_path, cut)), size=12))
    steps = [("RandomCrop", (16, 16)), ("RandomResize", (16, 16)), ("RandomCrop", (12, 12))]
    assert found[2:5] == [steps, [("Resize", 1.0)], ((16, 16), (12, 12))]


def test_factors_of_a_resize_stay_fractions(tmp_path):
    resizes = "factors = [dict(type='Resize', scale_factor=f) for f in (1, 0.5, (0.5, 2.0))]\n"
    resizes += "train_dataloader['dataset'] = {**dataset, 'pipeline': [*load[:2], *factors]}\n"
    cfg = train_config(str(write_config(tmp_path, resizes)), size=8)
    found = [step.scale_factor for step in cfg.train_dataloader.dataset.pipeline[2:]]
    assert found == [0.25, 0.125, (0.125, 0.5)]


def test_a_training_with_both_flags(tmp_path, monkeypatch, capsys):
    """The commands that it prints have its settings, and run in another folder."""
    (tmp_path / "my configs").mkdir()
    config = write_config(tmp_path / "my configs", "crop_size = (32, 32)\n")
    monkeypatch.chdir(tmp_path)
    train_here(Path("my configs", config.name), Path("my run"), flags=FLAGS)
    work, printed = tmp_path / "my run", capsys.readouterr().out
    assert len(logged(work)) == 3 and (work / "iter_3.pth").is_file()
    build_test_runner(str(config), str(work / "iter_3.pth"), work_dir=str(work)).test()
    assert Config.fromfile(work / "tiny.py").model.data_preprocessor.size == (16, 16)
    assert lines_with(printed, "best checkpoint", f"{work}/best_mIoU_iter_3.pth")
    lines = [shlex.split(line) for line in printed.partition("Next:\n")[2].splitlines()]
    assert [line[1] for line in lines] == ["test", "report", "image_demo", "export"]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    image = str(next(tmp_path.glob("my configs/data/images/*.png")))
    for program, name, *words in lines[:3]:
        assert program == "mmseg-ext"
        assert commands.run(name, [image if word == "IMAGE" else word for word in words]) == 0
        assert "another scale" not in capsys.readouterr().err
    # The config of the training without its flags tests at another scale.
    mmseg_ext.test(config, work / "iter_3.pth", tmp_path / "plain")
    told = log_text(tmp_path / "plain")
    assert lines_with(told, "crop_size=(32, 32)", "(16, 16)", "the folder of its run")
    assert "another scale" not in log_text(work)
    assert lines[2][3:] == lines[3][2:] and (work / "report.html").is_file()
    of_report = [shlex.split(line) for line in read_run(work).next_commands]
    assert [line[1] for line in of_report] == ["test", "report", "image_demo", "export"]
    assert Config.fromfile(of_report[0][2]).model.data_preprocessor.size == (16, 16)


def test_configs_without_such_a_setting_end_in_one_line(tmp_path):
    epochs = "train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=2)\n"
    config = str(write_config(tmp_path, epochs, "epochs.py"))
    with raises_message(LaunchError, where="--iterations 5: ", todo="train_cfg.max_epochs"):
        train_config(config, iterations=5)
    several = "param_scheduler = dict(one=[], two=[])\n"
    config = str(write_config(tmp_path, several, "several.py"))
    with raises_message(LaunchError, "param_scheduler", where="--iterations 5: ", todo=True):
        train_config(config, iterations=5)
    uncut = "del model['data_preprocessor']['size']\n"
    config = str(write_config(tmp_path, uncut, "uncut.py"))
    with raises_message(LaunchError, "crop_size", todo=True):
        train_config(config, size=16)
    assert crop_size(Config(dict(crop_size=16, model={}))) == (16, 16)
    for flag in ("iterations", "size"):
        with raises_message(LaunchError, 0, where=f"--{flag} "):
            train_config(config, **{flag: 0})

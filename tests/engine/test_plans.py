"""Options for other numbers of GPUs keep the published batch where they can."""

import copy
import json
import re

import pytest
from mmengine.config import Config

from mmseg_ext.commands import run
from mmseg_ext.engine.batch import plans
from tests.configs import CONFIGS, EXPERIMENTS
from tests.engine.runs import ROOT, run_script
from tests.messages import check_message


def load(name: str) -> Config:
    return Config.fromfile(EXPERIMENTS[name])


@pytest.mark.parametrize(
    ("name", "gpus", "expected"),
    [  # images, accumulation, exact
        ("ea_r101_ade20k_160k", 4, [(4, 1, True)]),  # as published
        ("ea_r101_ade20k_160k", 8, [(2, 1, True)]),
        ("ea_r101_ade20k_160k", 2, [(8, 1, True), (4, 2, False)]),
        ("ea_r101_cityscapes_80k", 16, [(1, 1, False)]),  # published with 8 images
        ("ea_r18_shapes", 2, [(4, 1, False)]),  # batch norm sees the images of one GPU
    ],
)
def test_plans_keep_the_published_batch_where_they_can(name, gpus, expected):
    found = plans(load(name), gpus)
    assert [(plan.images, plan.accumulation, plan.exact) for plan in found] == expected
    options = found[0].options
    assert options.startswith("--auto-scale-lr ") == (gpus == 16)
    assert options.endswith(f"train_dataloader.batch_size={expected[0][0]}") == (gpus != 4)


def test_accumulation_counts_small_batches():
    """The options of a plan, merged into the config, stretch the whole schedule."""
    config = load("upernet_rmt_small_ade20k_160k")
    plan = plans(config, 2)[1]
    stretched = copy.deepcopy(config)
    pairs = (pair.split("=") for pair in plan.options.split()[1:])
    stretched.merge_from_dict({key: int(value) for key, value in pairs})
    assert stretched.optim_wrapper.accumulative_counts == plan.accumulation == 4
    assert stretched.train_cfg.max_iters == 4 * config.train_cfg.max_iters
    for ours, published in zip(stretched.param_scheduler, config.param_scheduler, strict=True):
        assert (ours.begin, ours.end) == (4 * published.begin, 4 * published.end)


@pytest.mark.parametrize("count", ["0", "-2"])
def test_plans_are_for_one_gpu_or_more(count, capsys):
    words = [str(CONFIGS / "ea_r18_shapes.py"), "--world-size", count]
    assert run("print_config", words) == 1
    error = capsys.readouterr().err.removeprefix("mmseg_ext: ")
    check_message(error, where=f"--world-size {count}: ")
    assert error.count("\n") == 1


@pytest.mark.slow
def test_print_config_and_the_page_have_the_same_plan():
    """In a new process `print_config --world-size 8` prints the images of docs/several_gpus.md."""
    words = ("print_config", CONFIGS / "ea_r101_voc_45k.py", "--world-size", "8")
    result = run_script(ROOT / "mmseg_ext/__main__.py", *words)
    assert result.returncode == 0, result.stderr
    (plan,) = json.loads("{" + result.stdout.rpartition("\n{\n")[2])["plans"]
    lines = (ROOT / "docs/several_gpus.md").read_text().splitlines()
    row = next(line for line in lines if line.startswith("| VOC, EANet's protocol |"))
    eight = re.split(r" *\| *", row)[5]
    images = plan["images"]
    assert eight.endswith(f"({images})") and plan["exact"]
    assert plan["options"] == f"--cfg-options train_dataloader.batch_size={images}"

"""The memory of a training step in numbers and against measured steps, and plans for GPUs."""

import copy
import json
import re
from pathlib import Path

import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.model import BaseModel
from mmengine.optim import build_optim_wrapper
from mmseg.models import EncoderDecoder
from mmseg.registry import MODELS

from benchmarks.camvid_rows import STUDIES
from benchmarks.camvid_table import config_path
from mmseg_ext import commands
from mmseg_ext.cost.step_memory import (
    GIBI,
    StepMemory,
    batch_of,
    memory_cells,
    plans,
    training_loss,
    training_memory,
)
from mmseg_ext.engine.config import load_config  # as the commands read a config
from tests.configs import CONFIGS, EXPERIMENTS
from tests.engine.runs import ROOT, run_script
from tests.messages import check_message, lines_with
from tests.segmentors.small import allocated_at_peak


def load(name: str) -> Config:
    return Config.fromfile(EXPERIMENTS[name])


@MODELS.register_module()
class TwoLayers(EncoderDecoder):
    """Layers of 100 numbers for each image; one is frozen."""

    def __init__(self, size):
        preprocessor = {"type": "SegDataPreProcessor", "size": size}
        BaseModel.__init__(self, {**preprocessor, "mean": [0.0] * 3, "std": [1.0] * 3})
        self.one = torch.nn.Linear(75, 100, bias=False)
        self.two = torch.nn.Linear(100, 100, bias=False).requires_grad_(False)

    def forward(self, inputs, data_samples, mode):
        assert mode == "loss" and self.training and inputs.shape == (len(data_samples), 3, 5, 5)
        return {"loss": self.two(self.one(inputs.flatten(1)).relu()).mean()}


def small_config(images: int) -> ConfigDict:
    return ConfigDict(
        model={"type": "TwoLayers", "size": (5, 5)},
        crop_size=(5, 5),
        train_dataloader={"batch_size": images},
        optim_wrapper={"type": "OptimWrapper", "optimizer": {"type": "AdamW", "lr": 1.0}},
    )


def test_memory_of_a_small_model():
    """Weights, gradients and optimizer in bytes; activations grow with the images."""
    one, many = (training_memory(small_config(images)) for images in (1, 100))
    assert one.weights == many.weights == 4 * (7500 + 10_000 + 6)  # with mean and std
    assert one.gradients == 4 * 7500 and one.optimizer == 2 * one.gradients
    # The peak is in the optimizer's step; in the backward pass with many images.
    assert one.total >= one.weights + one.gradients + one.optimizer
    assert many.total >= many.weights + many.optimizer + many.activations
    # Bytes of each image: uint8 and float32, labels, and two results of layers or their gradients.
    assert 75 * 5 + 25 * 8 + 100 * 8 < many.activations / 100 < 2000
    half = training_memory(small_config(100), amp=True)
    assert half.activations < many.activations and half.weights == one.weights
    wrapped = small_config(100)
    wrapped.optim_wrapper |= {"type": "AmpOptimWrapper", "dtype": "float16", "loss_scale": 2.0}
    assert training_memory(wrapped) == half


def measured_peak(config: Config) -> int:
    """Run two steps on the CPU; return what its allocator held at the peak of the second."""
    model = MODELS.build(config.model).train()
    wrapper = build_optim_wrapper(model, config.optim_wrapper)
    wrapper.update_params(training_loss(model, batch_of(config, "cpu")))
    states = [s for state in wrapper.optimizer.state.values() for s in state.values() if s.dim()]

    @torch.enable_grad()
    def step() -> None:
        wrapper.update_params(training_loss(model, batch_of(config, "cpu")))

    return allocated_at_peak(step) + sum(t.nbytes for t in (*states, *model.state_dict().values()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ea_r18_shapes", "danet_r18_shapes", "masa", "fpn_eamlp_camvid_800"]
)
def test_computed_memory_is_the_measured_one(name):
    rows = [row for row in STUDIES["camvid"].rows() if row.name == name]
    config = load_config(config_path(rows[0]), rows[0].options) if rows else load(name)
    config.train_dataloader.batch_size = 2
    config.optim_wrapper = {k: v for k, v in config.optim_wrapper.items() if k != "dtype"}
    config.optim_wrapper.type = "OptimWrapper"  # float32: a CPU's mixed precision is another
    assert training_memory(config).total == pytest.approx(measured_peak(config), rel=0.1)


def test_peak_with_several_gpus_and_accumulation():
    memory = StepMemory(weights=10, gradients=10, optimizer=20, activations=100, total=131)
    assert (memory.peak(), memory.peak(gpus=2), memory.checkpoint) == (131, 140, 30)
    assert memory.peak(accumulation=2) == 140  # every gradient exists in the forward pass
    memory = StepMemory(*(i * 1024**3 for i in range(1, 6)))
    row = ["`a`", "5x5", "3", *["1.00", "2.00", "3.00", "4.00", "5.00", "10.00", "4.00"]]
    assert memory_cells("a", small_config(3), memory) == row


def test_the_command_prints_gibibytes(capsys):
    config = str(CONFIGS / "ea_r18_shapes.py")
    assert commands.run("model_cost", [config, "--train", "--amp", "--batch", "16"]) == 0
    *_, row = capsys.readouterr().out.splitlines()
    expected = load("ea_r18_shapes")
    expected.train_dataloader.batch_size = 16
    total = training_memory(expected, True).total / GIBI
    cells = re.split(r" *\| *", row)[1:-1]
    assert cells[:3] == ["`ea_r18_shapes`", "96x96", "16"] and cells[7] == f"{total:.2f}"
    loss = "model.decode_head.loss_decode"
    options = [f"{loss}.type=FocalLoss", f"{loss}.use_sigmoid=True"]  # which needs mmcv's operator
    assert commands.run("model_cost", [config, "--train", "--cfg-options", *options]) == 1
    (line,) = lines_with(capsys.readouterr().err, loss)
    check_message(line, todo=True)


LOSSES = [{"type": f"{name}Loss"} for name in ("Dice", "HuasdorffDisstance", "Tversky")]
LOSSES += [{"type": "LovaszLoss", "reduction": "none"}]


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss["type"])
def test_memory_of_a_step_with_another_loss(loss):
    """Their masks and indices are on the CPU, or their values are read there."""
    config = load("ea_r18_shapes")
    base = training_memory(config)
    config.model.decode_head.loss_decode = ConfigDict(loss)
    assert training_memory(config).activations > base.activations


@pytest.mark.slow
def test_print_config_and_the_page_have_the_same_numbers():
    """In a new process `print_config --world-size 8` prints the numbers of docs/several_gpus.md."""
    words = ("print_config", CONFIGS / "ea_r101_voc_45k.py", "--world-size", "8")
    result = run_script(ROOT / "mmseg_ext/__main__.py", *words)
    assert result.returncode == 0, result.stderr
    (plan,) = json.loads("{" + result.stdout.rpartition("\n{\n")[2])["plans"]
    lines = (Path(__file__).parents[2] / "docs/several_gpus.md").read_text().splitlines()
    row = next(line for line in lines if line.startswith("| VOC, EANet's protocol |"))
    *_, eight, _, _, checkpoint = re.split(r" *\| *", row)[1:-1]
    images = plan["images"]
    assert re.fullmatch(rf"{plan['memory_gib']} / [\d.]+ \({images}\)", eight) and plan["exact"]
    assert plan["options"] == f"--cfg-options train_dataloader.batch_size={plan['images']}"
    assert float(checkpoint) == plan["checkpoint_gib"]


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

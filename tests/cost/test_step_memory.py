"""The memory of a training step, against measured steps."""

import json
import re
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmseg.registry import MODELS

from mmseg_ext.commands.model_cost import main as model_cost
from mmseg_ext.cost.step_memory import (
    GIBI,
    batch_of,
    training_loss,
    training_memory,
)
from tests.configs import CONFIGS
from tests.engine.runs import run_script

PAGE = Path(__file__).parents[2] / "docs" / "several_gpus.md"


def load(name: str) -> Config:
    return Config.fromfile(CONFIGS / f"{name}.py")


def tensor_bytes(tensors) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def measured_peak(config: Config) -> int:
    """Run two steps on the CPU; return what its allocator held at the peak of the second."""
    model = MODELS.build(config.model).train()
    settings = {**config.optim_wrapper.to_dict(), "type": "OptimWrapper"}
    wrapper = build_optim_wrapper(model, settings)
    wrapper.update_params(training_loss(model, batch_of(config, "cpu")))
    states = [s for state in wrapper.optimizer.state.values() for s in state.values() if s.dim()]
    with torch.profiler.profile(profile_memory=True) as profile:
        wrapper.update_params(training_loss(model, batch_of(config, "cpu")))
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    current = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        current += event.nbytes()
        peak = max(peak, current)
    return peak + tensor_bytes(states) + tensor_bytes(model.state_dict().values())


@pytest.mark.parametrize(
    "name", ["ea_r18_shapes", "danet_r18_shapes", "masa_r18_camvid_8k", "fpn_eamlp_camvid_8k"]
)
def test_computed_memory_is_the_measured_one(name):
    config = load(name)
    config.optim_wrapper = {k: v for k, v in config.optim_wrapper.items() if k != "dtype"}
    config.optim_wrapper.type = "OptimWrapper"  # float32: a CPU's mixed precision is another
    assert training_memory(config).total == pytest.approx(measured_peak(config), rel=0.1)


def test_the_command_prints_gibibytes(capsys):
    config = str(CONFIGS / "ea_r18_fpn_camvid_6k.py")
    assert model_cost([config, "--train", "--amp", "--batch", "16"]) == 0
    *_, row = capsys.readouterr().out.splitlines()
    expected = load("ea_r18_fpn_camvid_6k")
    expected.train_dataloader.batch_size = 16
    total = training_memory(expected, True).total / GIBI
    cells = re.split(r" *\| *", row)[1:-1]
    assert cells[:3] == ["`ea_r18_fpn_camvid_6k`", "320x320", "16"] and cells[7] == f"{total:.2f}"


def test_print_config_and_the_page_have_the_same_numbers():
    """In a new process `print_config --world-size 8` prints the numbers of docs/several_gpus.md."""
    words = ("print_config", CONFIGS / "ea_r101_voc_45k.py", "--world-size", "8")
    result = run_script("mmseg_ext/__main__.py", *words)
    assert result.returncode == 0, result.stderr
    (plan,) = json.loads("{" + result.stdout.rpartition("\n{\n")[2])["plans"]
    lines = PAGE.read_text().splitlines()
    row = next(line for line in lines if line.startswith("| VOC, EANet's protocol |"))
    *_, eight, _, _, checkpoint = re.split(r" *\| *", row)[1:-1]
    assert eight == f"{plan['memory_gib']} ({plan['images']})" and plan["exact"]
    assert plan["options"] == f"--cfg-options train_dataloader.batch_size={plan['images']}"
    assert float(checkpoint) == plan["checkpoint_gib"]

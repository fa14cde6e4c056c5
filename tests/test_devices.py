"""Every segmentation model on a GPU, without one: all tensors must be created on its device.

The tensors have no data (mmseg_ext/cost/simulated_cuda.py). An operator on tensors of two devices
raises.
"""

import json
import re
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample

from benchmarks.camvid_rows import all_rows
from benchmarks.camvid_table import config_path
from mmseg_ext.cost import simulated_cuda
from mmseg_ext.cost.simulated_cuda import SimulatedCUDA
from mmseg_ext.cost.step_memory import batch_of, build_training_model, training_loss
from mmseg_ext.decode_heads import JSegEAHead
from mmseg_ext.durable.finite_loss import FiniteLossHook
from mmseg_ext.engine.config import load_config
from tests.configs import EXPERIMENTS, load
from tests.test_configs import reduced, with_small_crops

PRECISIONS = (None, torch.bfloat16)
# What decides which operators run: the types of the parts, and the operators' switches.
SWITCHES = "type|normalization|tied|decomposed|re_attention|channel_attention"
KIND = re.compile(rf'"(?:{SWITCHES})": (?!"(?:BN|SyncBN|Pretrained)")[^,}}]+')

ROWS = {row.name: load_config(config_path(row), row.options) for row in all_rows()}
CONFIGS = {name: load(path) for name, path in EXPERIMENTS.items()} | ROWS


def distinct_models() -> list[str]:
    """Return configs that together have every part and switch; auxiliary heads are all alike."""
    names, seen = [], set()
    for name, config in CONFIGS.items():
        kinds = set(KIND.findall(json.dumps({**config.model.to_dict(), "auxiliary_head": None})))
        if not kinds <= seen:
            names.append(name)
        seen |= kinds
    return names


def small_config(name: str) -> Config:
    """Return a config with a shallow model, small crops and batches of two."""
    config = with_small_crops(CONFIGS[name])
    config.model = ConfigDict(reduced(config))
    config.train_dataloader.batch_size = 2
    return config


def build(config, device: SimulatedCUDA) -> tuple[torch.nn.Module, OptimWrapper]:
    model = build_training_model(config.model, device.device)
    settings = config.optim_wrapper.to_dict()
    settings = {k: v for k, v in settings.items() if k not in ("dtype", "loss_scale")}
    return model, build_optim_wrapper(model, {**settings, "type": "OptimWrapper"})


def train(config, device: SimulatedCUDA) -> torch.nn.Module:
    """Run a step in each precision; return the model."""
    model, wrapper = build(config, device)
    for precision in PRECISIONS:
        with device.autocast(precision):
            loss = training_loss(model, batch_of(config, device.device))
        wrapper.update_params(loss)
    assert all(p.is_cuda for p in model.parameters())
    return model


def images(config, device: SimulatedCUDA) -> dict:
    """Return one image, 96x80 on disk, as the test pipeline packs it."""
    crop = config.crop_size
    image = torch.zeros(3, *crop, dtype=torch.uint8, device=device.device)
    meta = {"ori_shape": (96, 80), "img_shape": crop, "pad_shape": crop}
    return {"inputs": [image], "data_samples": [SegDataSample(metainfo=meta)]}


def predict(config, model: torch.nn.Module, device: SimulatedCUDA) -> None:
    (sample,) = model.eval().test_step(images(config, device))
    assert sample.pred_sem_seg.data.is_cuda and sample.pred_sem_seg.shape == (96, 80)


def predict_augmented(config, model: torch.nn.Module, device: SimulatedCUDA) -> None:
    augmented = MODELS.build({**config.tta_model, "module": model})
    views = [images(config, device) for _ in range(2)]
    for flip, view in enumerate(views):
        view["data_samples"][0].set_metainfo({"flip": bool(flip), "flip_direction": "horizontal"})
    batch = {key: [view[key] for view in views] for key in ("inputs", "data_samples")}
    (sample,) = augmented.eval().test_step(batch)
    assert sample.pred_sem_seg.data.is_cuda and sample.pred_sem_seg.shape == (96, 80)


@pytest.mark.parametrize("name", distinct_models())
def test_training_and_prediction_stay_on_the_device(name):
    config = small_config(name)
    with SimulatedCUDA() as device:
        model = train(config, device)
        predict(config, model, device)
        predict_augmented(config, model, device)


def test_the_check_of_losses_stays_on_the_device(monkeypatch):
    """`FiniteLossHook` reads one number, which is zero for finite losses and gradients."""
    number = torch.ops.aten._local_scalar_dense.default
    monkeypatch.setitem(simulated_cuda._FORMS, number, lambda x: 0)
    config = small_config("fcn_r18_shapes")
    with SimulatedCUDA() as device:
        model, wrapper = build(config, device)
        runner = SimpleNamespace(optim_wrapper=wrapper, model=model, iter=5)
        FiniteLossHook().before_train(runner)
        wrapper.update_params(training_loss(model, batch_of(config, device.device)))
    assert wrapper.optimizer.state


def test_a_tensor_on_the_cpu_is_found(monkeypatch):
    """The same run fails for a tensor that is created on the CPU."""
    forward = JSegEAHead.forward
    add = lambda *given: forward(*given) + torch.ones(forward(*given).shape[-1])  # noqa: E731
    monkeypatch.setattr(JSegEAHead, "forward", add)
    with SimulatedCUDA() as device, pytest.raises(RuntimeError, match="is on cpu"):
        train(small_config("ea_jseg"), device)

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
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample

from benchmarks.camvid_rows import STUDIES
from benchmarks.camvid_table import config_path
from mmseg_ext.cost.simulated_cuda import SimulatedCUDA  # in place of a GPU
from mmseg_ext.cost.step_memory import batch_of, build_training_model, training_loss
from mmseg_ext.durable import FiniteLossHook
from mmseg_ext.engine.config import load_config  # as the commands read a config
from mmseg_ext.errors import RunError
from tests.configs import EXPERIMENTS, load
from tests.test_configs import reduced, with_small_crops, wrapper_in_float32

PRECISIONS = (None, torch.bfloat16)
# What decides which operators run: the types of the parts, and the operators' switches.
SWITCHES = "type|normalization|tied|decomposed|re_attention|channel_attention"
KIND = re.compile(rf'"(?:{SWITCHES})": (?!"(?:BN|SyncBN|Pretrained)")[^,}}]+')

ROWS = {row.name: load_config(config_path(row), row.options) for row in STUDIES["camvid"].rows()}
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


def train(config, device: SimulatedCUDA) -> torch.nn.Module:
    """Run a step in each precision; return the model."""
    model = build_training_model(config, device.device)
    wrapper = wrapper_in_float32(config, model)
    for precision in PRECISIONS:
        with device.autocast(precision):
            loss = training_loss(model, batch_of(config, device.device))
        wrapper.update_params(loss)
    assert all(p.is_cuda for p in model.parameters())
    return model


def images(config, device: SimulatedCUDA, flip: bool) -> dict:
    """Return one image, 96x80 on disk, as the test pipeline packs it."""
    crop = config.crop_size
    image = torch.zeros(3, *crop, dtype=torch.uint8, device=device.device)
    meta = {"ori_shape": (96, 80), "img_shape": crop, "pad_shape": crop}
    meta |= {"flip": flip, "flip_direction": "horizontal"}
    return {"inputs": [image], "data_samples": [SegDataSample(metainfo=meta)]}


@pytest.mark.parametrize("name", distinct_models())
def test_training_and_prediction_stay_on_the_device(name):
    config = small_config(name)
    with SimulatedCUDA() as device:
        model = train(config, device)
        augmented = MODELS.build({**config.tta_model, "module": model})
        views = [images(config, device, flip) for flip in (False, True)]
        batch = {key: [view[key] for view in views] for key in ("inputs", "data_samples")}
        for predictor, data in ((model, images(config, device, False)), (augmented, batch)):
            (sample,) = predictor.eval().test_step(data)
            assert sample.pred_sem_seg.data.is_cuda and sample.pred_sem_seg.shape == (96, 80)


def test_the_check_of_losses_stays_on_the_device():
    """Every number that is read is 1, so `FiniteLossHook` finds a problem that no tensor has."""
    config = small_config("fcn_r18_shapes")
    with SimulatedCUDA() as device:
        model = build_training_model(config, device.device)
        wrapper = wrapper_in_float32(config, model)
        runner = SimpleNamespace(optim_wrapper=wrapper, model=model, iter=5)
        FiniteLossHook().before_train(runner)
        with pytest.raises(RunError, match="finite"):
            wrapper.update_params(training_loss(model, batch_of(config, device.device)))

"""Every segmentation model on a GPU, without one: all tensors must be created on its device.

The tensors have no data (benchmarks/training_step.py). An operator on tensors of two devices
raises.
"""

import json
import re

import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample

from benchmarks.training_step import (
    META,
    WithoutData,
    batch_of,
    build_training_model,
    build_wrapper,
    training_loss,
)
from mmseg_ext.engine.config import load_config  # as the commands read a config
from tests.configs import EXPERIMENTS, load
from tests.test_configs import reduced, with_small_crops

# What decides which operators run: the types of the parts, and the operators' switches.
SWITCHES = "type|normalization|tied|decomposed|re_attention|channel_attention"
KIND = re.compile(rf'"(?:{SWITCHES})": (?!"(?:BN|SyncBN|Pretrained)")[^,}}]+')

CONFIGS = {name: load(path) for name, path in EXPERIMENTS.items()}
for name, key, value in (  # switches that no config sets
    ("masa_r18_camvid", "decomposed", False),
    ("danet_ea_r18_camvid", "channel_attention", False),
    ("ea_r18_camvid", "normalization", "softmax"),
    ("ea_r18_camvid", "tied", True),
):
    options = {f"model.decode_head.{key}": value}
    CONFIGS[f"{name}, {key}={value}"] = load_config(str(EXPERIMENTS[name]), options)


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
    config.model.decode_head.pop("sampler", None)  # mmsegmentation's selects pixels by their values
    config.train_dataloader.batch_size = 2
    return config


def image(config, flip: bool) -> dict:
    """Return one image, 96x80 on disk, as the test pipeline packs it."""
    crop = config.crop_size
    pixels = torch.zeros(3, *crop, dtype=torch.uint8, device=META)
    meta = {"ori_shape": (96, 80), "img_shape": crop, "pad_shape": crop}
    meta |= {"flip": flip, "flip_direction": "horizontal"}
    return {"inputs": [pixels], "data_samples": [SegDataSample(metainfo=meta)]}


@pytest.mark.parametrize("name", distinct_models())
def test_training_and_prediction_stay_on_the_device(name):
    config = small_config(name)
    with WithoutData():
        model = build_training_model(config, META)
        wrapper = build_wrapper(model, config)
        wrapper.update_params(training_loss(model, batch_of(config, META)))
        assert all(p.is_meta for p in model.parameters())
        augmented = MODELS.build({**config.tta_model, "module": model})
        views = [image(config, flip) for flip in (False, True)]
        batch = {key: [view[key] for view in views] for key in ("inputs", "data_samples")}
        for predictor, data in ((model, image(config, False)), (augmented, batch)):
            (sample,) = predictor.eval().test_step(data)
            assert sample.pred_sem_seg.data.is_meta and sample.pred_sem_seg.shape == (96, 80)

"""The training step of a config on random images, as the stages measure it."""

from typing import Any

import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, build_optim_wrapper

from mmseg_ext.cost.step_memory import batch_of
from mmseg_ext.engine.config import load_config


def training_config(name: str, stock: bool, quick: bool) -> Config:
    """Load a config, with mmsegmentation's segmentor if `stock`; tiny if `quick`."""
    config = load_config(name)
    settings: dict = config.model.to_dict()
    if quick:
        settings["backbone"] |= dict(num_stages=1, strides=(1,), dilations=(1,), out_indices=(0,))
        settings["decode_head"] |= dict(in_channels=16, in_index=0)
    if stock:
        settings["type"] = "EncoderDecoder"
    config.model = settings
    return config


def random_batch(config: Config) -> dict[str, Any]:
    """Return random images and labels on the CPU, as of the config's data loader."""
    batch = batch_of(config, torch.device("cpu"))
    for image, sample in zip(batch["inputs"], batch["data_samples"], strict=True):
        image.random_(256)
        sample.gt_sem_seg.data.random_(config.model.decode_head.num_classes)
    return batch


def build_wrapper(
    model: BaseModel, config: Config, half: bool, fused: bool = False
) -> OptimWrapper:
    """Build the config's optimizer, in mixed precision with bfloat16 if `half`."""
    settings = config.optim_wrapper.to_dict()
    settings = {key: settings[key] for key in settings if key not in ("dtype", "loss_scale")}
    if half:
        settings |= dict(type="PortableAmpOptimWrapper", dtype="bfloat16")
    else:
        settings["type"] = "OptimWrapper"
    if fused:
        settings["optimizer"] = {**settings["optimizer"], "fused": True}
    return build_optim_wrapper(model, settings)


def set_precision(precision: str) -> None:
    """Set torch's precision of float32 products: 'float32' is exact, others allow TF32."""
    exact = precision == "float32"
    torch.set_float32_matmul_precision("highest" if exact else "high")
    torch.backends.cudnn.allow_tf32 = not exact

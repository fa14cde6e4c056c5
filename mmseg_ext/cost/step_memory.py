"""Peak memory of a training step on a GPU, computed without one; and plans for numbers of GPUs.

`training_memory` runs one step on `SimulatedCUDA`, whose tensors have sizes and no data, and
records how much of them exists at the same time.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.model import BaseModel
from mmengine.optim import build_optim_wrapper
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample
from torch import Tensor, nn

from mmseg_ext.cost.simulated_cuda import SimulatedCUDA
from mmseg_ext.engine.build import build_segmentor
from mmseg_ext.engine.build_errors import explained_without_data
from mmseg_ext.engine.config import crop_size, input_channels, type_name
from mmseg_ext.torch_versions import HAS_FOREACH_WITHOUT_DATA

GIBI = 2**30


@dataclass
class StepMemory:
    """Bytes of one training step on one GPU.

    `total` is the peak. It is below the sum of the others: most gradients do not exist yet when the
    activations are largest. Not counted: the CUDA context, workspaces of cuDNN and cuBLAS,
    fragmentation, and the copy of the weights that an EMA keeps.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    total: int

    def peak(self, gpus: int = 1, accumulation: int = 1) -> int:
        """Return the peak on each of several GPUs and with accumulated gradients."""
        if gpus == 1 and accumulation == 1:
            return self.total
        # All gradients exist all the time: of the batches before, or in the buckets of DDP.
        kept = self.weights + self.gradients + self.optimizer + self.activations
        return max(self.total, kept)

    @property
    def checkpoint(self) -> int:
        """Size of a training checkpoint."""
        return self.weights + self.optimizer


def training_memory(config: Config, amp: bool = False) -> StepMemory:
    """Compute the memory of one step of a config's model and optimizer on a batch of its crops.

    `amp` selects mixed precision; some configs have it anyway.
    """
    settings = config.optim_wrapper.to_dict()
    amp = amp or "Amp" in type_name(settings)
    for key in ("dtype", "loss_scale"):  # only of a wrapper with mixed precision
        settings.pop(key, None)
    with SimulatedCUDA() as device:
        model = build_training_model(config, device.device)
        wrapper = build_optim_wrapper(model, {**settings, "type": "OptimWrapper"})
        for group in wrapper.optimizer.param_groups:
            group["foreach"] = HAS_FOREACH_WITHOUT_DATA  # the default on a GPU
        weights = device.peak = device.current

        def count_gradient(parameter: nn.Parameter) -> None:
            if parameter.grad is not None:
                device.gradients += parameter.grad.nbytes

        gradients = 0  # when all of them exist
        for parameter in model.parameters():
            if parameter.requires_grad:
                gradients += parameter.nbytes
                parameter.register_post_accumulate_grad_hook(count_gradient)
        with explained_without_data(config):
            with device.autocast(torch.float16 if amp else None):
                loss = training_loss(model, batch_of(config, device.device))
            wrapper.backward(loss)
        del loss
        in_backward = device.peak
        activations = in_backward - weights - device.gradients_at_peak
        before = device.peak = device.current
        wrapper.step()  # creates the state, which exists during all further steps
        optimizer = device.current - before
    total = max(in_backward + optimizer, device.peak)
    return StepMemory(weights, gradients, optimizer, activations, total)


def build_training_model(config: Config, device: torch.device) -> BaseModel:
    """Build a config's segmentor on a device, in training mode."""
    with device:
        model = build_segmentor(config)
    model.data_preprocessor.to(device)  # it moves batches there
    return model.train()


def batch_of(config: Config, device: torch.device) -> dict:
    """Return a batch of the config's crops, as its dataloader gives them to the model."""
    images, samples = [], []
    height, width = crop_size(config)
    channels = input_channels(config.model)
    meta = {"img_shape": (height, width), "ori_shape": (height, width)}
    for _ in range(config.train_dataloader.batch_size):
        image = torch.zeros(channels, height, width, dtype=torch.uint8, device=device)
        images.append(image)
        label = torch.zeros(1, height, width, dtype=torch.long, device=device)
        samples.append(SegDataSample(metainfo=meta, gt_sem_seg=PixelData(data=label)))
    return {"inputs": images, "data_samples": samples}


def training_loss(model: Any, batch: dict) -> Tensor:
    """Return the loss of a `BaseModel` that mmengine's `train_step` minimizes."""
    data = model.data_preprocessor(batch, training=True)
    return model.parse_losses(model(**data, mode="loss"))[0]


@dataclass
class Plan:
    """Options that train a config on `gpus` GPUs; `exact` if they keep the published protocol."""

    gpus: int
    images: int
    accumulation: int
    options: str
    exact: bool

    def memory(self, config: Config, amp: bool = False) -> tuple[int, int]:
        """Return the peak on each GPU and the size of a checkpoint, in bytes."""
        config = copy.deepcopy(config)
        config.train_dataloader.batch_size = self.images
        memory = training_memory(config, amp)
        return memory.peak(self.gpus, self.accumulation), memory.checkpoint


def plans(config: Config, gpus: int) -> list[Plan]:
    """Return the ways to train a config on a number of GPUs, the exact one first.

    Equal batches are exact for SyncBN and models without batch norm. Accumulation is not exact with
    batch norm: its statistics are of the images that are on the GPUs together.
    """
    batch, images = config.auto_scale_lr.base_batch_size, config.train_dataloader.batch_size
    own, rest = divmod(batch, gpus)
    if rest:
        options = "--auto-scale-lr --cfg-options train_dataloader.batch_size=1"
        found = [Plan(gpus, 1, 1, options, False)]
    else:
        options = ""
        if own != images:
            options = f"--cfg-options train_dataloader.batch_size={own}"
        exact = own == images or not _has_norm(config.model, "BN")
        found = [Plan(gpus, own, 1, options, exact)]
    times, rest = divmod(batch, gpus * images)
    if times > 1 and not rest:
        exact = not (_has_norm(config.model, "BN") or _has_norm(config.model, "SyncBN"))
        found.append(Plan(gpus, images, times, _accumulation(config, times), exact))
    return found


def _has_norm(model: ConfigDict, kind: str) -> bool:
    return f"'type': '{kind}'" in str(model.to_dict())


def _accumulation(config: Config, times: int) -> str:
    """Return options that accumulate `times` batches a step and count iterations accordingly."""
    options = {"optim_wrapper.accumulative_counts": times}
    for key in ("max_iters", "val_interval"):
        options[f"train_cfg.{key}"] = times * config.train_cfg[key]
    options["default_hooks.checkpoint.interval"] = times * config.default_hooks.checkpoint.interval
    for i, scheduler in enumerate(config.param_scheduler):
        for key in ("begin", "end", "interval"):
            if scheduler.get(key):
                options[f"param_scheduler.{i}.{key}"] = times * scheduler[key]
    return "--cfg-options " + " ".join(f"{key}={value}" for key, value in options.items())


MEMORY_HEADINGS = ["config", "crop", "images", "weights", "gradients", "optimizer"]
MEMORY_HEADINGS += ["activations", "total, GiB", "with DDP", "checkpoint"]


def memory_cells(name: str, config: Config, memory: StepMemory) -> list[str]:
    """Return the row under `MEMORY_HEADINGS`."""
    height, width = crop_size(config)
    row = [f"`{name}`", f"{height}x{width}", str(config.train_dataloader.batch_size)]
    parts = [memory.weights, memory.gradients, memory.optimizer, memory.activations, memory.total]
    for size in parts + [memory.peak(gpus=2), memory.checkpoint]:
        row.append(f"{size / GIBI:.2f}")
    return row

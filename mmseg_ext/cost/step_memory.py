"""Peak memory of one training step, computed without a GPU and without the memory."""

import contextlib
import weakref
from dataclasses import dataclass

import torch
from mmengine.config import Config
from mmengine.model.utils import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.structures import PixelData
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from mmseg_ext.cost.dataless import DatalessTensor, PretendedDevice


@dataclass
class StepMemory:
    """Bytes of one training step on one GPU.

    `total` is the peak. It is below the sum of the other four: when the activations are largest,
    most gradients do not exist yet. Not counted: the CUDA context, workspaces of cuDNN and cuBLAS,
    fragmentation, and an EMA's copy of the weights.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    total: int

    @property
    def with_ddp(self) -> int:
        """The peak on one of several GPUs: DistributedDataParallel copies all gradients."""
        return self.total + self.gradients


class MemoryTracker(PretendedDevice):
    """A `PretendedDevice` that adds up the storages of its tensors.

    `current` and `peak` are bytes; `gradients_at_peak` those of `.grad` when the peak was reached.
    """

    def __init__(self, kind: str = "cuda"):
        super().__init__(kind)
        self.current = self.peak = self.gradients = self.gradients_at_peak = 0
        self._known = WeakIdKeyDictionary()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        outputs = super().__torch_dispatch__(operator, types, args, kwargs)
        self.track(outputs)
        return outputs

    def track(self, tensors) -> None:
        for tensor in tree_leaves(tensors):
            if not isinstance(tensor, DatalessTensor):
                continue
            storage = tensor.meta.untyped_storage()
            if storage in self._known:
                continue
            self._known[storage] = None
            self.current += storage.nbytes()
            weakref.finalize(storage, self._release, storage.nbytes())
        if self.current > self.peak:
            self.peak, self.gradients_at_peak = self.current, self.gradients

    def count_gradient(self, parameter: nn.Parameter) -> None:
        """Add the gradient of a parameter that a backward has just reached."""
        self.gradients += parameter.grad.numel() * parameter.grad.element_size()

    def _release(self, size: int) -> None:
        self.current -= size


def training_memory(config: Config, amp: bool = False, kind: str = "cuda") -> StepMemory:
    """Compute the memory of a training step of a config's model, crop, batch and optimizer.

    `amp` is mixed precision in a half type; a config whose optimizer wrapper has it gets it anyway.
    `kind` is the device type: a CPU runs other kernels.
    """
    settings = config.optim_wrapper.to_dict()
    amp = amp or "Amp" in settings["type"]
    settings = {k: v for k, v in settings.items() if k not in ("type", "dtype", "loss_scale")}
    with MemoryTracker(kind) as tracker:
        model = build_model(config.model, tracker)
        wrapper = build_optim_wrapper(model, {"type": "OptimWrapper", **settings})
        if kind == "cuda":  # the default of torch.optim on a GPU
            for group in wrapper.optimizer.param_groups:
                group["foreach"] = True
        weights = tracker.current
        trained = [p for p in model.parameters() if p.requires_grad]
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(tracker.count_gradient)
        tracker.peak = tracker.current
        loss = training_loss(model, *training_batch(config, tracker.device), amp)
        wrapper.backward(loss)
        del loss
        peak, gradients_at_peak = tracker.peak, tracker.gradients_at_peak
        tracker.peak, before = tracker.current, tracker.current
        wrapper.step()  # creates the optimizer's state, which later steps hold all the time
        optimizer = tracker.current - before
    gradients = sum(p.numel() * p.element_size() for p in trained)
    activations = peak - weights - gradients_at_peak
    return StepMemory(weights, gradients, optimizer, activations, max(peak + optimizer, tracker.peak))


def build_model(settings: dict, device: PretendedDevice) -> nn.Module:
    """Build a config's model, in training mode, on the pretended device."""
    with torch.device("meta"):
        model = revert_sync_batchnorm(MODELS.build({**settings, "pretrained": None}))
    device.adopt(model).data_preprocessor.to(device.device)  # to which it moves batches
    return model.train()


def training_batch(config: Config, device: torch.device) -> tuple[list, list]:
    """Return images and labels of one batch of crops, as the config's pipeline packs them."""
    images, samples = [], []
    for _ in range(config.train_dataloader.batch_size):
        images.append(torch.zeros(3, *config.crop_size, dtype=torch.uint8, device=device))
        label = torch.zeros(1, *config.crop_size, dtype=torch.long, device=device)
        size = {"img_shape": config.crop_size, "ori_shape": config.crop_size}
        samples.append(SegDataSample(metainfo=size, gt_sem_seg=PixelData(data=label)))
    return images, samples


def training_loss(model: nn.Module, images: list, samples: list, amp: bool) -> Tensor:
    """Return the loss that mmengine's `train_step` minimizes."""
    with torch.autocast("cuda", torch.float16) if amp else contextlib.nullcontext():
        data = model.data_preprocessor({"inputs": images, "data_samples": samples}, True)
        return model.parse_losses(model(**data, mode="loss"))[0]

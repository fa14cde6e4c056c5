"""Plans for numbers of GPUs, and the memory of a small model in numbers."""

import copy

import torch
from mmengine.config import ConfigDict
from mmengine.model import BaseModel
from mmseg.registry import MODELS

from mmseg_ext.cost.step_memory import (
    GIBI,
    StepMemory,
    batch_of,
    memory_cells,
    plans,
    training_memory,
)
from tests.configs import CONFIGS
from tests.configs import load as load_path


def load(name: str):
    return load_path(CONFIGS / f"{name}.py")


@MODELS.register_module()
class TwoLayers(BaseModel):
    """Layers of 100 numbers for each image; one is frozen."""

    def __init__(self, pretrained, size):
        preprocessor = {"type": "SegDataPreProcessor", "size": size}
        super().__init__({**preprocessor, "mean": [0.0] * 3, "std": [1.0] * 3})
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
    assert one.checkpoint == one.weights + one.optimizer
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


def test_a_batch_has_the_configured_images():
    batch = batch_of(small_config(3), "cpu")
    assert [(x.shape, x.dtype) for x in batch["inputs"]] == [((3, 5, 5), torch.uint8)] * 3
    labels = [sample.gt_sem_seg.data for sample in batch["data_samples"]]
    assert [(x.shape, x.dtype) for x in labels] == [((1, 5, 5), torch.long)] * 3
    memory = StepMemory(*(i * GIBI for i in range(1, 6)))
    row = ["`a`", "5x5", "3", *["1.00", "2.00", "3.00", "4.00", "5.00", "7.00", "4.00"]]
    assert memory_cells("a", small_config(3), memory) == row
    assert GIBI == 1024**3


def test_peak_with_several_gpus_and_accumulation():
    memory = StepMemory(weights=10, gradients=10, optimizer=20, activations=100, total=131)
    assert (memory.peak(), memory.peak(gpus=2), memory.checkpoint) == (131, 141, 30)
    assert memory.peak(accumulation=2) == 140


def test_plans_keep_the_published_batch_where_they_can():
    """ADE20K with 4 x 4 images: eight GPUs need two images each."""
    config = load("ea_r101_ade20k_160k")
    (four,) = plans(config, 4)
    assert (four.images, four.options, four.exact) == (4, "", True)
    (eight,) = plans(config, 8)
    assert eight.options == "--cfg-options train_dataloader.batch_size=2" and eight.exact
    two, accumulated = plans(config, 2)
    assert (two.images, two.exact) == (8, True)
    assert (accumulated.images, accumulated.accumulation, accumulated.exact) == (4, 2, False)
    (sixteen,) = plans(load("ea_r101_cityscapes_80k"), 16)  # published with 8 images
    assert sixteen.options.startswith("--auto-scale-lr ") and not sixteen.exact
    # Batch norm without synchronization sees the images of one GPU.
    assert not plans(load("ea_r18_shapes"), 2)[0].exact


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

"""Wrong settings end in one line that names the key; what mmengine trains is never refused."""

from pathlib import Path

import mmseg
import pytest
import torch
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS, OPTIMIZERS
from mmseg.evaluation import IoUMetric
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.registry import METRICS, MODELS, TRANSFORMS
from torch import nn

from mmseg_ext.commands.train import parser, runner_of
from mmseg_ext.engine.amp import PortableAmpOptimWrapper
from mmseg_ext.engine.build_errors import dataset_warnings, explained
from mmseg_ext.errors import LaunchError
from tests.engine.runs import log_text, write_config

WRONG = [  # key and value of --cfg-options, and what the line must say
    ("custom_hooks", [{"type": "FiniteLosHook"}], ("custom_hooks.0.type", "'FiniteLossHook'")),
    ("model.decode_head.chanels", 8, ("decode_head.chanels=8", "did you mean 'channels'")),
    ("model.backbone.depth", 19, ("model.backbone.depth=19", "invalid depth 19")),
    ("train_dataloader.batch_sise", 2, ("train_dataloader.batch_sise=2", "'batch_size'")),
    ("train_dataloader.dataset.data_root", "/no", ("train_dataloader.dataset", "'/no/images'")),
    ("runner_type", "DurableRuner", ("runner_type='DurableRuner'", "'DurableRunner'")),
]


def built(config: Path, options: dict | None = None, *flags: str):
    args = parser().parse_args([str(config), "--work-dir", str(config.parent / "work"), *flags])
    args.cfg_options = options
    return runner_of(args)


def train(config: Path, options: dict | None = None, *flags: str):
    """The Runner after a training as train.py starts it."""
    runner = built(config, options, *flags)
    with explained(runner.cfg):
        runner.train()
    return runner


@pytest.mark.parametrize(("key", "value", "told"), WRONG, ids=lambda v: str(v)[:40])
def test_a_wrong_setting_ends_in_one_line(tmp_path, key, value, told):
    with pytest.raises(LaunchError) as refusal:
        train(write_config(tmp_path), {key: value})
    message = str(refusal.value)
    assert "\n" not in message
    for part in told:
        assert part in message


def test_options_that_nothing_reads_and_other_dataset_warnings_are_warnings(tmp_path, capsys):
    options = {"randomnes.seed": 1, "norm_cfg.type": "BN", "model.decode_head.num_classes": 4}
    built(write_config(tmp_path), options)
    told = capsys.readouterr().err
    assert "did you mean 'randomness'" in told and "nothing reads 'norm_cfg'" in told
    assert "decode_head.num_classes=4, but a dataset has 3 classes" in log_text(tmp_path / "work")


# ---------------------------------------------------------------------- what must not be refused


@MODELS.register_module()
class OneChannelBackbone(nn.Module):
    """For images of one size, with numpy in its forward and other names than mmseg's."""

    def __init__(self, in_chans: int = 3, depth: int = 1, **kwargs):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(in_chans, 8, 1) for _ in range(depth))
        self.position = nn.Parameter(torch.zeros(1, 8, 32, 32))

    def forward(self, x):
        assert x.detach().cpu().numpy().shape[1] == 1
        return tuple(layer(x) + self.position for layer in self.layers)


@MODELS.register_module()
class SummingHead(BaseDecodeHead):
    """Uses every feature, whatever `in_index` says."""

    def forward(self, inputs):
        return self.cls_seg(sum(inputs))


@TRANSFORMS.register_module()
class OwnAugmentations:
    """As mmseg's Albu: the types in `transforms` are another package's."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, results):
        return results


@METRICS.register_module()
class IoUMetricWithOneMore(IoUMetric):
    def compute_metrics(self, results):
        return {**super().compute_metrics(results), "one_more": 1.0}


@OPTIMIZERS.register_module()
class SGDWithoutRate(torch.optim.SGD):
    def __init__(self, params, lr=None):
        super().__init__(params, lr=0.01 if lr is None else lr)


@OPTIM_WRAPPERS.register_module()
class CountingOptimWrapper(OptimWrapper):
    steps = 0

    def step(self, **kwargs):
        self.steps += 1
        super().step(**kwargs)


LARGER_CROP = """
train_dataloader["dataset"] = dict(**{**dataset, "pipeline": [
    *load[:2], dict(type="Resize", scale=(64, 64)), dict(type="RandomCrop", crop_size=48),
    dict(type="OwnAugmentations", transforms=[dict(type="RandomBrightnessContrast", p=0.1)]),
    dict(type="Resize", scale=(32, 32)), load[2]]})
"""
OWN_PARTS = """
model["data_preprocessor"].update(
    mean=[120.0], std=[60.0], bgr_to_rgb=False, size=None, size_divisor=32)
model["backbone"] = dict(type="OneChannelBackbone", in_chans=1, depth=2, depths=3)
model["decode_head"] = dict(
    type="SummingHead", in_channels=8, channels=8, num_classes=3, in_index=7, align_corners=False)
train_dataloader["dataset"] = dict(**{**dataset, "pipeline": [
    dict(type="LoadImageFromFile", color_type="grayscale"), *load[1:]]})
val_cfg = val_dataloader = val_evaluator = None
"""
OWN_METRIC = """
train_cfg["val_interval"] = 2
val_evaluator = dict(type="IoUMetricWithOneMore", iou_metrics="mIoU")
default_hooks["checkpoint"].update(save_best="one_more", rule="greater")
"""
NO_VALIDATION = "val_cfg = val_dataloader = val_evaluator = None\n"
VALID = {
    "crop and augmentations": (LARGER_CROP, {}),
    "own parts": (OWN_PARTS, {}),
    "own metric": (OWN_METRIC, {}),
    "inherited save_best": (NO_VALIDATION, {"default_hooks.checkpoint.interval": -1}),
    "count as float": ("", {"train_cfg.max_iters": 2.0}),
    "rate of the optimizer": (
        'optim_wrapper["optimizer"] = dict(type="SGDWithoutRate", lr=None)\nparam_scheduler = []\n',
        {},
    ),
    "removed hooks": (
        "",
        {f"default_hooks.{name}": None for name in ("timer", "sampler_seed", "checkpoint")},
    ),
    "keys of mmengine and of hooks": (
        "",
        {"activation_checkpointing": ["backbone.layer1"], "efficient_conv_bn_eval": ["backbone"]}
        | {"read_by_my_hook": 1},
    ),
}


@pytest.mark.parametrize("case", VALID)
def test_valid_settings_train(tmp_path, case):
    extra, options = VALID[case]
    assert train(write_config(tmp_path, extra), {"train_cfg.max_iters": 2} | options).iter == 2


def test_amp_keeps_a_subclass_of_the_wrapper(tmp_path):
    config = write_config(tmp_path, "optim_wrapper['type'] = 'CountingOptimWrapper'\n")
    wrapper = train(config, {"train_cfg.max_iters": 2}, "--amp").optim_wrapper
    assert isinstance(wrapper, CountingOptimWrapper) and wrapper.steps == 2
    assert isinstance(wrapper, PortableAmpOptimWrapper) and wrapper.cast_dtype == torch.bfloat16


MMSEG = """
_base_ = [{base!r}]
model = dict(pretrained=None, data_preprocessor=dict(size=(64, 64)), backbone=dict({backbone}))
train_dataloader = dict(
    _delete_=True, batch_size=2, num_workers=0, sampler=dict(type="InfiniteSampler"),
    dataset=dict(
        type="CityscapesDataset", data_root={data!r}, img_suffix=".png", seg_map_suffix=".png",
        data_prefix=dict(img_path="images", seg_map_path="labels"),
        pipeline=[dict(type="LoadImageFromFile"), dict(type="LoadAnnotations"),
                  dict(type="GenerateEdge", edge_width=4), dict(type="PackSegInputs")]))
val_cfg = val_dataloader = val_evaluator = None
train_cfg = dict(max_iters=2)
"""


@pytest.mark.parametrize(
    ("base", "backbone"),
    [
        ("ocrnet/ocrnet_hr18s_4xb2-40k_cityscapes-512x1024", ""),
        ("ocrnet/ocrnet_hr18_4xb2-40k_cityscapes-512x1024", ""),
        ("pidnet/pidnet-s_2xb6-120k_1024x1024-cityscapes", "init_cfg=None"),
        ("stdc/stdc1_4xb12-80k_cityscapes-512x1024", ""),
    ],
    ids=["OCRNet", "OCRNet on HRNet-18", "PIDNet", "STDC"],
)
def test_mmsegs_own_configs_train(tmp_path, base, backbone):
    """Heads that take another head's output, a head on three features, one with 2 classes."""
    write_config(tmp_path)  # its images
    config = tmp_path / "mmseg.py"
    path = str(Path(mmseg.__file__).parent / f".mim/configs/{base}.py")
    config.write_text(MMSEG.format(base=path, backbone=backbone, data=str(tmp_path / "data")))
    runner = train(config)
    assert runner.iter == 2
    assert dataset_warnings(runner) == []


def test_datasets_that_count_their_labels_otherwise_are_a_warning(tmp_path):
    built(write_config(tmp_path), {"val_dataloader.dataset.reduce_zero_label": True})
    assert log_text(tmp_path / "work").count("reduce_zero_label is True in one dataset") == 1

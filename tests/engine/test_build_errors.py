"""Wrong settings end in one line that names the key; valid settings are never refused."""

import copy
import sys
from pathlib import Path

import mmseg
import pytest
import torch
from mmengine.config import Config
from mmengine.model import BaseModule
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from mmseg.models.decode_heads import FCNHead
from mmseg.registry import MODELS

from mmseg_ext.commands.train import parser, runner_of
from mmseg_ext.engine.amp import PortableAmpOptimWrapper
from mmseg_ext.engine.build_errors import dataset_warnings, explained, format_error, unread_options
from mmseg_ext.engine.launch import load_settings
from mmseg_ext.errors import LaunchError
from tests.engine.runs import log_text, write_config

# Settings of a tiny config that are wrong, and how the line starts; by default by key=value.
WRONG: list[tuple] = [
    ("model.type", "EncoderDecodr"),
    ("model.backbone", "ResNet"),
    ("model.backbone.type", "ResNetV1"),
    ("model.backbone.depth", 19),
    ("model.backbone.dept", 18),
    ("model.backbone.strides", (1, 2, 2)),
    ("model.backbone.out_indices", (0, 9)),
    ("model.backbone.norm_cfg.type", "SyncBNN"),
    ("model.backbone.norm_cfg.num_groups", 3),
    ("model.decode_head", None),
    ("model.decode_head.chanels", 8),
    ("model.decode_head.in_channels", None),
    ("model.decode_head.in_index", [0, 1]),
    ("model.decode_head.num_classes", -3, "model.decode_head: RuntimeError"),
    ("model.decode_head.loss_decode", {"type": "CrossEntropyLos"}, "{key}.type='CrossEntropyLos'"),
    ("model.decode_head.loss_decode", {"type": "DiceLoss", "weigth": 2}, "{key}.weigth=2"),
    ("model.decode_head.sampler", {"type": "OHEMPixelSampler", "tresh": 1}, "{key}.tresh=1"),
    ("model.decode_head.act_cfg", {"type": "ReLUU"}, "{key}.type='ReLUU'"),
    ("model.decode_head.type", "HeadOfDetection"),
    ("model.auxiliary_head", {"type": "FCNHead"}, "model.auxiliary_head: TypeError"),
    ("model.data_preprocessor.type", "SegDataPreprocesor"),
    ("model.data_preprocessor.bgr2rgb", True),
    ("train_dataloader.batch_sise", 2),
    ("train_dataloader.batch_size", 0),
    ("train_dataloader.num_workers", -1),
    ("train_dataloader.persistent_workers", True, "train_dataloader.num_workers=0, persistent_w"),
    ("train_dataloader.timeout", -1),
    ("train_dataloader.dataset", None),
    ("train_dataloader.sampler.type", "InfinitSampler"),
    ("train_dataloader.sampler.shufle", True),
    ("train_dataloader.dataset.type", "BaseSegDatset"),
    ("train_dataloader.dataset.img_sufix", ".png"),
    ("train_dataloader.dataset.data_root", "/no", "train_dataloader.dataset"),
    ("train_dataloader.dataset.pipeline", [{"type": "LoadImage"}], "{key}.0.type='LoadImage'"),
    ("train_dataloader.dataset.pipeline", [{"type": "Resize", "scal": 2}], "{key}.0.scal=2"),
    ("val_evaluator.type", "IoUMetrc"),
    ("optim_wrapper.type", "OptimWraper"),
    ("optim_wrapper.optimizer.type", "AdmW"),
    ("optim_wrapper.optimizer.lrr", 0.1),
    ("optim_wrapper.optimizer.lr", -0.1),
    ("optim_wrapper.constructor", "DefaultConstrctor"),
    ("optim_wrapper.clip_gard", {"max_norm": 1}),
    ("optim_wrapper.accumulative_counts", 0),
    ("param_scheduler.0.type", "PolyLr"),
    ("param_scheduler.0.eta_mn", 0),
    ("param_scheduler.0.begin", 50, "param_scheduler.0"),
    ("custom_hooks", [{"type": "FiniteLosHook"}], "custom_hooks.0.type='FiniteLosHook'"),
    ("custom_hooks", ["FiniteLossHook"], "custom_hooks.0='FiniteLossHook'"),
    ("default_hooks.logger.interval", "often"),
    ("default_hooks.checkpoint.type", "CheckpointHok"),
    ("default_hooks.checkpoint.save_best", "mIuO"),
    ("train_cfg.max_itrs", 5),
    ("train_cfg.type", "IterBasedTrainLop"),
    ("val_cfg.fp61", True),
    (
        "visualizer.vis_backends",
        [{"type": "LocalVis"}],
        "visualizer.vis_backends.0.type='LocalVis'",
    ),
    ("log_processor.windowsize", 3),
    ("randomness.sed", 3),
]
# These fail only in the constructor of the Runner, or in training.
WRONG_RUNS: list[tuple] = [
    ("val_dataloader.persistent_workers", True, "val_dataloader.num_workers=0, persistent_workers"),
    ("default_scope", "mmsegg"),
    ("runner_type", "DurableRuner"),
    ("model.backbone.init_cfg", {"type": "Pretraned"}, "{key}.type='Pretraned'"),
    ("default_hooks.checkpoint.intervall", 5),
]
SUGGESTED = {"AdmW": "AdamW", "batch_sise": "batch_size", "chanels": "channels", "mmsegg": "mmseg"}
SUGGESTED |= {"SyncBNN": "SyncBN", "intervall": "interval", "DurableRuner": "DurableRunner"}


@MODELS.register_module()
class HeadOfDetection(BaseModule):
    """As mmsegmentation's MaskFormerHead where mmdetection does not import."""

    def __init__(self, num_classes: int, align_corners: bool, **kwargs):
        super().__init__(**kwargs)


MMDET_HeadOfDetection = BaseModule


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


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    """A Runner that is built; its methods build the parts of wrong configs."""
    config = write_config(tmp_path_factory.mktemp("runner"))
    return built(config, {"log_processor.window_size": 10, "val_cfg.fp16": False})


def build(runner, cfg, part: str) -> None:
    """Build a part of the config as the Runner does."""
    if part in ("train_cfg", "val_cfg", "train_dataloader"):
        method = runner.build_dataloader if "loader" in part else runner.build_train_loop
        method = runner.build_val_loop if part == "val_cfg" else method
        method(cfg[part])
    elif part == "randomness":
        runner.set_randomness(**cfg[part])
    elif part.endswith("_hooks"):
        getattr(runner, f"register_{part}")(cfg[part])
    elif part == "param_scheduler":
        runner.optim_wrapper = runner.build_optim_wrapper(cfg.optim_wrapper)
        runner.build_param_scheduler(cfg[part])
    else:
        getattr(runner, f"build_{part.removeprefix('val_')}")(cfg[part])


def check_line(error: Exception, key: str, value: object, start: str = "{key}={value!r}: ") -> None:
    line = str(error)
    assert line.startswith(start.format(key=key, value=value)) and "\n" not in line
    meant = [SUGGESTED.get(word) for word in (str(value), key.rpartition(".")[2])]
    assert all(f"did you mean {word!r}" in line for word in meant if word)


@pytest.mark.parametrize("row", WRONG, ids=lambda row: f"{row[0]}={row[1]}"[:60])
def test_a_wrong_setting_is_named(runner, row):
    """The line names the part of the config if the error mentions no setting."""
    key, value, *start = row
    cfg = copy.deepcopy(runner.cfg)
    cfg.merge_from_dict({key: value})
    with pytest.raises((LaunchError, RuntimeError)) as refusal, explained(cfg):
        build(runner, cfg, key.split(".")[0])
    check_line(refusal.value, key, value, *start)
    vague = start and "Error" in start[0]
    assert isinstance(refusal.value, LaunchError) != bool(vague)


@pytest.mark.parametrize("row", WRONG_RUNS, ids=lambda row: f"{row[0]}={row[1]}"[:60])
def test_a_wrong_setting_of_a_run_is_named(tmp_path, row):
    key, value, *start = row
    with pytest.raises(LaunchError) as refusal:
        train(write_config(tmp_path), {"train_cfg.max_iters": 1, key: value})
    check_line(refusal.value, key, value, *start)


@MODELS.register_module()
class BrokenHead(FCNHead):
    """A user's own, with a bug that training meets, or building."""

    def __init__(self, early: bool, **kwargs):
        super().__init__(**kwargs)
        if early:
            self.nowhere  # noqa: B018

    def forward(self, inputs):
        return 1 / 0


def test_a_bug_in_an_own_part_keeps_its_traceback(tmp_path):
    """Building names the part; an error of a training step is not about the config."""
    own = {"model.decode_head.type": "BrokenHead", "model.decode_head.early": True}
    config = write_config(tmp_path)
    with pytest.raises(RuntimeError, match=r"^model\.decode_head: AttributeError") as refusal:
        train(config, own)
    assert isinstance(refusal.value.__cause__, AttributeError)
    with pytest.raises(ZeroDivisionError):
        train(config, own | {"model.decode_head.early": False})


def test_a_failing_import_shows_its_cause(tmp_path):
    (tmp_path / "own_module.py").write_text("import no_such_package\n")
    config = write_config(tmp_path, "custom_imports['imports'].append('own_module')\n")
    sys.path.insert(0, str(tmp_path))
    try:
        with pytest.raises(LaunchError, match=r"own_module.*no_such_package"):
            built(config)
    finally:
        sys.path.remove(str(tmp_path))


def test_options_that_nothing_reads_and_datasets_that_do_not_fit_are_warnings(
    tmp_path, capsys, monkeypatch
):
    options = {"randomnes.seed": 1, "norm_cfg.type": "BN", "model.decode_head.num_classes": 4}
    built(write_config(tmp_path), options | {"val_dataloader.dataset.reduce_zero_label": True})
    told = capsys.readouterr().err
    assert "nothing reads 'norm_cfg' after the config is loaded\n" in told
    assert "did you mean 'randomness'" in told and told.count("nothing reads") == 2
    log = log_text(tmp_path / "work")
    assert "decode_head.num_classes=4, but a dataset has 3 classes" in log
    assert log.count("reduce_zero_label is True in one dataset") == 1
    monkeypatch.setenv("RANK", "1")
    load_settings(str(tmp_path / "tiny.py"), options)
    assert capsys.readouterr().err == ""
    read = ("custom_imports", "find_unused_parameters", "min_backbone_share", "compile", "sync_bn")
    read += ("model_wrapper_cfg", "runner_type", "tta_model", "tta_pipeline", "model")
    assert unread_options(Config(), [f"{key}.type" for key in read]) == []


def test_errors_are_one_short_line():
    assert format_error(KeyError("a b")) == "KeyError: a b"
    assert format_error(KeyError()) == "KeyError:"
    assert format_error(ValueError("a\n b" * 99)) == "ValueError: " + ("a b" * 99)[:285] + "..."
    assert format_error(ValueError("a" * 288)) == "ValueError: " + "a" * 288


# ---------------------------------------------------------------------- what must not be refused


@OPTIM_WRAPPERS.register_module()
class CountingOptimWrapper(OptimWrapper):
    steps = 0

    def step(self, **kwargs):
        self.steps += 1
        super().step(**kwargs)


@pytest.mark.parametrize(
    "options",
    [
        {f"default_hooks.{name}": None for name in ("timer", "sampler_seed", "checkpoint")},
        {"activation_checkpointing": ["backbone.layer1"], "efficient_conv_bn_eval": ["backbone"]}
        | {"read_by_my_hook": 1},
        {"runner_type": "Runner"},
    ],
    ids=["removed hooks", "keys of mmengine and of hooks", "our hooks in mmengine's Runner"],
)
def test_valid_settings_train(tmp_path, options):
    assert train(write_config(tmp_path), {"train_cfg.max_iters": 2} | options).iter == 2
    assert "WARNING - model.backbone" not in log_text(tmp_path / "work")


def test_amp_keeps_a_subclass_of_the_wrapper(tmp_path):
    config = write_config(tmp_path, "optim_wrapper['type'] = 'CountingOptimWrapper'\n")
    wrapper = train(config, {"train_cfg.max_iters": 2}, "--amp").optim_wrapper
    assert isinstance(wrapper, CountingOptimWrapper) and wrapper.steps == 2
    assert isinstance(wrapper, PortableAmpOptimWrapper) and wrapper.cast_dtype == torch.bfloat16


MMSEG = """
_base_ = [{base!r}]
model = dict(pretrained=None, data_preprocessor=dict(size=(64, 64)))
train_dataloader = dict(
    _delete_=True, batch_size=2, num_workers=0, sampler=dict(type="InfiniteSampler"),
    dataset=dict(
        type="CityscapesDataset", data_root={data!r}, img_suffix=".png", seg_map_suffix=".png",
        data_prefix=dict(img_path="images", seg_map_path="labels"),
        pipeline=[dict(type="LoadImageFromFile"), dict(type="LoadAnnotations"),
                  dict(type="PackSegInputs")]))
val_cfg = val_dataloader = val_evaluator = None
train_cfg = dict(max_iters=2)
"""


def test_a_config_of_mmseg_trains_without_warnings(tmp_path):
    """The second of two decode heads takes the output of the first."""
    write_config(tmp_path)  # its images
    config, base = tmp_path / "mmseg.py", "ocrnet/ocrnet_hr18s_4xb2-40k_cityscapes-512x1024.py"
    path = Path(mmseg.__file__).parent / ".mim/configs" / base
    config.write_text(MMSEG.format(base=str(path), data=str(tmp_path / "data")))
    runner = train(config)
    assert runner.iter == 2
    assert dataset_warnings(runner) == []

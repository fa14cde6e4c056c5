"""Wrong settings: each is refused before anything is built, in one line that says what is legal."""

import pytest
from mmengine.config import Config

from mmseg_ext.engine.config_check import check_config, check_options
from mmseg_ext.errors import LaunchError
from tests.configs import CONFIGS

# Key and value of --cfg-options, and what the one line must say.
WRONG_TRAINING = [
    ("model.decode_head.type", "EAHeadd", ("EAHeadd", "did you mean 'EAHead'")),
    ("model.decode_head.memory_sizes", 8, ("memory_sizes=8", "did you mean 'memory_size'")),
    ("model.backbone.deepth", 18, ("deepth=18", "did you mean 'depth'")),
    ("model.backbone.depth", 19, ("19",)),
    ("model.backbone.out_indices", (0, 9), ("model", "out_indices")),
    ("model.backbone.norm_cfg.typ", "BN", ("norm_cfg.typ", "did you mean 'type'")),
    ("model.decode_head.norm_cfg.type", "SyncBNN", ("did you mean 'SyncBN'",)),
    ("model.decode_head.loss_decode.type", "CrossEntropyLos", ("'CrossEntropyLoss'",)),
    ("model.decode_head.loss_decode.weight", 3, ("'loss_weight'",)),
    ("model.decode_head.normalization", "tripel", ("tripel", "double")),
    ("model.decode_head.memory_size", 0, ("memory_size", "0")),
    ("model.decode_head.channels", 0, ("decode_head.channels=0",)),
    ("model.decode_head.dropout_ratio", 2, ("2",)),
    ("model.decode_head.num_classes", 7, ("num_classes=7", "6 classes")),
    ("model.decode_head.num_classes", "six", ("num_classes='six'",)),
    ("model.decode_head.in_channels", 100, ("in_channels=100", "128 channels")),
    ("model.decode_head.in_index", 9, ("in_index=9", "0 to 3")),
    ("model.data_preprocessor.size", (0, 0), ("data_preprocessor.size=(0, 0)",)),
    ("model.data_preprocessor.size", (8, 8), ("crop_size", "data_preprocessor.size=(8, 8)")),
    ("model.test_cfg.mode", "whol", ("test_cfg.mode='whol'", "'slide'")),
    ("model.test_cfg.mode", "slide", ("test_cfg.crop_size", "slide")),
    ("train_cfg.type", "IterBasedTrainLop", ("did you mean 'IterBasedTrainLoop'",)),
    ("train_cfg.max_iter", 10, ("max_iter=10", "did you mean 'max_iters'")),
    ("train_cfg.max_iters", 0, ("max_iters=0",)),
    ("train_cfg.val_interval", 0, ("val_interval=0",)),
    ("default_hooks.logger.intervall", 5, ("did you mean 'interval'",)),
    ("default_hooks.checkpoint.intervall", 5, ("did you mean 'interval'",)),
    ("default_hooks.checkpoint.save_best", "mIou", ("aAcc, mAcc, mIoU", "mean 'mIoU'")),
    ("custom_hooks", [{"type": "FiniteLosHook"}], ("did you mean 'FiniteLossHook'",)),
    ("custom_hooks", ["FiniteLossHook"], ("custom_hooks.0", "dict(type=...)")),
    ("param_scheduler", [{"type": "PolyLRR"}], ("did you mean 'PolyLR'",)),
    ("param_scheduler", [{"type": "PolyLR", "powr": 1}], ("powr=1", "mean 'power'")),
    ("train_dataloader.batch_sise", 2, ("batch_sise=2", "did you mean 'batch_size'")),
    ("train_dataloader.batch_size", 0, ("batch_size=0",)),
    ("train_dataloader.num_workers", -1, ("num_workers=-1",)),
    ("train_dataloader.sampler.type", "InfSampler", ("did you mean 'InfiniteSampler'",)),
    ("train_dataloader.dataset.data_rot", "x", ("did you mean 'data_root'",)),
    ("optim_wrapper.type", "OptimWraper", ("did you mean 'OptimWrapper'",)),
    ("optim_wrapper.optimizer.lrr", 0.1, ("did you mean 'lr'",)),
    ("optim_wrapper.optimizer.lr", "fast", ("optimizer.lr='fast'", "number")),
    ("optim_wrapper.optimizer.lr", float("nan"), ("optimizer.lr=nan",)),
    ("optim_wrapper.clip_grad", {"max_nrm": 1}, ("did you mean 'max_norm'",)),
    ("optim_wrapper.accumulative_counts", 0, ("accumulative_counts=0",)),
    ("randomness.sed", 3, ("did you mean 'seed'",)),
    ("randomness.seed", "three", ("seed='three'", "integer")),
    ("val_evaluator", None, ("val_evaluator is missing",)),
    ("val_evaluator.iou_metrics", ["mIuO"], ("mIuO", "did you mean 'mIoU'")),
    ("val_evaluator.iou_metric", ["mIoU"], ("did you mean 'iou_metrics'",)),
    ("visualizer.vis_backends", [{"type": "TensorbordVisBackend"}], ("TensorboardVisBackend",)),
    ("env_cfg.cudnn_bench", True, ("did you mean 'cudnn_benchmark'",)),
    ("log_processor.windowsize", 3, ("did you mean 'window_size'",)),
    ("auto_scale_lr.base_batch", 16, ("did you mean 'base_batch_size'",)),
    ("runner_type", "DurableRuner", ("did you mean 'DurableRunner'",)),
    ("log_level", "LOUD", ("log_level='LOUD'", "INFO")),
    ("resume", "maybe", ("resume='maybe'",)),
    ("tta_model.type", "StreamingSegTTAModell", ("did you mean 'StreamingSegTTAModel'",)),
    ("default_scope", "mmsegg", ("mmsegg",)),
    ("model", None, ("no 'model'",)),
    ("train_dataloader", None, ("no 'train_dataloader'",)),
]


def wrong(key: str, value: object) -> Config:
    cfg = Config.fromfile(CONFIGS / "ea_r18_shapes.py")
    cfg.merge_from_dict({key: value})
    return cfg


@pytest.mark.parametrize(("key", "value", "told"), WRONG_TRAINING, ids=lambda v: str(v)[:40])
def test_a_wrong_setting_is_refused_in_one_line(key, value, told):
    with pytest.raises(LaunchError) as refusal:
        check_config(wrong(key, value), "train")
    message = str(refusal.value)
    assert "\n" not in message
    for part in told:
        assert part in message


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("randomnes.seed", "did you mean 'randomness'"),
        ("load_form", "did you mean 'load_from'"),
        ("data_root", "reads 'data_root' while it loads"),
    ],
)
def test_an_option_that_nothing_reads_is_refused(key, told):
    with pytest.raises(LaunchError, match=told):
        check_options(Config.fromfile(CONFIGS / "ea_r18_shapes.py"), {key: 1})


def test_the_config_stays_as_it_was():
    """mmseg's EncoderDecoder writes into the config that it is built from."""
    cfg = wrong("model.pretrained", "open-mmlab://resnet50_v1c")
    before = cfg.to_dict()
    check_config(cfg, "train")
    assert cfg.to_dict() == before


def test_batch_norm_over_one_value_is_refused_where_the_batch_has_one():
    """PSPNet's pooling to 1x1 leaves one value for each channel of one image."""
    pool = {"_delete_": True, "type": "PSPHead", "in_channels": 128, "in_index": 3}
    pool |= {"channels": 16, "num_classes": 6, "norm_cfg": {"type": "BN"}}
    cfg = Config.fromfile(CONFIGS / "ea_r18_shapes.py")
    cfg.merge_from_dict({"model.decode_head": pool})
    check_config(cfg, "train")
    cfg.train_dataloader.batch_size = 1
    with pytest.raises(LaunchError, match=r"decode_head.*more than 1 value per channel"):
        check_config(cfg, "train")
    check_config(cfg, "test")  # running statistics


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.py")), ids=lambda p: p.stem)
def test_every_config_passes(path):
    check_config(Config.fromfile(path), "train")

"""Every config: its name and numbers, its pipelines on a small dataset, and one training step.

Depths, widths and crops are reduced, so a step takes a fraction of a second. Losses, samplers,
optimizer, schedules and pipelines are the config's. After an intended change of a value,
`python -m tests.test_configs` writes `tests/data/config_values.json`.
"""

import json
import re
from pathlib import Path

import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.dataset import pseudo_collate
from mmengine.model.utils import revert_sync_batchnorm
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmseg.models.backbones.resnet import BasicBlock, Bottleneck, ResNet
from mmseg.registry import DATASETS, MODELS, PARAM_SCHEDULERS

from tests.configs import CONFIGS, EXPERIMENTS, load
from tests.datasets.trees import BASES, datasets, make_tree, set_data_root, write_nuclei

NAME = re.compile(
    r"[a-z0-9]+(?:_[a-z0-9]+)*_(?:voc|ade20k|cityscapes|camvid|nuclei|shapes)"
    r"(?:_finetune)?(?:_(\d+k?))?"
)
VALUES = Path(__file__).parent / "data/config_values.json"

# Those of mmdetection and mmpretrain, too.
ALL = {p.stem: p for p in sorted(CONFIGS.rglob("*.py")) if "_base_" not in p.parts} | EXPERIMENTS

every_config = pytest.mark.parametrize("path", EXPERIMENTS.values(), ids=EXPERIMENTS)


# ---------------------------------------------------------------------- values


def values_in(part, place: str = "") -> dict[str, object]:
    """Return the values of a part of a config by their places, as `model.backbone.depth`."""
    if isinstance(part, list) and part and isinstance(part[0], (dict, list)):
        part = dict(enumerate(part))
    if not part or not isinstance(part, dict):
        return {place: part}
    parts = [values_in(item, f"{place}.{key}".lstrip(".")) for key, item in part.items()]
    return {inner: value for found in parts for inner, value in found.items()}


def resolved(path: Path) -> dict[str, object]:
    """Return every value of a config as JSON types, by its place."""
    config = Config.fromfile(path, import_custom_modules=False)
    return values_in(json.loads(json.dumps(config.to_dict(), default=str)))


def changes(before: dict, now: dict) -> dict[str, object]:
    """Return the values of `now` that differ from `before`; "absent" where `now` has none."""
    places = sorted({*before, *now})
    pairs = {place: (before.get(place, "absent"), now.get(place, "absent")) for place in places}
    return {place: new for place, (old, new) in pairs.items() if new != old}


def test_resolved_values_stay():
    """A change of a base must not change an experiment unnoticed."""
    expected = {"": {}}
    for name, stored in json.loads(VALUES.read_text()).items():
        expected[name] = expected[stored.pop("like")] | stored
        different = changes(expected[name], resolved(ALL[name]))
        assert not different, f"{name}: {different}"


@every_config
def test_name_and_numbers_agree(path):
    config = load(path)
    crop, iterations = tuple(config.crop_size), config.train_cfg.max_iters
    name = NAME.fullmatch(path.stem)
    assert name and name[1] in (None, str(iterations), f"{iterations // 1000}k")
    assert tuple(config.model.data_preprocessor.size) == crop
    pipelines = [part["pipeline"] for part in datasets(config, ["train"])]
    crops = [t["crop_size"] for steps in pipelines for t in steps if t["type"] == "RandomCrop"]
    assert crops and {*map(tuple, crops)} == {crop}
    if config.model.test_cfg.mode == "slide":
        assert tuple(config.model.test_cfg.crop_size) == crop
    gpus, rest = divmod(config.auto_scale_lr.base_batch_size, config.train_dataloader.batch_size)
    assert gpus in (1, 4, 8) and rest == 0 and config.auto_scale_lr.enable is False

    classes = DATASETS.get(config.val_dataloader.dataset.type).METAINFO["classes"]
    auxiliary = config.model.get("auxiliary_head") or []
    auxiliary = [auxiliary] if isinstance(auxiliary, dict) else auxiliary
    heads = [config.model.decode_head, *auxiliary]
    assert {head["num_classes"] for head in heads} == {len(classes)}
    assert len({head.get("align_corners", False) for head in heads}) == 1

    assert not any(s.by_epoch for s in config.param_scheduler)
    assert max(s.end for s in config.param_scheduler) == iterations
    assert config.train_cfg.val_interval <= iterations
    checkpoint = config.default_hooks.checkpoint
    assert checkpoint.max_keep_ckpts > 0 and not checkpoint.by_epoch


# ---------------------------------------------------------------------- pipelines


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data")
    for layout in BASES:
        make_tree(layout, root / layout)
    write_nuclei(root / "nuclei/data")
    return root


def with_small_crops(config: Config) -> Config:
    """Return a config whose crops are 64 wide and high, or 65 where the side is odd."""
    crop = tuple(config.crop_size)
    small = tuple(64 + side % 2 for side in crop)

    def replaced(node):
        if isinstance(node, dict):
            return {key: replaced(value) for key, value in node.items()}
        if isinstance(node, (list, tuple)):
            return small if tuple(node) == crop else type(node)(map(replaced, node))
        return node

    return Config(replaced(config.to_dict()))


def on_tiny_data(path: Path, data: Path) -> Config:
    """Return the config with small crops, and a dataset of a few small images."""
    config = with_small_crops(load(path))
    layout = next(name for name in (*BASES, "nuclei", "shapes") if name in path.stem.split("_"))
    set_data_root(config, data / layout / "data")
    for dataset in datasets(config):
        if "recipe" in dataset:  # generated at first use
            dataset["recipe"] |= {"train": 2, "val": 1}
    return config


_samples: dict[str, dict] = {}


def sample(dataset: dict) -> dict:
    """Return the first item of a dataset, cached by its settings."""
    key = json.dumps(dataset, sort_keys=True)
    if key not in _samples:
        _samples[key] = DATASETS.build(dataset)[0]
    return _samples[key]


@every_config
def test_pipelines(path, data):
    """Training, validation, test and test-time augmentation, each on one image."""
    config = on_tiny_data(path, data)
    parts = {
        split: config[f"{split}_dataloader"].dataset.to_dict() for split in ("train", "val", "test")
    }
    train = sample(parts["train"])
    height, width = train["inputs"].shape[1:]
    assert height <= config.crop_size[0] and width <= config.crop_size[1]
    labels = train["data_samples"].gt_sem_seg.data
    assert train["inputs"].shape == (3, height, width) and labels.shape == (1, height, width)
    classes = config.model.decode_head.num_classes
    assert ((labels < classes) | (labels == 255)).all() and (labels < classes).any()
    for split in ("val", "test"):
        item = sample(parts[split])["data_samples"]
        if "gt_sem_seg" in item:
            assert item.gt_sem_seg.shape == tuple(item.ori_shape)
        else:
            assert config.test_evaluator.format_only
    items = sample({**parts["test"], "pipeline": config.to_dict()["tta_pipeline"]})
    assert len(items["inputs"]) == len(items["data_samples"]) >= 2
    assert {s.metainfo.get("flip") for s in items["data_samples"]} == {False, True}


# ---------------------------------------------------------------------- one training step


# ResNets with one block in each stage, which mmsegmentation does not have.
ResNet.arch_settings |= {10: (BasicBlock, (1,) * 4), 14: (Bottleneck, (1,) * 4)}


def shallow(backbone: dict) -> dict:
    """Return a backbone of the same kind and width with a block in each stage, or for each map."""
    arch, kind = backbone.get("arch"), backbone["type"]
    if kind == "LambdaResNet":
        return {**backbone, "depth": (1, 1, 1, 1), "receptive_field": 7}
    if kind == "EfficientNetLite":
        return {**backbone, "arch": {"depths": (1,) * 7}}
    if kind not in ("RMT", "DeepViT", "EAMLP"):
        widths = {"base_channels": 64, "stem_channels": 64}  # the defaults
        return {**widths, **backbone, "depth": 10 if backbone["depth"] < 50 else 14}
    if isinstance(arch, str):
        arch = MODELS.get(kind).arch_settings[arch]
    if kind == "RMT":
        return {**backbone, "arch": {**arch, "depths": (1, 1, 1, 1)}}
    maps = len(backbone["out_indices"])
    arch = {**arch, "depth": maps}
    if arch.get("re_attention_blocks"):  # these are the last ones
        arch["re_attention_blocks"] = maps // 2
    return {**backbone, "arch": arch, "out_indices": tuple(range(maps))}


WIDTHS = re.compile(r"(\w+_)?channels|embed_dims")


def narrow(node, name=""):
    """Return a part of a model at a quarter of its widths."""
    if isinstance(node, dict):
        return {key: narrow(value, key) for key, value in node.items()}
    if not WIDTHS.fullmatch(name):
        return node
    return node // 4 if isinstance(node, int) else [width // 4 for width in node]


def reduced(config: Config) -> dict:
    """Return the model of `with_small_crops` at a fraction of its size, without weights."""
    model = config.model.to_dict()
    if "stride" in model["test_cfg"]:  # of the sliding windows, which are crops
        model["test_cfg"]["stride"] = config.crop_size
    model["backbone"].pop("init_cfg", None)  # pretrained weights
    model["backbone"] = shallow(model["backbone"])
    fixed = model["backbone"]["type"] == "LambdaResNet"  # its widths
    if fixed or model["decode_head"]["type"] == "UPerHead":  # most of a step
        model["decode_head"]["channels"] = 32
    maps = (model.get("neck") or model["decode_head"])["in_channels"]
    wide = max(maps) >= 512 if isinstance(maps, list) else maps >= 512
    return narrow(model) if wide and not fixed else model


def wrapper_in_float32(config: Config, model: torch.nn.Module) -> OptimWrapper:
    """Return the config's optimizer wrapper; mixed precision needs a GPU."""
    settings = config.optim_wrapper.to_dict()
    settings = {k: v for k, v in settings.items() if k not in ("dtype", "loss_scale")}
    return build_optim_wrapper(model, ConfigDict({**settings, "type": "OptimWrapper"}))


@every_config
def test_one_training_step(path, data):
    config = on_tiny_data(path, data)
    torch.manual_seed(0)
    model = revert_sync_batchnorm(MODELS.build(ConfigDict(reduced(config)))).train()
    wrapper = wrapper_in_float32(config, model)
    schedulers = [
        PARAM_SCHEDULERS.build({**settings, "optimizer": wrapper})
        for settings in config.param_scheduler
    ]
    groups = [p for group in wrapper.optimizer.param_groups for p in group["params"]]
    trained = [p for p in model.parameters() if p.requires_grad]
    assert len(groups) == len(trained) and {*groups} == {*trained}

    item = sample(config.train_dataloader.dataset.to_dict())
    losses = model.train_step(pseudo_collate([item, item]), wrapper)
    for scheduler in schedulers:
        scheduler.step()
    assert torch.isfinite(losses["loss"]) and losses["loss"] > 0
    assert all(torch.isfinite(p).all() for p in trained)
    # A parameter without a gradient has no optimizer state; DistributedDataParallel would stop.
    unused = [n for n, p in model.named_parameters() if not wrapper.optimizer.state.get(p)]
    assert not unused, f"no gradient for {unused}"


if __name__ == "__main__":
    # A config is stored as its changes of the most similar config above it.
    known, entries = {"": {}}, []
    for name, path in sorted(ALL.items()):
        now = resolved(path)
        like = min(known, key=lambda other: len(changes(known[other], now)))
        values = {"like": like} | changes(known[like], now)
        known[name] = now
        lines = [f"{json.dumps(place)}: {json.dumps(value)}" for place, value in values.items()]
        entries.append(f'"{name}": {{\n ' + ",\n ".join(lines) + "\n}")
    VALUES.write_text("{\n" + ",\n".join(entries) + "\n}\n")

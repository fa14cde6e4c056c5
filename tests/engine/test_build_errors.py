"""Wrong settings end in one line that names the key; valid settings are never refused."""

from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from mmengine.runner import Runner
from mmseg.datasets import BaseSegDataset
from mmseg.models.decode_heads import FCNHead
from mmseg.registry import DATASETS, MODELS

from mmseg_ext.engine import PortableAmpOptimWrapper
from mmseg_ext.engine.build import build_train_runner
from mmseg_ext.engine.build_errors import explained
from mmseg_ext.engine.config import load_config, unread_keys
from mmseg_ext.errors import LaunchError, RunError, format_error
from tests.engine.runs import CONFIGS, write_config
from tests.messages import check_message, lines_with, raises_message

WEIGHTED = {"type": "CrossEntropyLoss", "class_weight": [1.0] * 7}
FOCAL = {"type": "FocalLoss"}
LOSS = "model.decode_head.loss_decode"
LOSSES = [{"type": "CrossEntropyLoss"}, {"type": "BoundaryLoss"}]
AUXILIARY = dict(type="FCNHead", in_channels=7, in_index=0, channels=4, num_classes=3, num_convs=1)
DANET = AUXILIARY | {"_delete_": True, "type": "DANetEAHead", "in_channels": 64}
DANET.pop("num_convs")
POOLED = dict(_delete_=True, type="PSPHead", pool_scales=(1,), num_classes=3, in_channels=64)
POOLED |= dict(in_index=0, channels=4, norm_cfg={"type": "SyncBN"})
LOADED = [{"type": "LoadImageFromFile"}, {"type": "PackSegInputs"}]
FLIPPED = [LOADED[0], {"type": "RandomFlip", "prob": 0.5}]
CUT = [LOADED[0], {"type": "RandomCrop", "crop_size": (8, 8), "cat_max_ratio": 0.75}, LOADED[1]]
# Settings of a tiny config that are wrong, how the line starts (by default by key=value), and what
# else it contains.
WRONG: list[tuple] = [
    ("model.type", "EncoderDecodr"),
    ("model.backbone", "ResNet"),
    ("model.backbone.depth", 19),
    ("model.backbone.strides", (1, 2, 2)),
    ("model.backbone.norm_cfg.type", "SyncBNN"),
    ("model.decode_head", None),
    ("model.decode_head.chanels", 8),
    ("model.decode_head.in_channels", None),
    ("model.decode_head.num_classes", -3, "model.decode_head: RuntimeError"),
    ("train_dataloader.batch_size", 0),
    ("train_dataloader.persistent_workers", True, "train_dataloader.num_workers=0, {key}=True: "),
    ("train_dataloader.dataset.type", "ClassFolders", "train_dataloader.dataset: AssertionError"),
    ("train_dataloader.dataset.data_root", "/no", "train_dataloader.dataset"),
    ("train_dataloader.dataset.pipeline", [{"type": "Resize", "scal": 2}], "{key}.0.scal=2"),
    ("optim_wrapper.optimizer.type", "AdmW"),
    ("optim_wrapper.optimizer.lr", -0.1),
    ("optim_wrapper.accumulative_counts", 0),
    ("resume", "work/iter_4.pth"),
    (
        "train_dataloader.dataset.pipeline",
        [{"type": "RandomResize"}],
        "train_dataloader.dataset: T",
    ),
    ("custom_hooks", [{"interval": 3}], "custom_hooks.0: ", "type"),
    ("param_scheduler.0.begin", 50, "param_scheduler.0"),
    ("custom_hooks", [{"type": "FiniteLosHook"}], "custom_hooks.0.type='FiniteLosHook'"),
    ("default_hooks.logger.interval", "often"),
    ("default_hooks.checkpoint.save_best", "mIuO", "default_hooks.checkpoint: ValueError"),
    ("runner_type", "DurableRuner"),
    ("model.backbone.init_cfg", {"type": "Pretraned"}, "{key}.type='Pretraned'"),
    ("default_hooks.checkpoint.intervall", 5),
    # Mistakes that the first iteration or the first validation meets.
    ("model.decode_head.in_channels", 7),
    ("model.decode_head.in_index", 9),
    ("model.decode_head.num_classes", 2),
    ("model.decode_head.out_channels", 1, f"{LOSS}.use_sigmoid=False: ", "use_sigmoid=True"),
    ("model.decode_head.loss_decode", WEIGHTED, "{key}.class_weight: ", 7, 3),
    ("model.decode_head.loss_decode", FOCAL, "{key}.type='FocalLoss': ", 3),
    ("model.decode_head.loss_decode", LOSSES, "{key}.1.type='BoundaryLoss': ", 3),
    ("model.auxiliary_head", [AUXILIARY], "{key}.0.in_channels=7: ", "in_index=0", 64),
    ("model.test_cfg", {"mode": "slide", "crop_size": (8, 8)}, "model.test_cfg.stride=None: "),
    ("model.test_cfg.mode", "hole", "model.test_cfg.mode='hole': ", "'whole'", "'slide'"),
    ("optim_wrapper.optimizer.lr", "1e-3"),
    ("optim_wrapper.clip_grad", {"maxnorm": 1}, "{key}.maxnorm=1: "),
    ("train_dataloader.dataset.pipeline", LOADED, "{key}", "type='LoadAnnotations'"),
    ("train_dataloader.dataset.pipeline", LOADED[:1], "{key}", "type='PackSegInputs'"),
    ("train_dataloader.dataset.pipeline", FLIPPED, "{key}", "type='PackSegInputs'"),
    ("train_dataloader.dataset.pipeline", CUT, "{key}", "type='LoadAnnotations'"),
    ("model.decode_head", POOLED, "train_dataloader.batch_size: ValueError: "),
    ("compile", {"backend": "foo"}),
    ("compile", {"mode": "foo"}),
    ("compile_blocks", {"backend": "foo"}),
]
SUGGESTED = {"AdmW": "AdamW", "chanels": "channels"}
SUGGESTED |= {"SyncBNN": "SyncBN", "intervall": "interval", "DurableRuner": "DurableRunner"}


@DATASETS.register_module()
class ClassFolders(BaseSegDataset):
    """As mmpretrain's ImageNet with another number of folders."""

    def load_data_list(self):
        raise AssertionError("The number of subfolders (2) doesn't match that of classes (3)")


def train(config: Path, options: dict | None = None, amp: bool = False) -> Runner:
    """Return the Runner after a training as train.py starts it."""
    runner = build_train_runner(str(config), options, str(config.parent / "work"), amp=amp)
    with explained(runner.cfg, runner.model):
        runner.train()
    return runner


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("wrong"))


@pytest.mark.parametrize("row", WRONG, ids=lambda row: f"{row[0]}={row[1]}"[:60])
def test_a_wrong_setting_is_named(config, row):
    """The line names the part of the config if the error mentions no setting."""
    key, value, *parts = row
    start, *found = parts or ["{key}={value!r}: "]
    with pytest.raises((LaunchError, RuntimeError)) as refusal:
        train(config, {"train_cfg.max_iters": 1, "train_dataloader.batch_size": 1, key: value})
    line = str(refusal.value)
    check_message(line, *found, where=start.format(key=key, value=value))
    assert "\n" not in line
    for word in (str(value), key.rpartition(".")[2]):
        if word in SUGGESTED:
            check_message(line, todo=repr(SUGGESTED[word]))


@MODELS.register_module()
class BrokenHead(FCNHead):
    """A user's own, with a bug that training meets, or building."""

    def __init__(self, early: bool, **kwargs):
        super().__init__(**kwargs)
        if early:
            self.nowhere  # noqa: B018

    def forward(self, inputs):
        return 1 / 0


@MODELS.register_module()
class OwnLossHead(FCNHead):
    """A head that may call its losses as it likes."""

    def loss_by_feat(self, seg_logits, batch_data_samples):
        return super().loss_by_feat(seg_logits, batch_data_samples)


def test_errors_of_mmsegmentations_segmentor(config):
    """It has no explanations of its own."""
    options = {"model.type": "EncoderDecoder", "train_cfg.max_iters": 1}
    with raises_message(RunError, 2, where="model.decode_head.num_classes=2: ", todo=True):
        train(config, options | {"model.decode_head.num_classes": 2})
    with pytest.raises(LaunchError, match=r"^model\.decode_head\.loss_decode\.1\.type='Boundary"):
        train(config, options | {"model.decode_head": {**DANET, "loss_decode": LOSSES}})
    options |= {"model.decode_head.type": "OwnLossHead", "model.decode_head.loss_decode": LOSSES}
    with pytest.raises(TypeError, match="'weight'"):
        train(config, options)


def test_a_missing_transform_is_named_where_it_is_missing(config):
    """Not in a pipeline with a loader of this package."""
    loaded = [LOADED[0], {"type": "CheckedLoadAnnotations"}, LOADED[1]]
    options = {"train_dataloader.dataset.pipeline": loaded, "train_cfg.max_iters": 1}
    with raises_message(
        LaunchError, "type='LoadAnnotations'", where="val_dataloader.dataset.pipeline", todo=True
    ):
        train(config, options | {"val_dataloader.dataset.pipeline": LOADED})


def test_a_bug_in_an_own_part_keeps_its_traceback(tmp_path):
    """Building names the part; an error of a training step is not about the config."""
    own = {"model.decode_head.type": "BrokenHead", "model.decode_head.early": True}
    config = write_config(tmp_path)
    with pytest.raises(RuntimeError, match=r"^model\.decode_head: AttributeError") as refusal:
        train(config, own)
    assert isinstance(refusal.value.__cause__, AttributeError)
    loss = {"model.decode_head.loss_decode": LOSSES}  # which would fail, too
    with pytest.raises(ZeroDivisionError):
        train(config, own | loss | {"model.decode_head.early": False})


def test_a_failing_import_shows_its_cause(tmp_path, monkeypatch):
    (tmp_path / "own_module.py").write_text("import no_such_package\n")
    config = write_config(tmp_path, "custom_imports['imports'].append('own_module')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LaunchError, match=r"own_module.*no_such_package"):
        load_config(str(config))


OWN = """
from mmseg.datasets import BaseSegDataset
from mmseg.registry import DATASETS

@DATASETS.register_module()
class {name}(BaseSegDataset):
    pass
"""


def test_a_list_of_imports_that_replaces_the_bases_is_named(tmp_path, capsys):
    """Also that of a base's base; with a list of both, the config trains.

    A warning says it, too: another class of the same name would be taken in silence.
    """
    write_config(tmp_path, "custom_imports['imports'].append('my_dropped')\n")
    (tmp_path / "my_dropped.py").write_text(OWN.format(name="MyDroppedDataset"))
    imports = '["mmseg_ext", "tests.engine.run_hooks"]'
    child, grandchild = tmp_path / "child.py", tmp_path / "grandchild.py"
    child.write_text(
        f"_base_ = ['./tiny.py']\ncustom_imports = dict(imports={imports})\n"
        "train_dataloader = dict(dataset=dict(type='MyDroppedDataset'))\n"
    )
    grandchild.write_text("_base_ = './child.py'\ncustom_imports = dict(imports=['mmseg_ext'])\n")
    for path in (child, grandchild):
        where = "train_dataloader.dataset.type='MyDroppedDataset': "
        with raises_message(LaunchError, where=where, todo="custom_imports.imports=") as refusal:
            build_train_runner(str(path), {"train_cfg.max_iters": 1}, str(tmp_path / "work"))
        check_message(refusal.value, todo="'my_dropped'")
        assert "did you mean" not in str(refusal.value)
        assert lines_with(capsys.readouterr().err, "custom_imports", "'my_dropped'", "set imports=")
    both = "['mmseg_ext', 'tests.engine.run_hooks', 'my_dropped']"
    child.write_text(child.read_text().replace(imports, both))
    train(child, {"train_cfg.max_iters": 1})
    assert "my_dropped" not in capsys.readouterr().err


def test_a_class_with_the_name_of_one_of_this_package(tmp_path):
    config = write_config(tmp_path, "custom_imports['imports'].append('my_camvid')\n")
    (tmp_path / "my_camvid.py").write_text(OWN.format(name="CamVidDataset"))
    where = f"config {config}: "
    with raises_message(LaunchError, "CamVidDataset", where=where, todo="force=True"):
        load_config(str(config))


def test_modules_next_to_a_config_are_found(tmp_path, monkeypatch):
    """And in the config's folder, if it is a package; a module of another config is not taken."""
    for number in (1, 2):
        folder = tmp_path / f"one{number}/my_package{number}"
        folder.mkdir(parents=True)
        (folder / "own_next.py").write_text(f"number = {number}\n")
        (folder / f"own_in{number}.py").write_text("")
        names = [f"my_package{number}.own_in{number}", "own_next"]
        (folder / "config.py").write_text(f"custom_imports = dict(imports={names})\n")
    load_config(str(tmp_path / "one1/my_package1/config.py"))
    load_config(str(tmp_path / "one1/my_package1/config.py"))  # again
    with raises_message(
        LaunchError, "'own_next'", f"{tmp_path}/one1/my_package1/own_next.py", todo="rename"
    ):
        load_config(str(tmp_path / "one2/my_package2/config.py"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/own_current.py").write_text("")
    config = tmp_path / "one1/current.py"
    config.write_text("custom_imports = dict(imports='own_current')\n")
    with raises_message(LaunchError, "own_current", todo="PYTHONPATH=FOLDER"):
        load_config(str(config))
    monkeypatch.chdir(tmp_path / "elsewhere")
    load_config(str(config))
    (tmp_path / "far.py").write_text("custom_imports = dict(imports='own_far')\n")
    with raises_message(
        LaunchError, "own_far", where=f"config {tmp_path}/far.py: ", todo="PYTHONPATH=FOLDER"
    ):
        load_config(str(tmp_path / "far.py"))


def test_a_base_with_a_variable_is_explained(tmp_path):
    write_config(tmp_path)
    path = tmp_path / "derived.py"
    path.write_text("folder = './'\n_base_ = [folder + 'tiny.py']\n")
    with raises_message(LaunchError, "'folder'", where=f"config {path}: ", todo="`_base_`"):
        load_config(str(path))
    path.write_text("_base_ = ['./tiny.py']\nmodel = nothing\n")
    with raises_message(LaunchError, "'nothing'", where=f"config {path}: ") as refusal:
        load_config(str(path))
    assert ";" not in str(refusal.value)  # no hint


def test_options_that_nothing_reads_are_warnings(tmp_path, capsys, monkeypatch):
    options = {"randomnes.seed": 1, "norm_cfg.type": "BN"}
    load_config(str(write_config(tmp_path)), options)
    told = capsys.readouterr().err
    assert lines_with(told, "'norm_cfg'") and lines_with(told, "'randomness'")
    assert len(lines_with(told, "has no effect")) == 2
    monkeypatch.setenv("RANK", "1")
    load_config(str(tmp_path / "tiny.py"), options)
    assert capsys.readouterr().err == ""
    assert unread_keys(load_config(str(CONFIGS / "ea_r18_shapes.py")), []) == []
    imports = "from mmengine.config import read_base\nfrom mmengine.runner import ValLoop\n"
    (tmp_path / "lazy.py").write_text(imports + "from mmseg.models import SegDataPreProcessor\n")
    assert unread_keys(load_config(str(tmp_path / "lazy.py")), []) == []
    (typo,) = unread_keys(Config({"optim_wraper": {}, "test_pipeline": []}), [])
    check_message(typo, where="'optim_wraper'", todo="'optim_wrapper'")
    (typo,) = unread_keys(Config({"env_cfg": {"dist_cfg": {"backend": "gloo", "timeot": 3}}}), [])
    check_message(typo, where="env_cfg.dist_cfg.timeot ", todo="'timeout'")
    read = ("custom_imports", "find_unused_parameters", "min_backbone_share", "compile", "sync_bn")
    read += ("model_wrapper_cfg", "runner_type", "tta_model", "tta_pipeline", "model")
    assert unread_keys(Config(), [f"{key}.type" for key in read]) == []


def test_errors_are_one_short_line():
    assert format_error(KeyError("a b")) == "KeyError: a b"
    assert format_error(KeyError()) == "KeyError:"
    assert format_error(ValueError("a\n b" * 99)) == "ValueError: " + ("a b" * 99)[:285] + "..."
    assert format_error(ValueError("a" * 288)) == "ValueError: " + "a" * 288


@OPTIM_WRAPPERS.register_module()
class OwnAmpWrapper(PortableAmpOptimWrapper):
    pass


OPTIM_WRAPPERS.register_module("OwnWrapper", module=type("OwnWrapper", (OptimWrapper,), {}))


@pytest.mark.parametrize(
    "options",
    [
        {
            f"default_hooks.{name}": None
            for name in ("timer", "sampler_seed", "checkpoint", "visualization")
        },
        {"activation_checkpointing": ["backbone.layer1"], "efficient_conv_bn_eval": ["backbone"]}
        | {"read_by_my_hook": 1},
        {"runner_type": "Runner"},
    ],
    ids=["removed hooks", "keys of mmengine and of hooks", "our hooks in mmengine's Runner"],
)
def test_valid_settings_train(tmp_path, options):
    assert train(write_config(tmp_path), {"train_cfg.max_iters": 2} | options).iter == 2


def test_amp_replaces_only_the_plain_wrapper(tmp_path):
    config = write_config(tmp_path)
    for kind in ("OptimWrapper", "OwnAmpWrapper"):
        options = {"train_cfg.max_iters": 1, "optim_wrapper.type": kind}
        wrapper = train(config, options, amp=True).optim_wrapper
        assert isinstance(wrapper, PortableAmpOptimWrapper) and wrapper.cast_dtype == torch.bfloat16
    with pytest.raises(LaunchError, match=r"optim_wrapper\.type='OwnWrapper': .*--amp"):
        train(config, options | {"optim_wrapper.type": "OwnWrapper"}, amp=True)

"""No path on which weights are loaded runs code from them; and how much they fill is said."""

import hashlib
import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from mmengine.logging import HistoryBuffer
from mmengine.runner.checkpoint import CheckpointLoader, load_checkpoint
from mmseg.apis import MMSegInferencer, init_model
from mmseg.registry import MODELS
from safetensors.torch import save_file

import mmseg_ext
from mmseg_ext.checkpoint.load_report import check_coverage, coverage, require_coverage
from mmseg_ext.checkpoint.safe_reading import read_checkpoint
from mmseg_ext.commands.attention_maps import main as draw_maps
from mmseg_ext.commands.test import main as test
from mmseg_ext.commands.train import main as train
from mmseg_ext.engine.launch import load_settings
from mmseg_ext.errors import BrokenCheckpoint, PartialWeights, UnsafeCheckpoint
from mmseg_ext.inference import Predictor
from tests.engine.runs import write_config
from tests.engine.states import UNVALIDATED, assert_same

test.__test__ = False


class Payload:
    """Unpickled, it makes a file: the proof that code ran."""

    def __init__(self, proof: Path):
        self.proof = proof

    def __reduce__(self):
        return os.mkdir, (str(self.proof),)


class Note:
    """An object that only unpickling can make."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("safe")
    config = write_config(folder, UNVALIDATED)
    options = ["train_cfg.max_iters=1", "visualizer.name=safe"]
    train([str(config), "--work-dir", str(folder / "work"), "--cfg-options", *options])
    return folder


@pytest.fixture
def good(folder):
    return read_checkpoint(folder / "work/iter_1.pth")


@pytest.fixture
def armed(good, tmp_path):
    """A checkpoint whose weights are right and whose meta runs code when unpickled."""
    good["meta"]["note"] = Payload(tmp_path / "proof")
    torch.save(good, tmp_path / "armed.pth")
    with pytest.raises(FileExistsError):  # the payload works: it runs twice here
        for _ in range(2):
            torch.load(tmp_path / "armed.pth", weights_only=False)
    (tmp_path / "proof").rmdir()
    return tmp_path / "armed.pth"


def paths():
    """Each way to load the file `path`, from the command line or from Python."""

    def tool(*arguments):
        def load(config, path, work):
            line = [str(config), "--work-dir", str(work)]
            with pytest.raises(SystemExit) as end:
                train([*line, *(a.format(path=path) for a in arguments)])
            raise UnsafeCheckpoint(end.value.code)

        return load

    def tested(config, path, work):
        with pytest.raises(SystemExit) as end:
            test([str(config), str(path), "--work-dir", str(work)])
        raise UnsafeCheckpoint(end.value.code)

    def safely(load):
        def loaded(config, path, work):
            with mmseg_ext.safe_loading():
                load(str(config), str(path))

        return loaded

    backbone = "model.backbone.init_cfg"
    pretrained = [f"{backbone}.type=Pretrained", f"{backbone}.checkpoint={{path}}"]
    return {
        "load_from": tool("--cfg-options", "load_from={path}"),
        "resume": tool("--resume", "--cfg-options", "load_from={path}"),
        "init_cfg": tool("--cfg-options", *pretrained),
        "init_cfg_prefix": tool("--cfg-options", *pretrained, f"{backbone}.prefix=backbone."),
        "test.py": tested,
        "inference": lambda config, path, work: Predictor(load_settings(str(config)), path),
        "init_model": safely(lambda config, path: init_model(config, path, device="cpu")),
        "loader": safely(lambda config, path: CheckpointLoader.load_checkpoint(path)),
    }


@pytest.mark.parametrize("way", paths())
def test_a_payload_does_not_run(folder, armed, tmp_path, way):
    with pytest.raises(UnsafeCheckpoint) as refused:
        paths()[way](folder / "tiny.py", armed, tmp_path / "work")
    assert f"{armed}: holds objects other than tensors" in str(refused.value)
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize(
    "address", ["https://example.org/a.pth", "http://example.org/a.pth", "open-mmlab://resnet18_v1c"]
    + ["openmmlab://resnet18_v1c", "torchvision://resnet18", "modelzoo://resnet18", "mmcls://vgg11"]
)  # fmt: skip
def test_fetched_files_are_read_as_safely(armed, tmp_path, monkeypatch, address):
    if address.startswith(("torchvision", "modelzoo")):
        pytest.importorskip("torchvision")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    fetched = []

    def fetch(url, path, progress):
        fetched.append(url)
        Path(path).write_bytes(armed.read_bytes())

    monkeypatch.setattr(torch.hub, "download_url_to_file", fetch)
    with mmseg_ext.safe_loading():
        for _ in range(2):  # the second time from torch's cache
            with pytest.raises(UnsafeCheckpoint):
                CheckpointLoader.load_checkpoint(address)
    assert len(fetched) == 1
    assert not (tmp_path / "proof").exists()


def test_addresses_with_one_file_name_share_no_cache(good, armed, tmp_path, monkeypatch):
    """And what torch itself fetched is taken where the digest in its name is its own."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub/checkpoints"
    torch.save(good["state_dict"], tmp_path / "right.pth")
    data = (tmp_path / "right.pth").read_bytes()
    digest = hashlib.sha256(data).hexdigest()[:8]
    fetched = []

    def fetch(url, path, progress):
        fetched.append(url)
        Path(path).write_bytes(data)

    monkeypatch.setattr(torch.hub, "download_url_to_file", fetch)
    (folder).mkdir(parents=True)
    for name in ("weights.pth", f"right-{digest}.pth", "wrong-00000000.pth"):
        (folder / name).write_bytes(data if name.startswith("right") else armed.read_bytes())
    addresses = [
        f"https://{host}/{name}"
        for host in ("one.org", "two.org")
        for name in ("weights.pth", f"right-{digest}.pth", "wrong-00000000.pth")
    ]
    with mmseg_ext.safe_loading():
        for address in addresses:
            loaded = CheckpointLoader.load_checkpoint(address)["state_dict"]
            assert loaded.keys() == good["state_dict"].keys()
    assert fetched == [a for a in addresses if "right" not in a]


def test_configs_in_a_checkpoint_are_not_executed(folder, good, tmp_path):
    """Resuming executes meta['config'] in mmengine, an inferencer the others."""
    program = f"import os\nos.mkdir({str(tmp_path / 'proof')!r})\n"
    good["meta"]["config"] = good["meta"]["cfg"] = program
    good["message_hub"]["runtime_info"]["cfg"] = program
    path = tmp_path / "program.pth"
    good["meta"]["iter"] = 0
    torch.save(good, path)
    options = [f"load_from={path}", "train_cfg.max_iters=1", "visualizer.name=program"]
    work = tmp_path / "work"
    train([str(folder / "tiny.py"), "--work-dir", str(work), "--resume", "--cfg-options", *options])
    assert (work / "iter_1.pth").is_file()
    with pytest.raises(ValueError, match="Cannot find the config"), mmseg_ext.safe_loading():
        MMSegInferencer(model=None, weights=str(path), device="cpu")
    assert not (tmp_path / "proof").exists()


def test_our_checkpoints_need_no_unpickling(folder, good):
    assert "sha256" not in good  # checked and taken out
    raw = torch.load(folder / "work/iter_1.pth", weights_only=True)
    assert len(raw["sha256"]) == 64
    assert isinstance(good["message_hub"]["log_scalars"]["train/loss"], HistoryBuffer)


def test_safetensors_wherever_a_checkpoint_is(folder, good, tmp_path):
    path, config = tmp_path / "weights.safetensors", folder / "tiny.py"
    weights = {k: v + 1 if v.is_floating_point() else v for k, v in good["state_dict"].items()}
    dataset_meta = {"classes": ["a", "b", "c"], "palette": [[0, 0, 0], [1, 2, 3], [4, 5, 6]]}
    save_file(weights, path, {"dataset_meta": json.dumps(dataset_meta)})
    backbone = {k.removeprefix("backbone."): v for k, v in weights.items() if "backbone" in k}
    save_file(backbone, tmp_path / "backbone.safetensors")
    with mmseg_ext.safe_loading():
        model = init_model(str(config), str(path), device="cpu")
    assert_same(dict(model.state_dict()), weights)
    assert model.dataset_meta == dataset_meta
    model = MODELS.build(load_settings(str(config)).model)
    model.backbone.init_cfg = {
        "type": "Pretrained",
        "checkpoint": str(tmp_path / "backbone.safetensors"),
    }
    with mmseg_ext.safe_loading():
        model.init_weights()
    assert_same(dict(model.backbone.state_dict()), backbone)
    run = ["--work-dir", str(tmp_path / "work"), "--cfg-options", "visualizer.name=st"]
    test([str(config), str(path), *run])
    train([str(config), *run, f"load_from={path}", "train_cfg.max_iters=1"])
    save_file(weights, path, {"dataset_meta": "{"})
    with pytest.raises(BrokenCheckpoint, match=str(path)):
        read_checkpoint(path)


# ---------------------------------------------------------------------- broken files


@pytest.mark.parametrize("cut", [0, 1, 100, 5000, 70_000, 0.5, 0.99])
def test_a_truncated_file_is_broken_not_unsafe(folder, tmp_path, cut):
    data = (folder / "work/iter_1.pth").read_bytes()
    path = tmp_path / "cut.pth"
    path.write_bytes(data[: int(cut * len(data)) if isinstance(cut, float) else cut])
    with pytest.raises(BrokenCheckpoint, match=str(path)):
        read_checkpoint(path)


def test_a_pickle_that_is_no_torch_file_is_refused(tmp_path):
    path = tmp_path / "plain.pth"
    path.write_bytes(pickle.dumps({"a": Payload(tmp_path / "proof")}))
    with pytest.raises(UnsafeCheckpoint):
        read_checkpoint(path)
    assert not (tmp_path / "proof").exists()


# ---------------------------------------------------------------------- coverage


def test_too_little_of_a_backbone_is_refused_unless_told_otherwise(folder, good, tmp_path, caplog):
    config, path = folder / "tiny.py", tmp_path / "half.pth"
    weights = good["state_dict"]
    half = {k: v for k, v in weights.items() if "layer4" not in k}
    torch.save({"state_dict": half, "meta": {}}, path)
    kept = sum(v.numel() for k, v in half.items() if k.startswith("backbone."))
    share = kept / sum(v.numel() for k, v in weights.items() if k.startswith("backbone."))
    assert share < 0.9
    work = ["--work-dir", str(tmp_path / "work"), "--cfg-options", f"load_from={path}"]
    with pytest.raises(SystemExit) as end:
        train([str(config), *work, "visualizer.name=half"])
    for part in (f"fill {share:.1%}", "less than 90%", "layer4.0.", "min_backbone_share=0"):
        assert part in end.value.code
    with pytest.raises(PartialWeights), mmseg_ext.safe_loading():
        init_model(str(config), str(path), device="cpu")
    with mmseg_ext.safe_loading(min_backbone_share=0):
        init_model(str(config), str(path), device="cpu")
    told = ["min_backbone_share=0", "train_cfg.max_iters=1", "visualizer.name=told"]
    train([str(config), *work, *told])
    text = "".join(p.read_text() for p in (tmp_path / "work").glob("2*/*.log"))
    assert f"{share:.1%} of its backbone; not filled: backbone.layer4" in text


def test_names_without_the_prefix_fill_nothing(folder, good):
    """The known way to lose a week: a backbone's file given as the segmentor's."""
    model = MODELS.build(load_settings(str(folder / "tiny.py")).model)
    bare = {k.removeprefix("backbone."): v for k, v in good["state_dict"].items()}
    with pytest.raises(PartialWeights, match=r"fill 0.0% of the backbone \(ResNetV1c\)"):
        check_coverage(model, bare)
    with require_coverage(backbone_share=0):
        assert "0.0% of its backbone" in check_coverage(model, bare)
    assert "100.0% of its backbone" in check_coverage(model, good["state_dict"])
    wrong = {k: v[..., :1] for k, v in good["state_dict"].items()}  # names right, shapes not
    assert coverage(model, wrong).share < 0.2


def fails(tool, *words: object) -> str:
    with pytest.raises(SystemExit) as end:
        tool([str(word) for word in words])
    return end.value.code


def test_weights_of_another_head_or_of_other_classes_are_refused(folder, good, tmp_path):
    """By testing, resuming, inference and maps; training may start from them."""
    config, work = folder / "tiny.py", tmp_path / "work"
    weights = good["state_dict"]
    head = {k for k in weights if k.startswith("decode_head.")}
    changed = {
        "headless": {k: v for k, v in weights.items() if k not in head},
        "renamed": {
            k.replace("decode_head.convs", "decode_head.other"): v for k, v in weights.items()
        },
        "classes": {k: v[:2] if "conv_seg" in k else v for k, v in weights.items()},
    }
    image = folder / "data/images/0.png"
    for name, content in changed.items():
        path = tmp_path / f"{name}.pth"
        torch.save({**good, "state_dict": content}, path)
        message = fails(test, config, path, "--work-dir", work)
        assert "at random values: decode_head." in message and "\n" not in message
        if name == "classes":
            assert "decode_head.conv_seg.weight ((2, 16, 1, 1) for (3, 16, 1, 1))" in message
        message = fails(train, config, "--work-dir", work, "--resume", "--cfg-options",
                        f"load_from={path}", f"visualizer.name={name}")  # fmt: skip
        assert "at random values" in message
        with pytest.raises(ValueError, match="does not fit the config"):
            Predictor(load_settings(str(config)), path)
        assert draw_maps([str(config), str(path), str(image), "--out", str(tmp_path / "maps")]) == 1
        train([str(config), "--work-dir", str(work), "--cfg-options", f"load_from={path}",
               "train_cfg.max_iters=1", f"visualizer.name=from{name}"])  # fmt: skip
    without_auxiliary = {**weights, "auxiliary_head.conv_seg.weight": torch.zeros(3, 16, 1, 1)}
    torch.save({**good, "state_dict": without_auxiliary}, tmp_path / "auxiliary.pth")
    Predictor(load_settings(str(config)), tmp_path / "auxiliary.pth")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["decode_head.conv_seg.bias", "backbone.stem.1.weight"])
def test_weights_that_are_not_finite_are_refused(folder, good, tmp_path, name, value):
    path, config = tmp_path / "spoiled.pth", folder / "tiny.py"
    good["state_dict"][name][0] = value
    torch.save(good, path)
    work = ["--work-dir", tmp_path / "work"]
    expected = f"the weights are not finite: {name}"
    assert expected in fails(test, config, path, *work)
    assert expected in fails(train, config, *work, "--cfg-options", f"load_from={path}")
    with pytest.raises(ValueError, match=expected):
        Predictor(load_settings(str(config)), path)


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_is_between_0_and_1(share):
    with pytest.raises(ValueError, match=str(share)), mmseg_ext.safe_loading(share):
        pass


def test_load_checkpoint_reads_what_mmengine_reads(folder, good):
    model = MODELS.build(load_settings(str(folder / "tiny.py")).model)
    with mmseg_ext.safe_loading():
        load_checkpoint(model, str(folder / "work/iter_1.pth"), strict=True)
    assert_same(dict(model.state_dict()), dict(good["state_dict"]))

"""Exported files have the model's scores; the example runs them without mmsegmentation."""

import runpy
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from mmseg.registry import MODELS
from PIL import Image

from mmseg_ext import Predictor, environment, get_model
from mmseg_ext.commands import run
from mmseg_ext.errors import StackError
from mmseg_ext.inference.export import (  # the command takes only configs
    ExportedSegmentor,
    WholeImageSegmentor,
    random_images,
    relative_difference,
    write_onnx,
)
from mmseg_ext.inference.objects import NO_OBJECTS
from mmseg_ext.layers import ManhattanAttention
from tests.configs import CONFIGS
from tests.datasets.trees import random_image, save
from tests.messages import raises_message
from tests.models import NARROW_RMT, PREPROCESSOR, randomise

CONFIG = str(CONFIGS / "ea_r18_shapes.py")
ROOT = CONFIGS.parent
EXAMPLE = str(ROOT / "demo" / "run_exported.py")

RESNET = dict(type="ResNetV1c", depth=18, base_channels=8, stem_channels=8, out_indices=(0, 1))
RESNET |= dict(num_stages=2, strides=(1, 2), dilations=(1, 1))
# Attention along the axes; the head attends to the map.
RMT_ARCH = {**NARROW_RMT, "embed_dims": (8, 16, 16, 16), "num_heads": (2, 2, 2, 2)}
RMT = dict(type="RMT", arch=RMT_ARCH, out_indices=(0,))
LAMBDA = dict(type="LambdaResNet", depth=(1, 1), lambda_stages=(1,), out_indices=(1,))
LAMBDA |= dict(key_depth=4, receptive_field=7)
DEEPVIT_ARCH = dict(embed_dims=24, depth=2, num_heads=3, re_attention_blocks=1)
DEEPVIT = dict(type="DeepViT", arch=DEEPVIT_ARCH, img_size=64, out_indices=(0, 1))
EAMLP_ARCH = dict(embed_dims=32, depth=1, num_heads=2, mlp_ratio=2)
EAMLP = dict(type="EAMLP", arch=EAMLP_ARCH, img_size=64, out_indices=(0,))
# The command's test exports EAHead on ResNet.
PAIRS = {
    "DANetEAHead on LambdaResNet": (LAMBDA, dict(type="DANetEAHead", memory_size=8)),
    "FPNHead on DeepViT": (DEEPVIT, dict(type="FPNHead", feature_strides=[8, 16])),
    "JSegEAHead on EAMLP": (EAMLP, dict(type="JSegEAHead", memory_size=8)),
    "MaSAHead on RMT": (RMT, dict(type="MaSAHead", num_heads=2, decomposed=False)),
}
PYRAMID = RESNET, dict(type="UPerHead", pool_scales=(1, 2, 3))


def build(backbone: dict, head: dict):
    with torch.no_grad():
        widths = [maps.shape[1] for maps in MODELS.build(backbone)(torch.zeros(2, 3, 64, 64))]
    several = head["type"] in ("FPNHead", "UPerHead")
    head = head | dict(channels=16, num_classes=5, align_corners=False)
    head["in_channels"] = widths if several else widths[-1]
    head["in_index"] = [*range(len(widths))] if several else 0
    parts = dict(data_preprocessor=PREPROCESSOR, backbone=backbone, decode_head=head)
    return randomise(
        MODELS.build(dict(type="EncoderDecoder", test_cfg=dict(mode="whole"), **parts))
    )


def assert_exact(exported, model, images):
    with torch.no_grad():
        expected, scores = model(images), exported(images)
    assert scores.shape == expected.shape and relative_difference(scores, expected) <= 1e-5


@pytest.mark.parametrize("name", PAIRS)
def test_any_size_and_number_of_images(name, tmp_path):
    model, path = WholeImageSegmentor(build(*PAIRS[name])), tmp_path / "model.onnx"
    write_onnx(model, path, (64, 80), dynamic=True)
    for size, batch in (((64, 80), 2), ((96, 72), 1), ((67, 101), 3)):
        assert_exact(ExportedSegmentor(path), model, random_images(size, batch))


def test_a_program_of_torch_for_any_size():
    """Which also has the pyramid pooling that ONNX lacks."""
    model = WholeImageSegmentor(build(*PYRAMID))
    shapes = (dict.fromkeys((0, 2, 3), torch.export.Dim.DYNAMIC),)
    program = torch.export.export(model, (random_images((64, 80), 2),), dynamic_shapes=shapes)
    for size, batch in (((96, 72), 1), ((67, 101), 3)):
        assert_exact(program.module(), model, random_images(size, batch))


class Blocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(*[ManhattanAttention(4, 2) for _ in range(2)])

    def forward(self, x):
        x = x / 255
        return self.blocks(torch.cat([x, x[:, :1]], 1).permute(0, 2, 3, 1))


def test_blocks_share_their_position_tables(tmp_path):
    model, path = Blocks().eval(), tmp_path / "a.onnx"
    write_onnx(model, path, (24, 40), metadata={"classes": ["a", "b"]})
    exported = ExportedSegmentor(path)
    assert exported.metadata == {"classes": ["a", "b"]} and [*tmp_path.iterdir()] == [path]
    assert_exact(exported, model, random_images((24, 40)))
    with pytest.raises(Exception, match="dimensions"):  # of onnxruntime
        exported(random_images((32, 40)))
    values = [i.SerializeToString()[-2048:] for i in onnx.load(path).graph.initializer]
    large = [value for value in values if len(value) == 2048]
    assert len(large) > 2 and len(set(large)) == len(large)


def test_a_missing_extra_names_the_package_of_an_installation(tmp_path, monkeypatch):
    """In a clone its folder, else the distribution, for which pip needs no index."""
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    told = rf"'onnxscript'.*run: pip install -e '{ROOT}\[mm,export\]'"
    with pytest.raises(StackError, match=told):
        write_onnx(Blocks(), tmp_path / "a.onnx", (64, 64))
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "mmseg_ext/environment.py"))
    with raises_message(StackError, todo="pip install 'mmseg-attention[export]'"):
        write_onnx(Blocks(), tmp_path / "a.onnx", (64, 64))


def test_command_and_the_example_without_mmseg(tmp_path, monkeypatch, capsys):
    """In a process without mmseg; EXIF orientation is applied, and results replace no image.

    Photos of other kinds are counted, and each photo without a result is one line.
    """
    folder, out, weights = tmp_path / "images", tmp_path / "model.onnx", tmp_path / "weights.pth"
    random = np.random.RandomState(0)
    save(folder / "a.png", random_image(random, (96, 96)))
    save(folder / "b.png", random_image(random, (110, 70)), orientation=6)  # 90 degrees clockwise
    (folder / "broken.jpg").write_bytes(b"\xff\xd8 no image")
    for name in ("D.png", "d.bmp"):
        save(folder / name, random_image(random, (9, 9)))
    (folder / "empty.png").touch()
    (folder / "phone.heic").touch()
    (folder / "._a.png").write_bytes(b"of macOS")
    (folder / "c.png").mkdir()
    (folder / "notes.txt").write_text("no image")
    model = randomise(get_model(CONFIG))
    with torch.no_grad():
        model.decode_head.conv_seg.weight.mul_(100)  # scores that differ between pixels
    torch.save({"state_dict": model.state_dict(), "meta": {"license": "MIT"}}, weights)
    words = [CONFIG, str(weights), "--dynamic", "--out", str(out)]
    assert run("export", [*words, "--images", str(folder / "b.png")]) == 0
    metadata = ExportedSegmentor(out).metadata
    assert metadata["classes"] == list(model.dataset_meta["classes"])
    assert metadata["license"] == "MIT"

    words = [EXAMPLE, str(out), str(folder), str(folder)]
    code = (
        f"import sys, runpy; sys.argv = {words}\n"
        "sys.modules.update(dict.fromkeys(('mmseg', 'mmengine', 'mmcv', 'mmseg_ext', 'torch')))\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    words = [sys.executable, "-c", code]
    result = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 1
    shown = result.stderr.splitlines()  # nothing of OpenCV
    assert len(shown) == 3 and "1 .heic" in shown[0]
    assert "broken.jpg: does not decode" in shown[1] and "empty.png: is empty" in shown[2]
    assert "4 of 6 images" in result.stdout and (folder / "labels/d.bmp.png").is_file()
    predictor = Predictor(model)
    for name in ("a.png", "b.png"):
        labels = np.asarray(Image.open(folder / "labels" / name))
        assert (labels == predictor(folder / name).labels).mean() > 0.999
        assert len(np.unique(labels)) > 1

    before = (folder / "labels/a.png").read_bytes()
    words = [EXAMPLE, str(out), str(folder / "labels"), str(folder)]  # whose labels they would be
    monkeypatch.setattr(sys, "argv", words)
    assert runpy.run_path(EXAMPLE)["main"]() == 1
    assert f"{folder}: " in capsys.readouterr().err
    assert (folder / "labels/a.png").read_bytes() == before

    find, example = map(runpy.run_path(EXAMPLE).get, ("find", "main"))
    names = ["D.png", "a.png", "b.png", "broken.jpg", "d.bmp", "empty.png"]
    assert [path.name for path in find(folder)] == names
    capsys.readouterr()
    (tmp_path / "a.onnx").write_bytes(b"broken")
    for file, images, told in (
        ("model.onnx", "no", "no: does not exist"),
        ("a.onnx", "a.png", "a.onnx: not an exported"),
    ):
        words = [EXAMPLE, str(tmp_path / file), str(folder / images), str(tmp_path)]
        monkeypatch.setattr(sys, "argv", words)
        assert example() == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and told in error


def test_the_example_colors_the_classes_that_overlays_color():
    classes = ["nucleus", *NO_OBJECTS]
    metadata = dict(classes=classes, palette=np.full((4, 3), 50, np.uint8))
    picture = np.full((1, 4, 3), 100, np.uint8)
    shown = runpy.run_path(EXAMPLE)["draw_overlay"](metadata, picture, np.arange(4)[None])
    assert np.asarray(shown)[0].tolist() == [[75] * 3, [100] * 3, [100] * 3, [100] * 3]


RESIZED = dict(scale=[48, 36], scale_factor=None, keep_ratio=True, mean=[10, 20, 30])
RESIZED |= dict(window=None, stride=None)


@pytest.mark.parametrize(
    ("metadata", "seen", "calls"),
    [
        (dict(dynamic=True, size=[36, 48]), (48, 32), 1),
        (dict(dynamic=True, size=[36, 48], scale=None), (120, 80), 1),
        (dict(dynamic=True, size=[36, 48], scale=None, scale_factor=[0.5, 0.4]), (48, 32), 1),
        (dict(dynamic=False, size=[96, 96]), (48, 32), 1),  # the rest of 96x96 is filled
        (dict(dynamic=False, size=[240, 160], scale=None), (120, 80), 1),
        (dict(dynamic=False, size=[36, 48], keep_ratio=False), (36, 48), 1),
        (dict(dynamic=False, size=[36, 48], stride=[30, 40]), (48, 32), 2),
        (dict(dynamic=True, size=[36, 48], window=[30, 20], stride=[20, 12]), (48, 32), 4),
        (dict(dynamic=True, size=[1, 1], window=[99, 20], stride=[9, 12]), (48, 32), 2),
    ],
)
def test_the_example_scales_and_cuts_as_the_test(metadata, seen, calls):
    """A network that returns its input: the labels are the largest colors of the photo."""
    photo = np.zeros((120, 80, 3), dtype=np.uint8)
    for region in np.ndindex(4, 2):
        rows, columns = (slice(n * i, n * (i + 1)) for n, i in zip((30, 40), region, strict=True))
        photo[rows, columns, sum(region) % 3] = 200
    metadata = RESIZED | metadata
    if not metadata["dynamic"]:
        metadata["window"] = metadata["size"]
    inputs, segment = [], runpy.run_path(EXAMPLE)["segment"]
    labels = segment(lambda x: inputs.append(x[0]) or x, metadata, photo)
    assert (labels == photo.argmax(2)).mean() > 0.95 and labels.dtype == np.uint8
    assert len(inputs) == calls
    window = metadata["window"] or seen
    height, width = (min(pair) for pair in zip(window, seen, strict=True))
    for pixels in inputs:
        shape = (height, width) if metadata["dynamic"] else tuple(metadata["size"])
        assert pixels.shape == (3, *shape)
        rest = np.array(RESIZED["mean"])[:, None, None]
        assert (pixels[:, height:] == rest).all() and (pixels[:, :, width:] == rest).all()
        assert (pixels[:, :height, :width].max(0) >= 100).mean() > 0.9  # the photo's colors

"""Exported files against the model: every head and backbone, both formats, sizes never traced."""

import runpy
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from mmengine.runner import save_checkpoint
from mmseg.apis import init_model
from mmseg.registry import MODELS
from PIL import Image

from mmseg_ext.commands.export import main
from mmseg_ext.errors import StackError
from mmseg_ext.inference.export import (
    ExportedSegmentor,
    WholeImageSegmentor,
    export,
    random_images,
    relative_difference,
)
from mmseg_ext.layers import ManhattanAttention
from tests.configs import CONFIGS
from tests.models import NARROW_RMT, PREPROCESSOR, randomise

CONFIG = str(CONFIGS / "ea_r18_shapes.py")
RESNET = dict(type="ResNetV1c", depth=18, base_channels=8, stem_channels=8, out_indices=(3,))
# Attention along the axes in the first stage, over the map in the second; to export all four takes
# twice as long.
RMT_ARCH = {**NARROW_RMT, "embed_dims": (8, 16, 16, 16), "num_heads": (2, 2, 2, 2)}
RMT_ARCH["decomposed"] = (True, False, True, False)
RMT = dict(type="RMT", arch=RMT_ARCH, out_indices=(0, 1))
LAMBDA = dict(type="LambdaResNet", depth=(1, 1, 1, 1), lambda_stages=(3,), out_indices=(3,))
LAMBDA |= dict(key_depth=4, receptive_field=7)
DEEPVIT = dict(type="DeepViT", arch=dict(embed_dims=24, depth=1, num_heads=3))
EAMLP = dict(type="EAMLP", arch=dict(embed_dims=32, depth=1, num_heads=2, mlp_ratio=2))
TOKENS = dict(img_size=64, out_indices=(0,))
EA_HEAD = dict(type="EAHead", channels=16, ea_channels=24, memory_size=8)
DANET_HEAD = dict(type="DANetEAHead", channels=16, memory_size=8)
FPN_HEAD = dict(type="FPNHead", channels=8, feature_strides=[4, 8])
UPER_HEAD = dict(type="UPerHead", channels=8, pool_scales=(1, 2, 3))
JSEG_HEAD = dict(type="JSegEAHead", channels=24, memory_size=8)
MASA_HEAD = dict(type="MaSAHead", channels=24, num_heads=3, decomposed=False)
# The command's test exports EAHead on ResNet.
PAIRS = {
    "DANetEAHead on LambdaResNet": (LAMBDA, DANET_HEAD),
    "JSegEAHead on DeepViT": (DEEPVIT | TOKENS, JSEG_HEAD),
    "MaSAHead on EAMLP": (EAMLP | TOKENS, MASA_HEAD),
    "FPNHead on RMT": (RMT, FPN_HEAD),
}


def build(backbone: dict, head: dict):
    model = MODELS.build(backbone)
    model.eval()
    with torch.no_grad():
        widths = [maps.shape[1] for maps in model(torch.zeros(1, 3, 64, 64))]
    several = head["type"] in ("FPNHead", "UPerHead")
    head = head | dict(num_classes=5, align_corners=False)
    head["in_channels"] = widths if several else widths[-1]
    head["in_index"] = [*range(len(widths))] if several else 0
    parts = dict(data_preprocessor=PREPROCESSOR, backbone=backbone, decode_head=head)
    segmentor = MODELS.build(dict(type="EncoderDecoder", test_cfg=dict(mode="whole"), **parts))
    randomise(segmentor).eval()
    return segmentor


@pytest.mark.parametrize("name", PAIRS)
def test_any_size_and_number_of_images(name, tmp_path):
    segmentor = build(*PAIRS[name])
    eager = WholeImageSegmentor(segmentor)
    path = tmp_path / "model.onnx"  # written from what torch.export captures
    export(WholeImageSegmentor(segmentor, fuse=True), path, (64, 80), dynamic=True)
    for size, batch in (((64, 80), 2), ((96, 72), 1), ((67, 101), 3)):
        assert_exact(path, eager, size, batch)


@pytest.mark.parametrize(
    ("head", "bgr_to_rgb"),
    [
        (EA_HEAD, True),
        (EA_HEAD, False),
        (dict(type="DAHead", channels=16, pam_channels=4), True),
        (DANET_HEAD, True),
    ],
)
def test_scores_are_the_segmentors(head, bgr_to_rgb):
    """Of an image as a pipeline gives it: BGR, normalised by the data preprocessor."""
    segmentor = build(RESNET, head)
    segmentor.data_preprocessor._channel_conversion = bgr_to_rgb
    images = random_images((60, 70))
    inputs = segmentor.data_preprocessor({"inputs": [images[0].flip(0)]})["inputs"]
    metas = [{"ori_shape": (60, 70), "img_shape": (60, 70), "pad_shape": (60, 70)}]
    with torch.no_grad():
        expected = segmentor.encode_decode(inputs, metas)
        assert relative_difference(WholeImageSegmentor(segmentor)(images), expected) <= 1e-6


def assert_exact(path, model, size=(64, 64), batch=1):
    """The file's scores of random images are the model's."""
    images = random_images(size, batch)
    with torch.no_grad():
        expected, scores = model(images), ExportedSegmentor(path)(images)
    assert scores.shape == expected.shape and relative_difference(scores, expected) <= 1e-5


def test_what_takes_one_size_is_refused_with_the_reason(tmp_path):
    # The 16x16 and 8x8 maps of 64 pixels, learned position by position.
    fixed = {**LAMBDA, "receptive_field": None, "resolution": (64, 64)}
    model, path = WholeImageSegmentor(build(fixed, EA_HEAD)), tmp_path / "a.pt2"
    with pytest.raises(ValueError, match="position embeddings"):
        export(model, path, (64, 64), dynamic=True)
    export(model, path, (64, 64))
    assert_exact(path, model)

    model = WholeImageSegmentor(build({**RESNET, "out_indices": (0, 1, 2, 3)}, UPER_HEAD))
    with pytest.raises(ValueError, match="--format torch"):
        export(model, tmp_path / "a.onnx", (64, 64), dynamic=True)
    export(model, path, (64, 64), dynamic=True)
    assert_exact(path, model)


class Blocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(*[ManhattanAttention(4, 2) for _ in range(2)])

    def forward(self, x):
        x = x / 255
        return self.blocks(torch.cat([x, x[:, :1]], 1).permute(0, 2, 3, 1))


def test_blocks_share_their_position_tables(tmp_path):
    model, path = Blocks().eval(), tmp_path / "a.onnx"
    export(model, path, (24, 40))
    assert_exact(path, model, (24, 40))
    values = [i.SerializeToString()[-2048:] for i in onnx.load(path).graph.initializer]
    large = [value for value in values if len(value) == 2048]
    assert len(large) > 2 and len(set(large)) == len(large)


def test_refusals(tmp_path, monkeypatch):
    """A model that does not export, a missing package, and other segmentors are one error."""
    segmentor = build(RESNET, EA_HEAD)
    model = WholeImageSegmentor(segmentor)
    model.parts["decode_head"].forward = lambda x: torch.from_numpy(x[0].numpy())
    with pytest.raises(ValueError, match=r"a\.pt2: the exporter failed for 32x32: "):
        export(model, tmp_path / "a.pt2", (32, 32))
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(StackError, match=r"onnxscript.*export"):
        export(model, tmp_path / "a.onnx", (64, 64))
    segmentor.decode_head.predict_by_feat = lambda *args: None  # not a resize
    for other, name in ((segmentor, "EAHead"), (torch.nn.Linear(1, 1), "Linear")):
        with pytest.raises(ValueError, match=name):
            WholeImageSegmentor(other)


def shapes_checkpoint(folder) -> str:
    """Write random weights with which no class wins everywhere."""
    model = init_model(CONFIG, None, device="cpu")
    meta = {"dataset_meta": {"classes": list("abcdef"), "palette": [[i, 0, 9] for i in range(6)]}}
    randomise(model).eval()
    with torch.no_grad():
        scores = WholeImageSegmentor(model)(random_images((96, 96)))
        model.decode_head.conv_seg.bias -= scores.mean((0, 2, 3))
    save_checkpoint({"state_dict": model.state_dict(), "meta": meta}, str(folder / "weights.pth"))
    return str(folder / "weights.pth")


def test_command_and_the_example_without_mmseg(tmp_path, monkeypatch, capsys):
    """In a process without mmseg; EXIF orientation is applied."""
    folder = tmp_path / "images"
    folder.mkdir()
    random = np.random.RandomState(0)
    for name, size in (("a", (96, 96)), ("b", (70, 110))):
        pixels = random.randint(0, 256, (*size, 3), dtype=np.uint8)
        exif = Image.Exif()
        exif[0x0112] = 6  # to be turned to the right, b alone
        Image.fromarray(pixels).save(folder / f"{name}.png", exif=exif if name == "b" else None)
    (folder / "broken.jpg").write_bytes(b"\xff\xd8 no image")
    (folder / "notes.txt").write_text("no image")
    out = tmp_path / "model.onnx"
    weights = shapes_checkpoint(tmp_path)
    words = [CONFIG, weights, "--dynamic", "--fuse", "--out", str(out)]
    assert main([*words, "--images", str(folder / "b.png")]) == 0

    code = (
        "import sys, runpy\n"
        "sys.modules.update(dict.fromkeys(('mmseg', 'mmengine', 'mmcv', 'mmseg_ext', 'torch')))\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    script = str(CONFIGS.parent / "demo" / "run_exported.py")
    command = f"import sys; sys.argv = {[script, str(out), str(folder), str(tmp_path / 'out')]}\n"
    result = subprocess.run(
        [sys.executable, "-c", command + code], capture_output=True, text=True, cwd=tmp_path
    )
    assert result.returncode == 1 and "broken.jpg" in result.stderr
    assert "2 of 3 images" in result.stdout

    model = WholeImageSegmentor(init_model(CONFIG, weights, device="cpu"))
    for name in "ab":
        pixels = np.asarray(Image.open(folder / f"{name}.png"), dtype=np.float32)
        pixels = np.rot90(pixels, -1) if name == "b" else pixels
        images = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]
        with torch.no_grad():
            expected = model(images)[0].argmax(0).numpy()
        labels = np.asarray(Image.open(tmp_path / "out" / f"{name}.png"))
        assert (labels == expected).mean() > 0.999
        assert len(np.unique(labels)) > 1

    assert ExportedSegmentor(out).metadata["classes"] == list("abcdef")
    example = runpy.run_path(script)["main"]
    (tmp_path / "empty").mkdir()
    for name in ("a.onnx", "a.pt2"):
        (tmp_path / name).write_bytes(b"broken")
    for file, images, told in (
        (out, "a.png", None),
        (out, "broken.jpg", "broken.jpg"),
        (out, "../empty", "empty"),
        (out, "no", "no"),
        (tmp_path / "a.onnx", "a.png", "a.onnx: not an exported"),
        (tmp_path / "a.pt2", "a.png", "a.pt2: use an .onnx"),
    ):
        monkeypatch.setattr(sys, "argv", [script, str(file), str(folder / images), str(tmp_path)])
        assert example() == bool(told)
        error = capsys.readouterr().err
        assert error.count("\n") == bool(told) and (told or "") in error


RESIZED = dict(scale=[48, 36], keep_ratio=True, mean=[10, 20, 30])


@pytest.mark.parametrize(
    ("metadata", "seen"),
    [
        (dict(dynamic=False, size=[36, 48]), (36, 24)),  # the rest of 36x48 is filled
        (dict(dynamic=True, size=[36, 48]), (48, 32)),
        (dict(dynamic=True, size=[36, 48], scale=None), (120, 80)),
        (dict(dynamic=False, size=[36, 48], scale=None), (36, 24)),
        (dict(dynamic=False, size=[96, 96]), (48, 32)),
        (dict(dynamic=False, size=[36, 48], keep_ratio=False), (36, 48)),
    ],
)
def test_the_example_scales_as_the_test_pipeline(metadata, seen):
    """A network that returns its input: the labels are the largest colors of the photo."""
    photo = np.zeros((120, 80, 3), dtype=np.uint8)
    for region in np.ndindex(4, 2):
        rows, columns = (slice(n * i, n * (i + 1)) for n, i in zip((30, 40), region, strict=True))
        photo[rows, columns, sum(region) % 3] = 200
    inputs = []
    segment = runpy.run_path(str(CONFIGS.parent / "demo" / "run_exported.py"))["segment"]
    labels = segment(lambda x: inputs.append(x[0]) or x, RESIZED | metadata, Image.fromarray(photo))
    height, width = seen
    assert (labels == photo.argmax(2)).mean() > 0.95 and labels.dtype == np.uint8
    assert inputs[0].shape == (3, *(seen if metadata["dynamic"] else metadata["size"]))
    rest = np.array(RESIZED["mean"])[:, None, None]
    assert (inputs[0][:, height:] == rest).all() and (inputs[0][:, :, width:] == rest).all()
    cells = inputs[0][:, height // 8 : height : height // 4, width // 4 : width : width // 2]
    assert (cells.max(0) > 150).all()  # the centers of the regions

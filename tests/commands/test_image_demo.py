"""The demo over folders and videos, its predictor, and mmsegmentation's own ways to predict."""

import resource
import signal

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.runner import save_checkpoint
from mmseg.apis import MMSegInferencer, inference_model, init_model, show_result_pyplot
from PIL import Image

from mmseg_ext.checkpoint.safe_reading import read_checkpoint
from mmseg_ext.commands import attention_maps as attention_pictures
from mmseg_ext.commands import export as deployment
from mmseg_ext.commands import image_demo
from mmseg_ext.commands.image_demo import find_images, main
from mmseg_ext.commands.publish_model import publish
from mmseg_ext.datasets.metainfo import classes_and_palette
from mmseg_ext.inference import Predictor, Shard
from tests.configs import CONFIGS
from tests.engine.runs import run_script
from tests.models import randomise

CONFIG = str(CONFIGS / "ea_r18_shapes.py")
META = {"classes": list("abcdef"), "palette": [[40 * i, 0, 9] for i in range(6)]}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    torch.manual_seed(0)
    model = init_model(CONFIG, None, device="cpu")
    path = tmp_path_factory.mktemp("weights") / "weights.pth"
    meta = {"dataset_meta": META}
    save_checkpoint({"state_dict": randomise(model).state_dict(), "meta": meta}, str(path))
    return str(path)


@pytest.fixture
def folder(tmp_path):
    """Five images of three shapes, one of them truncated, in a tree."""
    root = tmp_path / "images"
    (root / "deep").mkdir(parents=True)
    random = np.random.RandomState(0)
    sizes = {"a.png": (64, 64), "a.bmp": (48, 80), "b.png": (64, 64), "deep/c.png": (50, 70)}
    for name, size in sizes.items():
        pixels = random.randint(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / name)
    (root / "z.png").write_bytes((root / "a.png").read_bytes()[:2000])
    return root


def read(path) -> np.ndarray:
    return np.asarray(Image.open(path))


def test_folder_is_segmented_and_what_is_broken_named(folder, checkpoint, tmp_path, capsys):
    out = tmp_path / "out"
    words = [str(folder), CONFIG, checkpoint, "--out", str(out), "--batch-size", "2"]
    assert main(words) == 0
    captured = capsys.readouterr()
    assert "4 images segmented" in captured.out
    assert f"skipped {folder}/z.png: is truncated (2000 bytes)" in captured.err
    assert {str(p.relative_to(out / "labels")) for p in out.glob("labels/**/*.png")} == {
        "a.png.png",
        "a.bmp.png",
        "b.png",
        "deep/c.png",
    }
    model = init_model(CONFIG, checkpoint, device="cpu")
    for image, name in find_images(folder, tmp_path / "out").items():
        if image.name == "z.png":
            continue
        expected = inference_model(model, str(image)).pred_sem_seg.data[0].numpy()
        labels = read(out / "labels" / name)
        assert (labels == expected).mean() > 0.999  # batches may round otherwise
        colours = np.array(META["palette"])[labels]
        overlay = read(out / "overlays" / name).astype(int)
        assert np.abs(overlay - (read(image) + colours) / 2).max() <= 0.5

    # Started again it does what is missing, and only that.
    kept = (out / "labels/b.png").stat().st_mtime_ns
    (out / "labels/deep/c.png").unlink()
    assert main(words) == 0
    assert "1 images segmented" in capsys.readouterr().out
    assert (out / "labels/b.png").stat().st_mtime_ns == kept
    assert (out / "labels/deep/c.png").exists()


def test_results_of_others_are_not_taken_for_done(folder, checkpoint, tmp_path, capsys):
    """Of other weights, or of another image whose result has the same name."""
    out, image = tmp_path / "out", folder / "a.png"
    words = [CONFIG, checkpoint, "--out", str(out)]
    assert main([str(image), *words]) == 0
    result = out / "labels/a.png"
    before = result.read_bytes()
    other = tmp_path / "other.pth"
    content = read_checkpoint(checkpoint)
    content["state_dict"]["decode_head.conv_seg.bias"] += 1
    torch.save(content, other)
    for line, what in (
        ([str(image), CONFIG, str(other), "--out", str(out)], "weights"),
        ([str(image), *words, "--tta"], "weights"),
        ([str(folder / "a.bmp"), *words], "image"),
    ):
        assert main(line) == 1
        said = capsys.readouterr().err
        assert f"{result} is there already, made from other {what} (" in said
        assert result.read_bytes() == before
    assert main([str(image), *words]) == 0
    assert "0 images segmented" in capsys.readouterr().out


def test_its_own_results_are_no_input(folder, checkpoint, capsys):
    words = [str(folder), CONFIG, checkpoint, "--out", str(folder / "results")]
    for count in (4, 0):
        assert main(words) == 0
        assert f"{count} images segmented" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["image", "video"])
def test_a_full_disk_is_one_message_and_no_half_file(
    folder, checkpoint, tmp_path, capsys, monkeypatch, kind
):
    path = folder / "a.png"
    if kind == "video":
        path = tmp_path / "clip.avi"
        writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
        random = np.random.RandomState(0)
        for _ in range(5):
            writer.write(random.randint(0, 256, (48, 64, 3)).astype("uint8"))
        writer.release()
    out = tmp_path / "out"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    load = image_demo.load_settings

    def load_then_fill(config):
        settings = load(config)  # mmengine copies configs to a temporary folder
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
        return settings

    monkeypatch.setattr(image_demo, "load_settings", load_then_fill)
    try:
        assert main([str(path), CONFIG, checkpoint, "--out", str(out), "--opacity", "0"]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert "cannot be written: " in capsys.readouterr().err
    assert [p for p in out.rglob("*") if p.is_file()] == []


@pytest.mark.distributed
def test_processes_share_the_images(folder, checkpoint, tmp_path):
    out = tmp_path / "out"
    script = CONFIGS.parent / "demo" / "image_demo.py"
    words = [folder, CONFIG, checkpoint, "--out", out, "--device", "cpu"]
    result = run_script(script, *words, ranks=2)
    assert result.returncode == 0, result.stderr
    assert len(list(out.glob("labels/**/*.png"))) == 4
    lines = sorted(line for line in result.stdout.splitlines() if "segmented" in line)
    assert lines[0].startswith("process 0 of 2: ") and lines[1].startswith("process 1 of 2: 2 ")
    assert result.stderr.count("z.png: is truncated") == 1


def test_shards_are_a_partition():
    items = list(range(11))
    parts = [Shard(rank, 3).of(items) for rank in range(3)]
    assert sorted(item for part in parts for item in part) == items
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_tta_is_the_configs(folder, checkpoint):
    """A batch of two with three scales and flips equals the mean of the views, one by one."""
    paths = [str(folder / "a.png"), str(folder / "b.png")]
    predictor = Predictor(Config.fromfile(CONFIG), checkpoint, tta=True, batch_size=2)
    merged = dict(predictor.predict((path, path) for path in paths))
    assert list(merged) == paths
    model = init_model(CONFIG, checkpoint, device="cpu")
    model.test_cfg.keep_logits = True
    for path in paths:
        image = cv2.imread(path)
        total = 0
        for ratio in (0.75, 1.0, 1.25):
            size = [int(side * ratio + 0.5) for side in image.shape[1::-1]]
            view = cv2.resize(image, size, interpolation=cv2.INTER_LINEAR)
            for flip in (False, True):
                turned = view[:, ::-1].copy() if flip else view
                scores = inference_model(model, turned).seg_logits.data[None]
                scores = scores.flip(3) if flip else scores
                shape = image.shape[:2]
                scores = torch.nn.functional.interpolate(
                    scores, shape, mode="bilinear", align_corners=True
                )
                total = total + scores.softmax(1)
        # The model's own way samples the scores once, at the original size: a little different.
        assert (total[0].argmax(0).numpy() == merged[path]).mean() > 0.9


def test_video(checkpoint, tmp_path, capsys):
    path = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
    random = np.random.RandomState(0)
    for _ in range(5):
        writer.write(np.kron(random.randint(0, 256, (6, 8, 3)), np.ones((8, 8, 1))).astype("uint8"))
    writer.release()
    words = [str(path), CONFIG, checkpoint, "--out", str(tmp_path), "--batch-size", "2"]
    assert main([*words, "--opacity", "1"]) == 0
    assert "5 frames segmented" in capsys.readouterr().out
    video = cv2.VideoCapture(str(tmp_path / "clip.mp4"))
    frames = []
    while (item := video.read())[0]:
        frames.append(item[1])
    assert len(frames) == 5 and frames[0].shape == (48, 64, 3)
    # The palette's colours differ in red alone, BGR's last: the others stay near 9 and 0.
    assert np.abs(frames[0][..., 1].astype(int)).mean() < 12


def test_bad_arguments_are_one_line(tmp_path, capsys):
    for words, message in (
        (["nowhere", CONFIG, "none"], "there is no 'nowhere'"),
        ([str(tmp_path), CONFIG, "none"], "holds no image"),
        ([str(tmp_path), CONFIG, "none", "--batch-size", "0"], "batch_size must be positive"),
        ([str(tmp_path), CONFIG, str(tmp_path / "w.pth")], "no such checkpoint file"),
    ):
        assert main([*words, "--out", str(tmp_path / "out")]) == 1
        assert message in capsys.readouterr().err


@pytest.fixture
def own(tmp_path) -> str:
    """A config whose three classes stand in its `metainfo`, in a wrapper of datasets."""
    path = tmp_path / "own.py"
    path.write_text(
        f"_base_ = {CONFIG!r}\n"
        "model = dict(decode_head=dict(num_classes=3))\n"
        "one = dict(type='CheckedDataset', data_root='nowhere', pipeline=_base_.test_pipeline,\n"
        f"    metainfo=dict(classes=('soil', 'crop', 'weed'), palette={META['palette'][:3]}))\n"
        "test_dataloader = dict(dataset=dict(_delete_=True, type='ConcatDataset',\n"
        "    datasets=[one, one]))\n"
    )
    return str(path)


def test_classes_are_those_of_the_config(own, folder, tmp_path, capsys):
    """Where no checkpoint names them: in each tool that needs them."""
    predictor = Predictor(Config.fromfile(own), None)
    assert predictor.classes == ("soil", "crop", "weed")
    assert predictor.palette.tolist() == META["palette"][:3]
    image = str(folder / "a.png")
    assert main([image, own, "none", "--out", str(tmp_path / "out")]) == 0
    exported = tmp_path / "own.pt2"
    words = [own, "none", "--shape", "32", "--format", "torch", "--out", str(exported)]
    assert deployment.main(words) == 0
    assert deployment.ExportedSegmentor(exported).metadata["classes"] == ["soil", "crop", "weed"]
    assert attention_pictures.main([own, "none", image, "--out", str(tmp_path / "maps")]) == 0
    capsys.readouterr()


def test_classes_of_published_weights(checkpoint, tmp_path):
    path = publish(checkpoint, tmp_path / "weights.safetensors")
    predictor = Predictor(Config.fromfile(CONFIG), path)
    assert predictor.classes == tuple(META["classes"])
    assert predictor.palette.tolist() == META["palette"]


def test_classes_without_the_data():
    """As building the dataset gives them: a subset of METAINFO takes its colours along."""
    stock = {"type": "PascalVOCDataset", "ann_file": "nowhere.txt"}
    assert len(classes_and_palette(stock)["classes"]) == 21
    part = classes_and_palette({**stock, "metainfo": {"classes": ["cat", "bird"]}})
    assert part == {"classes": ("cat", "bird"), "palette": [[64, 0, 0], [128, 128, 0]]}
    assert len(classes_and_palette({"type": "BaseSegDataset", "metainfo": {"classes": "ab"}})) == 2
    with pytest.raises(ValueError, match="CheckedDataset has no classes"):
        classes_and_palette({"type": "RepeatDataset", "dataset": {"type": "CheckedDataset"}})
    with pytest.raises(ValueError, match="no dataset of type 'Nothing'"):
        classes_and_palette({"type": "Nothing"})


def test_weights_of_other_classes_are_one_line(own, checkpoint, folder, tmp_path, capsys):
    image = str(folder / "a.png")
    assert main([image, own, checkpoint, "--out", str(tmp_path)]) == 1
    line = capsys.readouterr().err
    assert line.startswith(f"error: {checkpoint}: does not fit the config: size mismatch for ")
    assert line.count("\n") == 1 and "more)" in line
    assert deployment.main([own, checkpoint, "--out", str(tmp_path / "a.onnx")]) == 1
    assert capsys.readouterr().err == line
    assert attention_pictures.main([own, checkpoint, image, "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == line


def test_mmsegmentations_inferencer_takes_our_configs(folder, checkpoint):
    """And gives what `inference_model` gives."""
    inferencer = MMSegInferencer(CONFIG, weights=checkpoint, device="cpu")
    path = str(folder / "a.png")
    result = inferencer(path, show=False, return_datasamples=False)
    expected = inference_model(init_model(CONFIG, checkpoint, device="cpu"), path)
    assert (result["predictions"] == expected.pred_sem_seg.data[0].numpy()).all()


def test_mmsegmentation_shows_our_results(folder, checkpoint, tmp_path):
    """Each class in its colour of the checkpoint's palette, into a file."""
    model, path = init_model(CONFIG, checkpoint, device="cpu"), str(folder / "a.png")
    result = inference_model(model, path)
    options = {"opacity": 1.0, "show": False, "draw_gt": False, "with_labels": False}
    out = tmp_path / "shown.png"
    shown = show_result_pyplot(model, path, result, **options, save_dir=tmp_path, out_file=out)
    expected = np.array(META["palette"])[result.pred_sem_seg.data[0].numpy()]
    assert len(np.unique(expected)) > 2
    assert (shown == expected).all()
    assert (read(out) == expected).all()

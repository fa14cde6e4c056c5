"""`Predictor` against mmsegmentation's `inference_model`."""

import copy
import functools
import http.server
import io
import re
import threading

import cv2
import numpy as np
import pytest
import tifffile
import torch
from mmengine.config import Config
from mmseg.apis import inference_model, init_model
from mmseg.registry import DATASETS, TRANSFORMS
from PIL import Image

import mmseg_ext
from mmseg_ext.datasets import image_loading as reader  # a process warns once for a kind of file
from mmseg_ext.errors import UnreadableFileError
from mmseg_ext.segmentors import StreamingSegTTAModel
from tests.configs import CONFIGS
from tests.messages import raises_message
from tests.models import randomise

CONFIG = str(CONFIGS / "ea_r18_shapes.py")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = randomise(mmseg_ext.get_model(CONFIG))
    with torch.no_grad():
        model.decode_head.conv_seg.weight.mul_(100)  # scores that differ between pixels
    return model.eval()


@pytest.fixture
def images(tmp_path) -> list[str]:
    paths = [str(tmp_path / name) for name in ("a.png", "b.png")]
    for path, size in zip(paths, ((48, 64), (40, 40)), strict=True):
        cv2.imwrite(path, noise(*size, 3))
    return paths


def noise(*shape: int) -> np.ndarray:
    return np.random.RandomState(0).randint(0, 256, shape, dtype=np.uint8)


def test_paths_pictures_and_arrays_give_the_labels_of_mmsegmentation(model, images, tmp_path):
    predictor = mmseg_ext.Predictor(model.train())
    for path in images:
        bgr = cv2.imread(path)
        expected = inference_model(model, bgr).pred_sem_seg.data[0].numpy()
        assert len(np.unique(expected)) > 1
        single = predictor(path)
        several = predictor([tmp_path / path, Image.open(path), bgr[..., ::-1]])
        for result in (single, *several):
            assert result.labels.dtype == np.uint8 and (result.labels == expected).all()
            assert (result.image == bgr[..., ::-1]).all()
    assert predictor([]) == []


def test_a_config_in_plain_python_has_classes_as_types(model, images, tmp_path):
    config, file = Config.fromfile(CONFIG), tmp_path / "a.pth"
    torch.save({"state_dict": model.state_dict()}, file)
    (labels,) = config.tta_pipeline[1].transforms[2]
    for settings in (config.test_dataloader.dataset, *config.tta_pipeline, labels):
        registry = DATASETS if "pipeline" in settings else TRANSFORMS
        settings.type = registry.get(settings.type)
    for tta in (False, True):
        expected = mmseg_ext.Predictor(CONFIG, tta, weights=file)(images[0])
        result = mmseg_ext.Predictor(config, tta, weights=file)(images[0])
        assert (result.labels == expected.labels).all() and result.classes == expected.classes


def test_a_name_or_a_config_is_as_good_as_a_model(model, images, tmp_path, monkeypatch):
    """A name has the project's weights; another config's best checkpoint is named."""
    monkeypatch.chdir(tmp_path)
    expected = mmseg_ext.get_model("ea_r18_fpn_nuclei_4k", pretrained=True).state_dict()
    named = mmseg_ext.Predictor("ea_r18_fpn_nuclei_4k").model.state_dict()
    assert all(torch.equal(named[key], value) for key, value in expected.items())
    torch.save({"state_dict": model.state_dict()}, file := tmp_path / "iter_600.pth")
    labels = mmseg_ext.Predictor(model)(images[0]).labels
    for path in (file, str(file)):
        assert (mmseg_ext.Predictor(CONFIG, path)(images[0]).labels == labels).all()
    for arguments, more in (
        ([CONFIG, True], {"weights": file}),
        ([CONFIG, file], {"tta": True}),
        ([CONFIG], {"weights": file, "tta": True}),
        ([model], {"tta": True}),
        ([model, True], {}),
    ):
        assert isinstance(mmseg_ext.Predictor(*arguments, **more).model, StreamingSegTTAModel)
    with raises_message(ValueError, "other.pth", where="weights", todo=True):
        mmseg_ext.Predictor(CONFIG, file, weights="other.pth")
    with raises_message(ValueError, where="ea_r18_shapes: ", todo="weights=FILE"):
        mmseg_ext.Predictor(CONFIG)
    own = tmp_path / "own.py"
    for folder, name in (("no", "FILE"), (".", "iter_600.pth"), (".", "best_mIoU_iter_400.pth")):
        own.write_text(f"_base_ = {CONFIG!r}\nwork_dir = {folder!r}\n")
        (tmp_path / name).write_bytes(file.read_bytes())
        with pytest.raises(ValueError, match=rf"own\.py: .*; .*weights='?{name}'?$"):
            mmseg_ext.Predictor(own)
    for more in ({"weights": file}, {"device": "cpu"}):
        with raises_message(ValueError, where="weights, device: ", todo=True):
            mmseg_ext.Predictor(model, **more)


def test_photos_are_rotated_by_their_exif_orientation(model, tmp_path):
    """From paths, pictures, bytes and files; text is no image."""
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise
    path, pixels = tmp_path / "photo.png", noise(40, 56, 3)
    Image.fromarray(pixels).save(path, exif=exif)
    predictor, content = mmseg_ext.Predictor(model), path.read_bytes()
    with path.open("rb") as file:
        for photo in (path, Image.open(path), content, io.BytesIO(content), file):
            result = predictor(photo)
            assert (result.image == np.rot90(pixels, -1)).all() and result.labels.shape == (56, 40)
    with raises_message(UnreadableFileError, len(content) // 3, where="image: "):
        predictor(content[: len(content) // 3])
    with pytest.raises(ValueError, match="str"):
        predictor(io.StringIO("text"))


@pytest.mark.parametrize(("color", "bands"), [("grayscale", 1), ("unchanged", 4)])
def test_other_loaders_keep_their_options(model, tmp_path, color, bands):
    """Gray and multispectral images load as such; the overlay shows gray or three bands."""
    other = init_model(CONFIG, None, device="cpu")
    other.dataset_meta = model.dataset_meta
    other.cfg.test_dataloader.dataset.pipeline[0].update(color_type=color, to_float32=True)
    seen = []
    other.test_step = lambda data: (
        seen.extend(data["inputs"])
        or model.test_step({**data, "inputs": [x[:1].expand(3, -1, -1) for x in data["inputs"]]})
    )
    pixels = noise(40, 48, 4)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    result = mmseg_ext.Predictor(other)(tmp_path / "a.png")
    gray = cv2.imread(str(tmp_path / "a.png"), cv2.IMREAD_GRAYSCALE)[..., None]
    assert seen[0].shape[0] == bands
    assert (result.image == (gray if color == "grayscale" else pixels[..., :3])).all()


def test_labels_have_the_smallest_type(model, images):
    predictor = mmseg_ext.Predictor(model)
    for count, dtype in ((256, np.uint8), (257, np.uint16)):
        predictor.classes = ("a",) * count
        assert predictor(images[0]).labels.dtype == dtype


RGB = noise(40, 56, 3)
GRAY = noise(40, 56)
GIVEN = {
    "gray": (GRAY, GRAY),
    "gray with an axis": (GRAY[..., None], GRAY),
    "alpha": (np.dstack([RGB, GRAY]), RGB),
    "uint16": (RGB.astype(np.uint16) * 256 + 255, RGB),
    "float": (RGB.astype(np.float64) / 255, RGB),
    "tensor": (torch.from_numpy(RGB).permute(2, 0, 1), RGB),
    "tensor of floats": (torch.from_numpy(RGB).permute(2, 0, 1) / 255, RGB),
    "gray tensor": (torch.from_numpy(GRAY)[None], GRAY),
    "flat tensor": (torch.from_numpy(GRAY), GRAY),
    "picture with alpha": (Image.fromarray(np.dstack([RGB, GRAY])), RGB),
    "gray picture": (Image.fromarray(GRAY), GRAY),
    "deep picture": (Image.fromarray(GRAY.astype(np.uint16) * 256), GRAY),
}


@pytest.mark.parametrize("name", GIVEN)
def test_kinds_of_images(model, name):
    given, expected = GIVEN[name]
    expected = np.dstack([expected] * 3) if expected.ndim == 2 else expected
    predictor = mmseg_ext.Predictor(model)
    result = predictor(given)
    assert (result.image == expected).all() and result.labels.shape == (40, 56)
    assert (result.labels == predictor(expected).labels).all()


def test_a_value_range_makes_deep_images_right(model, tmp_path):
    """12 bits in files and arrays of 16, signed values and floats, against the photo."""
    expected, path = mmseg_ext.Predictor(model)(RGB), tmp_path / "a.tif"
    twelve = RGB.astype(np.uint16) * 257 >> 4
    tifffile.imwrite(path, twelve, photometric="rgb")
    predictor = mmseg_ext.Predictor(model, value_range=(0, 4095))
    others = {(-500, 2050): RGB.astype(np.int16) * 10 - 500, (0, 10): RGB / 25.5}
    found = [predictor(given) for given in (path, twelve, RGB)]
    found += [mmseg_ext.Predictor(model, value_range=key)(given) for key, given in others.items()]
    for result in found:
        assert (result.image == RGB).all() and (result.labels == expected.labels).all()
    predictor = mmseg_ext.Predictor(model)
    reader.warned_kinds.clear()
    with pytest.warns(UserWarning, match=r"^image: .*--value-range 0 4095 "):
        assert (predictor(twelve).image == RGB >> 4).all()


def test_images_that_cannot_be_resized_are_one_line():
    resize = [dict(type="Resize", scale=(96, 96), keep_ratio=True)]
    config = mmseg_ext.get_model(CONFIG).cfg
    pipeline = config.test_dataloader.dataset.pipeline
    config.test_dataloader.dataset.pipeline = [pipeline[0], *resize, *pipeline[1:]]
    predictor = mmseg_ext.Predictor(mmseg_ext.get_model(config))
    with raises_message(ValueError, "700x3", where="image: ", todo=True):
        predictor(np.zeros((3, 700, 3), np.uint8))


def test_urls_are_loaded_only_if_allowed(model, images, tmp_path):
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/a.png"
            with pytest.raises(ValueError, match="urls=True"):
                mmseg_ext.Predictor(model)(url)
            result = mmseg_ext.Predictor(model, urls=True)(url)
        finally:
            server.shutdown()
            thread.join()
    assert (result.image == mmseg_ext.Predictor(model)(images[0]).image).all()


def test_batches_have_one_size_and_results_keep_their_order(model, monkeypatch):
    pictures = [noise(40, 56 if i % 3 else 40, 3) + np.uint8(i) for i in range(10)]
    single, sizes = mmseg_ext.Predictor(model), []
    test_step = type(model).test_step
    monkeypatch.setattr(
        type(model), "test_step", lambda m, d: sizes.append(len(d["inputs"])) or test_step(m, d)
    )
    results = mmseg_ext.Predictor(model, batch_size=4)(pictures)
    assert sizes == [2, 2, 3, 1, 1, 1]
    for picture, result in zip(pictures, results, strict=True):
        assert (result.image == picture).all()
        assert (result.labels == single(picture).labels).mean() > 0.999


def test_generators_are_read_as_needed(model):
    given = []
    pictures = (given.append(i) or noise(40, 40 + i, 3) for i in range(4))
    results = mmseg_ext.Predictor(model, batch_size=2)(pictures)
    assert given == [] and next(results).labels.shape == (40, 40) and given == [0, 1]
    assert [result.labels.shape[1] for result in results] == [41, 42, 43]


def test_lists_are_read_by_a_thread_during_predictions(model, images, monkeypatch):
    """The next batch only; a bad image raises its error, and the thread ends."""
    readers, before, read = set(), threading.active_count(), cv2.imdecode
    monkeypatch.setattr(
        cv2, "imdecode", lambda *a: readers.add(threading.current_thread()) or read(*a)
    )
    predictor = mmseg_ext.Predictor(model, batch_size=2)
    expected = [predictor(path) for path in images]
    assert readers == {threading.main_thread()}
    for found, result in zip(predictor(images * 3), expected * 3, strict=True):
        assert (found.labels == result.labels).all() and (found.image == result.image).all()
    assert len(readers) == 2 and threading.active_count() == before
    seen, bad = [], [images[0], images[0], images[1], "missing.png", images[0], "no.png"]
    test_step = type(model).test_step
    monkeypatch.setattr(
        type(model), "test_step", lambda m, d: seen.append(len(d["inputs"])) or test_step(m, d)
    )
    with pytest.raises(UnreadableFileError, match=r"^missing\.png"):
        predictor(bad)
    assert seen == [2] and threading.active_count() == before


@pytest.mark.parametrize("classes", [None, 2, 1], ids=["classes", "foreground", "one class"])
@pytest.mark.parametrize("kind", ["StripEncoderDecoder", "EncoderDecoder"])
def test_scores_are_probabilities(kind, classes, tmp_path, monkeypatch):
    """A foreground has a background, also where only the first has a name."""
    monkeypatch.setattr("mmseg_ext.segmentors.score_maps.STRIP_BYTES", 10_000)
    heads = {} if classes is None else dict(num_classes=classes, out_channels=1, threshold=0.5)
    torch.manual_seed(0)
    model = randomise(mmseg_ext.get_model(CONFIG, type=kind, decode_head=heads)).eval()
    if classes == 1:
        assert len(model.dataset_meta["classes"]) == 2
        model.dataset_meta = dict(classes=["cell"], palette=[[255, 0, 0]])  # as of `init_model`
    result = mmseg_ext.Predictor(model, scores=True, confidence=True)(RGB)
    plain = mmseg_ext.Predictor(model)(RGB)
    if classes == 1:
        assert result.classes == ("background", "cell")
        assert sum(cell.area for cell in plain.objects("cell")) == plain.labels.sum() > 0
        assert plain.overlay().size == (56, 40)
    assert plain.scores is None is plain.confidence
    logits = inference_model(model, RGB[..., ::-1]).seg_logits.data
    expected = torch.cat([1 - logits, logits]) if classes else logits.softmax(0)
    assert result.scores.dtype == result.confidence.dtype == np.float16
    assert result.scores.shape == (len(result.classes), 40, 56)
    assert np.abs(result.scores - expected.numpy()).max() < 1e-3 and expected.std() > 0.01
    assert (result.confidence == result.scores.max(0)).all()
    assert (result.labels == result.scores.argmax(0)).mean() > 0.98


def test_test_time_augmentation_merges_as_the_config(model, monkeypatch):
    """Also where a flip of training exchanges classes."""
    single, found = mmseg_ext.Predictor(model)(RGB), []
    monkeypatch.setattr(model, "cfg", copy.deepcopy(model.cfg))
    flip = dict(type="RandomFlip", prob=0.5, swap_seg_labels=[(0, 1)])
    for merge, steps in (("probs", []), ("logits", []), ("probs", [flip])):
        model.cfg.tta_model = dict(type="StreamingSegTTAModel", merge=merge)
        model.cfg.train_dataloader.dataset.pipeline += steps
        result = mmseg_ext.Predictor(model, tta=True, scores=True)(RGB)
        assert (result.labels == result.scores.argmax(0)).mean() > 0.98
        assert np.abs(result.scores.sum(0, dtype=np.float32) - 1).max() < 0.01
        assert (result.labels != single.labels).any()
        found.append(result.scores)
    assert np.abs(found[0] - found[1]).max() > 0.01
    differs = np.abs(found[0] - found[2]).max((1, 2)) > 0.01  # by class
    assert differs[:2].all() and not differs[2:].any()


def test_tiles_fill_the_image_up_to_the_middle_of_their_overlap(model):
    picture = noise(60, 90, 3)
    options = dict(scores=True, confidence=True)
    plain = mmseg_ext.Predictor(model, **options)
    result = mmseg_ext.Predictor(model, tile=40, overlap=10, batch_size=4, **options)(picture)
    spans = {60: ((0, 40, 0, 30), (20, 60, 30, 60))}
    spans[90] = ((0, 40, 0, 35), (30, 70, 35, 60), (50, 90, 60, 90))
    for top, bottom, first, last in spans[60]:
        for left, right, start, stop in spans[90]:
            tile = plain(picture[top:bottom, left:right])
            inside = np.s_[first - top : last - top, start - left : stop - left]
            here = np.s_[first:last, start:stop]
            assert (tile.labels[inside] == result.labels[here]).mean() > 0.999
            assert np.abs(tile.confidence[inside] - result.confidence[here]).max() < 0.01
            difference = tile.scores[(..., *inside)] - result.scores[(..., *here)]
            assert np.abs(difference).max() < 0.01
    small = mmseg_ext.Predictor(model, tile=512)(picture)
    assert (small.labels == plain(picture).labels).all()
    for overlap in (-1, 40):
        with pytest.raises(ValueError, match="tile=40"):
            mmseg_ext.Predictor(model, tile=40, overlap=overlap)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tile": 0}, "tile=0: must be at least 1"),
        ({"tile": 64.0}, "tile=64.0: must be an integer"),
        ({"tile": 64, "overlap": "8"}, "overlap='8': must be an integer"),
        ({"batch_size": None}, "batch_size=None: must be"),
        ({"value_range": (5, 1)}, "value_range=(5, 1): give (low, high)"),
        ({"value_range": (0, np.inf)}, "value_range=(0, inf): give (low, high)"),
        ({"value_range": "ab"}, "value_range=ab: give (low, high)"),
        ({"tta": True}, "tta: the config has no tta_pipeline; add it"),
    ],
)
def test_wrong_arguments(model, options, message, monkeypatch):
    monkeypatch.setattr(model, "cfg", copy.deepcopy(model.cfg))
    model.cfg.pop("tta_pipeline", None)
    with pytest.raises(ValueError, match=re.escape(message)):
        mmseg_ext.Predictor(model, **options)


def test_a_range_that_the_loader_does_not_use(model, monkeypatch):
    monkeypatch.setattr(model, "cfg", copy.deepcopy(model.cfg))
    model.cfg.test_dataloader.dataset.pipeline[0] = dict(type="LoadBiomedicalImageFromFile")
    with pytest.raises(ValueError, match="value_range: is not used by LoadBiomedicalImageFromFile"):
        mmseg_ext.Predictor(model, value_range=(0, 4095))


def test_bfloat16(model):
    try:
        predictor = mmseg_ext.Predictor(model, amp=True, scores=True)
    except ValueError as error:
        pytest.skip(str(error))
    dtypes = []
    hook = model.decode_head.conv_seg.register_forward_hook(lambda *args: dtypes.append(args[2]))
    result = predictor(RGB)
    hook.remove()
    assert dtypes[0].dtype == torch.bfloat16
    expected = mmseg_ext.Predictor(model, scores=True)(RGB)
    assert 0 < np.abs(result.scores - expected.scores).mean() < 0.05
    assert (result.labels == expected.labels).mean() > 0.9


def test_bad_images_are_errors(model, tmp_path):
    (tmp_path / "b.png").write_bytes(b"no image")
    predictor = mmseg_ext.Predictor(model)
    with pytest.raises(UnreadableFileError, match=r"b\.png"):
        predictor(tmp_path / "b.png")
    values = (np.full((8, 8), 1.1), np.full((8, 8), np.nan), np.zeros((8, 8), np.int64))
    values += (np.zeros((8, 8), complex), Image.new("RGB", (0, 5)))
    for bad in (*values, np.zeros((3, 8, 8), np.uint8), np.zeros((0, 8, 3), np.uint8), None, 3):
        with pytest.raises(ValueError, match="image"):
            predictor(bad)

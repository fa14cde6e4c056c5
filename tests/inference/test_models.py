"""`get_model` and `list_models`, and the weights that the project publishes."""

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmseg.apis import MMSegInferencer, inference_model, init_model

import mmseg_ext
from mmseg_ext.checkpoint import read_state_dict
from mmseg_ext.datasets import NucleiDataset
from mmseg_ext.errors import CheckpointError, LaunchError
from mmseg_ext.inference import models  # where the weights are
from tests.configs import CONFIGS
from tests.messages import raises_message, warns_message

NUCLEI = NucleiDataset.METAINFO
CAMVID_NAME = "ea_lite0_fpn_camvid_1600"
FIRST_NAME = "ea_r18_fpn_nuclei_4k"  # of 1.0.0
DEFAULT = models.DEFAULT
SHAPES = str(CONFIGS / "ea_r18_shapes.py")


def test_models_have_the_names_of_the_configs():
    names = mmseg_ext.list_models()
    assert names == sorted(path.stem for path in CONFIGS.glob("*.py"))
    assert mmseg_ext.list_models("ea_r18_*") == [n for n in names if n.startswith("ea_r18_")]
    with pytest.raises(ValueError, match="ea_r18_shapes"):
        mmseg_ext.get_model("ea_r18_shape")
    model = mmseg_ext.get_model("ea_r18_shapes", device="meta")
    assert {p.device.type for p in model.parameters()} == {"meta"}


def test_published_weights_fill_the_model():
    weights = read_state_dict(models.pretrained_weights(DEFAULT))
    model = mmseg_ext.get_model(DEFAULT, pretrained=True)
    assert not model.training and {p.dtype for p in model.parameters()} == {torch.float32}
    values = model.state_dict()
    assert all(torch.equal(values[key], value.float()) for key, value in weights.items())
    assert {key.rpartition(".")[2] for key in values.keys() - weights} == {"num_batches_tracked"}
    assert all([*model.dataset_meta[key]] == [*value] for key, value in NUCLEI.items())
    with pytest.raises(ValueError, match=models.WEIGHTS_PAGE):
        mmseg_ext.get_model("ea_r18_shapes", pretrained=True)
    with raises_message(ValueError, "pretrained", "weights", where="get_model: ", todo=True):
        mmseg_ext.get_model(DEFAULT, pretrained=True, weights="other.pth")


def test_overrides_keep_the_tensors_that_fit():
    with pytest.warns(UserWarning, match="decode_head.conv_seg.weight") as warned:
        changes = dict(decode_head=dict(num_classes=4))
        model = mmseg_ext.get_model(DEFAULT, pretrained=True, **changes)
    assert [w.filename for w in warned] == [__file__]  # nothing about losses
    full = mmseg_ext.get_model(DEFAULT, pretrained=True).state_dict()
    differing = {k for k, v in model.state_dict().items() if not torch.equal(v, full[k])}
    assert differing == {"decode_head.conv_seg.weight", "decode_head.conv_seg.bias"}
    assert tuple(model.dataset_meta["classes"]) == ("class_0", "class_1", "class_2", "class_3")
    with torch.enable_grad():
        model.train()(torch.randn(2, 3, 64, 64)).sum().backward()
    assert model.decode_head.conv_seg.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("channels", [1, 2, 4, 6])
def test_weights_fit_other_numbers_of_channels(channels):
    """tests/checkpoint/test_safe_loading.py has the numbers."""
    own = {"data_preprocessor": {"type": "mmseg.SegDataPreProcessor"}} if channels == 4 else {}
    model = mmseg_ext.get_model(DEFAULT, pretrained=True, in_channels=channels, **own)
    full = mmseg_ext.get_model(DEFAULT, pretrained=True)
    photo = np.random.RandomState(0).randint(0, 256, (48, 64, 3), dtype=np.uint8)
    labels = mmseg_ext.Predictor(full)(photo).labels
    if channels == 6:  # with twice the image the network computes the same
        found = mmseg_ext.Predictor(model)(np.dstack([photo, photo])).labels
        assert (found == labels).mean() > 0.999
    elif channels == 1:
        photo = np.repeat(photo[..., :1], 3, 2)
        found = mmseg_ext.Predictor(model)(photo[..., 0]).labels
        assert (found == mmseg_ext.Predictor(full)(photo).labels).mean() > 0.9
    assert len(model.data_preprocessor.mean) == channels


@pytest.mark.parametrize("counts", [{"in_channels": 0}, {"num_classes": 0}, {"num_classes": -1}])
def test_counts_below_one_are_refused(counts):
    ((key, count),) = counts.items()
    with raises_message(ValueError, where=f"get_model: {key}={count}", todo=1):
        mmseg_ext.get_model(DEFAULT, **counts)


def test_a_config_that_tests_nothing_is_named():
    config = Config.fromfile(SHAPES)
    config.test_dataloader = None
    with raises_message(LaunchError, "test_dataloader", where=config.filename, todo="classes"):
        mmseg_ext.get_model(config, device="meta")


def test_a_checkpoint_in_the_place_of_a_config_is_named(tmp_path):
    torch.save({}, tmp_path / "iter_6.pth")
    for name in ("iter_6.pth", "iter_7.pth"):
        with raises_message(LaunchError, f"{tmp_path / name}:", todo="config"):
            mmseg_ext.Predictor(tmp_path / name)


def test_the_number_of_classes_of_all_heads(tmp_path):
    """Of several auxiliary heads, and of losses, whose class weights stay only if they fit."""
    config, file = Config.fromfile(SHAPES), tmp_path / "weights.pth"
    losses = [dict(type="CrossEntropyLoss", class_weight=[1.0] * n) for n in (6, 3)]
    config.model.decode_head.loss_decode = losses
    head = dict(type="FCNHead", in_channels=4, channels=4, num_classes=6)
    edges = dict(head, num_classes=2)  # of another number of classes, which stay
    config.model.auxiliary_head = [head, {**head, "loss_decode": dict(losses[0])}, edges]
    torch.save({"state_dict": mmseg_ext.get_model(Config.fromfile(SHAPES)).state_dict()}, file)
    with pytest.warns(UserWarning, match="conv_seg"):
        model = mmseg_ext.get_model(config, weights=file, num_classes=3)
    heads = [model.decode_head, *model.auxiliary_head]
    assert [head.conv_seg.out_channels for head in heads] == [3, 3, 3, 2]
    assert [loss.class_weight for loss in model.decode_head.loss_decode] == [None, [1.0] * 3]
    assert model.auxiliary_head[1].loss_decode.class_weight is None
    assert len(model.dataset_meta["classes"]) == 3
    assert mmseg_ext.get_model("ea_r101_voc_45k", device="meta", num_classes=5).num_classes == 5


def test_weights_that_do_not_fit_are_refused(tmp_path):
    config, file = Config.fromfile(SHAPES), tmp_path / "weights.pth"
    config.model.auxiliary_head = dict(type="FCNHead", in_channels=4, channels=4, num_classes=6)
    state = mmseg_ext.get_model(config).state_dict()
    without_auxiliary = {k: v for k, v in state.items() if not k.startswith("auxiliary_head")}
    for saved in (without_auxiliary, state):
        torch.save({"state_dict": saved}, file)
        loaded = mmseg_ext.get_model(config, weights=file).state_dict()
        assert all(torch.equal(loaded[k], v) for k, v in saved.items())
    loaded = mmseg_ext.get_model(SHAPES, weights=file).state_dict()
    assert loaded.keys() == without_auxiliary.keys() < state.keys()
    name = "decode_head.conv_seg.bias"
    for changed in (
        {k: v for k, v in state.items() if k != name},
        {**state, name: torch.zeros(2)},
        {**state, name + "es": torch.zeros(2)},
        {**state, name: torch.full_like(state[name], torch.nan)},
    ):
        torch.save(changed, file)
        with pytest.raises(CheckpointError, match=name):
            mmseg_ext.get_model(SHAPES, weights=file)


def test_classes_and_colors_of_a_file(tmp_path):
    state, file = mmseg_ext.get_model(SHAPES).state_dict(), tmp_path / "weights.pth"

    def found(**meta):
        torch.save({"state_dict": state, "meta": {"dataset_meta": meta}}, file)
        return mmseg_ext.get_model(SHAPES, weights=file).dataset_meta

    palette = [[i, 2, 3] for i in range(6)]
    given = found(classes=tuple("abcdef"), palette=palette)
    assert given == {"classes": [*"abcdef"], "palette": palette}
    colored = found(classes=list("abcdef"))
    assert "".join(colored["classes"]) == "abcdef" and len(set(map(tuple, colored["palette"]))) == 6


@pytest.mark.parametrize("form", ["0.x", "1.x"])
def test_names_of_a_file_that_do_not_fit_the_model(form, tmp_path, recwarn):
    """Then the names are the config's, and a warning names the file or the config."""
    config, file = Config.fromfile(SHAPES), tmp_path / "weights.pth"
    state = mmseg_ext.get_model(config).state_dict()
    own = tuple(mmseg_ext.get_model(config).dataset_meta["classes"])

    def found(classes, palette, **changes):
        meta = {"dataset_meta": {"classes": classes, "palette": palette}}
        if form == "0.x":
            meta = {"CLASSES": classes, "PALETTE": palette}
        torch.save({"state_dict": state, "meta": meta}, file)
        return mmseg_ext.get_model(config, weights=file, **changes).dataset_meta

    palette = [[i, 2, 3] for i in range(6)]
    assert found(tuple("abcdef"), palette) == {"classes": [*"abcdef"], "palette": palette}
    assert not recwarn
    with warns_message(UserWarning, 6, "palette", where=file):
        colored = found(tuple("abcdef"), palette[:5])
    assert "".join(colored["classes"]) == "abcdef" and len(colored["palette"]) == 6
    with warns_message(UserWarning, 2, 6, where=file) as warned:
        assert tuple(found(("a", "b"), palette[:2])["classes"]) == own
    assert len(warned) == 1 and warned[0].filename == __file__
    config.test_dataloader.dataset = dict(type="BaseSegDataset", metainfo=dict(classes="ab"))
    with warns_message(UserWarning, 2, 6, where=SHAPES):
        assert found((), None)["classes"] == tuple(f"class_{i}" for i in range(6))
    with pytest.warns(UserWarning, match="conv_seg") as warned:
        assert len(found(tuple("abcdef"), palette, num_classes=3)["classes"]) == 3
    assert len(warned) == 1  # as the caller asked for it


def test_classes_without_the_data():
    """As building the dataset gives them: a subset of METAINFO takes its colors along."""
    config = Config.fromfile(SHAPES)

    def found(classes: int = 2, **dataset) -> dict:
        config.test_dataloader.dataset = dataset
        return mmseg_ext.get_model(config, device="meta", num_classes=classes).dataset_meta

    stock = {"type": "PascalVOCDataset", "ann_file": "nowhere.txt"}
    assert "aeroplane" in found(21, **stock)["classes"]
    part = found(**stock, metainfo={"classes": ["cat", "bird"]})
    assert part == {"classes": ("cat", "bird"), "palette": [[64, 0, 0], [128, 128, 0]]}
    assert found(type="BaseSegDataset", metainfo={"classes": "ab"})["classes"] == ("a", "b")
    with raises_message(ValueError, "CheckedDataset", "classes"):
        found(type="RepeatDataset", dataset={"type": "CheckedDataset"})
    with raises_message(ValueError, "'Nothing'"):
        found(type="Nothing")


def test_names_with_weights(monkeypatch, tmp_path):
    """A clone has weights for non-commercial use, an installation does not."""
    file = tmp_path / "ea_lite0_fpn_camvid.pth"
    monkeypatch.setitem(models.PRETRAINED, CAMVID_NAME, file)
    assert mmseg_ext.list_models(pretrained=True) == [DEFAULT, FIRST_NAME]
    with raises_message(ValueError, where=f"{CAMVID_NAME}: ", todo="weights=FILE"):
        mmseg_ext.get_model(CAMVID_NAME, pretrained=True)
    file.write_bytes(b"")
    assert models.pretrained_weights(CAMVID_NAME) == file
    assert mmseg_ext.list_models("ea_*", pretrained=True) == [CAMVID_NAME, DEFAULT, FIRST_NAME]


CARDS = {
    DEFAULT: ("Apache-2.0", 7_000_000),
    FIRST_NAME: ("Apache-2.0", 6_500_000),
    CAMVID_NAME: ("non-commercial", 7_000_000),
}


@pytest.mark.parametrize("name", CARDS)
def test_the_terms_and_the_size_of_a_file(name):
    license, size = CARDS[name]
    try:
        file = models.pretrained_weights(name)
    except ValueError:
        pytest.skip("an sdist has no weights for non-commercial use")
    assert file.stat().st_size <= size
    content = torch.load(file, weights_only=True)
    assert {value.dtype for value in content["state_dict"].values()} == {torch.float16}
    about = content["meta"]
    assert about["config"] == f"{name}.py" and license in about["license"]


def test_mmsegmentation_shows_the_published_classes():
    config = str(CONFIGS / f"{DEFAULT}.py")
    file = str(models.pretrained_weights(DEFAULT))
    image = np.random.RandomState(0).randint(0, 256, (96, 96, 3), dtype=np.uint8)
    inferencer = MMSegInferencer(config, weights=file, device="cpu")
    for model in (inferencer.model, init_model(config, file, device="cpu")):
        assert [*model.dataset_meta["classes"]] == [*NUCLEI["classes"]]
        assert [*map(list, model.dataset_meta["palette"])] == [*map(list, NUCLEI["palette"])]
    shown = inferencer(image, return_vis=True, opacity=1.0, with_labels=False)
    assert (shown["visualization"] == np.array(NUCLEI["palette"])[shown["predictions"]]).all()
    labels = inference_model(model, image).pred_sem_seg.data[0].numpy()
    assert (shown["predictions"] == labels).all()

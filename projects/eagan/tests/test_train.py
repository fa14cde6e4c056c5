"""Short training runs: exact resume, recognized classes, and the Frechet distance."""

import pytest
import torch
from PIL import Image
from torchmetrics.image.fid import FrechetInceptionDistance

from projects import runs
from projects.eagan import evaluate
from projects.eagan.classifier import Classifier, frechet_distance
from projects.eagan.data import make_shapes
from projects.eagan.recipes import read
from projects.eagan.train import main, train
from tests.messages import raises_message


@pytest.fixture(scope="module")
def shapes():
    return make_shapes(64, seed=0), make_shapes(64, seed=1)


def networks(folder) -> dict[str, torch.Tensor]:
    parts = runs.load(folder)["parts"]
    return {
        f"{part}.{name}": value
        for part in ("generator", "discriminator")
        for name, value in parts[part].items()
    }


def test_resuming_changes_nothing(tmp_path, shapes, monkeypatch, capsys):
    """The run is interrupted in the middle of the second epoch; evaluation writes pictures."""
    train("shapes", *shapes, tmp_path / "whole", steps=5, seed=1)
    save = runs.Run.save

    def save_and_stop(run: runs.Run) -> None:
        save(run)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(runs.Run, "save", save_and_stop)
        train("shapes", *shapes, tmp_path / "cut", steps=5, seed=1, save_every=3)
    assert runs.load(tmp_path / "cut")["position"] == 3
    torch.manual_seed(99)
    train("shapes", *shapes, tmp_path / "cut", steps=5, seed=1, resume=True)
    whole, cut = networks(tmp_path / "whole"), networks(tmp_path / "cut")
    assert [name for name in whole if not torch.equal(whole[name], cut[name])] == []

    evaluate.main([str(tmp_path / "cut"), "--samples", "50"])
    assert "distance" in capsys.readouterr().out
    assert len(list((tmp_path / "cut/generated").glob("*.png"))) == 50
    with Image.open(tmp_path / "cut/real/01999.png") as picture:
        assert (picture.mode, picture.size) == ("RGB", (16, 16))


def test_folders_are_not_mixed_up(tmp_path, shapes):
    with raises_message(ValueError, tmp_path, "checkpoint.pth"):
        train("shapes", *shapes, tmp_path, steps=1, resume=True)
    train("shapes", *shapes, tmp_path, steps=1)
    with raises_message(ValueError, tmp_path, "--resume", "--work-dir"):
        train("shapes", *shapes, tmp_path, steps=1)
    with raises_message(ValueError, "attention", "'external'", "'self'"):
        train("shapes", *shapes, tmp_path, attention="self", steps=1, resume=True)
    checkpoint = tmp_path / "checkpoint.pth"
    checkpoint.write_bytes(checkpoint.read_bytes()[:5000])
    with pytest.raises(SystemExit, match=r"checkpoint\.pth"):
        main(["--data", "shapes", "--work-dir", str(tmp_path), "--steps", "1", "--resume"])


@pytest.mark.long
def test_a_short_training_reaches_its_floor(tmp_path):
    """A fifth of the steps; chance is a tenth."""
    log = train("shapes", *read("shapes", None), tmp_path, steps=160, judged_after=(0.125, 1))
    first, last = log[0], log[-1]
    assert last["distance"] < 0.7 * first["distance"]
    assert last["recognised"] > 0.25


def test_distances_that_are_known():
    """Moved by one in each of 20 features, of fewer samples than features; then scaled by two."""
    features = torch.randn(5, 20)
    assert frechet_distance(features, features + 1) == pytest.approx(20, rel=1e-6)
    centred = features - features.mean(0)
    variance = centred.double().T.cov().trace().item()
    assert frechet_distance(centred, 2 * centred) == pytest.approx(variance, rel=1e-6)


def test_torchmetrics_finds_the_same_distance():
    classifier = Classifier(10).eval()
    real, generated = make_shapes(200, seed=0).images, make_shapes(150, seed=1).images // 2
    metric = FrechetInceptionDistance(feature=classifier)
    with torch.no_grad():
        metric.update(real, real=True)
        metric.update(generated, real=False)
    ours = frechet_distance(classifier.features(real), classifier.features(generated))
    assert ours == pytest.approx(metric.compute().item(), rel=1e-4)

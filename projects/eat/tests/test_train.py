"""Measures on cases that are known, exact resume, and a short training."""

import pytest
import torch

from projects import runs
from projects.eat import evaluate
from projects.eat.data import Clouds
from projects.eat.evaluate import class_means, part_iou
from projects.eat.recipes import read
from projects.eat.solids import make_solids
from projects.eat.train import main, train


@pytest.fixture(scope="module")
def solids():
    return Clouds(*make_solids(64, 256, seed=0)), Clouds(*make_solids(16, 256, seed=1))


def test_part_iou_of_known_predictions():
    of_class = [[0, 1], [2, 3, 4]]
    true = torch.tensor([[0, 0, 1, 1], [2, 2, 2, 2]])
    said = torch.tensor([[0, 1, 1, 1], [2, 2, 2, 9]])
    # Cloud 0: part 0 1/2, part 1 2/3. Cloud 1: part 2 3/4, parts 3 and 4 neither there nor said.
    found = part_iou(said, true, torch.tensor([0, 1]), of_class)
    torch.testing.assert_close(found, torch.tensor([(1 / 2 + 2 / 3) / 2, (3 / 4 + 1 + 1) / 3]))


def test_means_over_classes_weigh_classes_alike():
    found = class_means(torch.tensor([1.0, 0, 0, 1]), torch.tensor([7, 7, 7, 2]))
    torch.testing.assert_close(found, torch.tensor([1, 1 / 3]))


@pytest.mark.parametrize("data", ["solids", "solid-parts"])
def test_resuming_changes_nothing(tmp_path, solids, data):
    """Dropout, augmentation, order, optimizer and learning rate go on where they were."""
    train(data, *solids, tmp_path / "whole", epochs=3, seed=1)
    train(data, *solids, tmp_path / "cut", epochs=3, seed=1, stop_after=1)
    torch.manual_seed(99)
    train(data, *solids, tmp_path / "cut", epochs=3, seed=1, resume=True)
    whole, cut = (runs.load(tmp_path / name)["parts"]["network"] for name in ("whole", "cut"))
    assert [name for name in whole if not torch.equal(whole[name], cut[name])] == []


def test_folders_are_not_mixed_up(tmp_path, solids):
    folder = tmp_path / "run"
    with pytest.raises(ValueError, match="epochs must be positive, got 0"):
        train("solids", *solids, folder, epochs=0)
    train("solids", *solids, folder, epochs=1)
    with pytest.raises(ValueError, match="go on with --resume"):
        train("solids", *solids, folder, epochs=1)
    with pytest.raises(ValueError, match="another run: attention 'external', not 'self'"):
        train("solids", *solids, folder, attention="self", epochs=1, resume=True)
    with pytest.raises(SystemExit, match=r"holds no checkpoint\.pth"):
        evaluate.main([str(tmp_path)])
    few = Clouds(solids[0].points[:, :200], solids[0].labels)
    with pytest.raises(ValueError, match="clouds have 200 points, 256 are needed"):
        train("solids", few, solids[1], tmp_path / "few")
    checkpoint = folder / "checkpoint.pth"
    checkpoint.write_bytes(checkpoint.read_bytes()[:5000])
    with pytest.raises(SystemExit, match=r"checkpoint\.pth: is truncated"):
        main(["--data", "solids", "--work-dir", str(folder), "--epochs", "1", "--resume"])


@pytest.mark.slow
def test_a_short_training_reaches_its_floor(tmp_path):
    """One epoch instead of six; chance is an eighth."""
    log = train("solids", *read("solids", None), tmp_path, epochs=1)
    assert log[-1]["accuracy"] > 0.5


def test_evaluation_draws_the_parts(tmp_path, solids, capsys):
    folder, figure = tmp_path / "run", tmp_path / "parts.png"
    train("solid-parts", *solids, folder, epochs=1)
    evaluate.main([str(folder), "--figure", str(figure)])
    assert "part mIoU" in capsys.readouterr().out
    assert figure.read_bytes().startswith(b"\x89PNG")

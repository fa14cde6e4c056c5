"""Measures on known cases, exact resume, and a short training run."""

from dataclasses import replace

import pytest
import torch

from projects import runs
from projects.eat import evaluate
from projects.eat.data import Clouds
from projects.eat.evaluate import part_iou
from projects.eat.recipes import RECIPES, read
from projects.eat.solids import make_solids
from projects.eat.train import train


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


def test_resuming_changes_nothing(tmp_path, solids, monkeypatch):
    """Dropout, augmentation, order, optimizer and learning rate continue unchanged."""
    train("solids", *solids, tmp_path / "whole", epochs=2, seed=1)
    save = runs.Run.save

    def save_and_stop(run: runs.Run) -> None:
        save(run)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(runs.Run, "save", save_and_stop)
        train("solids", *solids, tmp_path / "cut", epochs=2, seed=1)
    torch.manual_seed(99)
    train("solids", *solids, tmp_path / "cut", epochs=2, seed=1, resume=True)
    whole, cut = (runs.load(tmp_path / name)["parts"]["network"] for name in ("whole", "cut"))
    assert [name for name in whole if not torch.equal(whole[name], cut[name])] == []


@pytest.mark.slow
def test_a_short_training_reaches_its_floor(tmp_path, monkeypatch):
    """One epoch instead of six, with fewer points; chance is an eighth."""
    recipe = RECIPES["solids"]
    network = {**recipe.network, "samples": (32, 16)}
    monkeypatch.setitem(RECIPES, "solids", replace(recipe, points=128, network=network))
    log = train("solids", *read("solids", None), tmp_path, epochs=1)
    assert log[-1]["accuracy"] > 0.5


def test_evaluation_prints_the_measure(tmp_path, solids, capsys):
    train("solid-parts", *solids, tmp_path, epochs=1)
    evaluate.main([str(tmp_path)])
    assert "part mIoU" in capsys.readouterr().out

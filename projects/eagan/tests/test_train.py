"""Short trainings: exact resume, what a folder must hold, and pictures that are recognised."""

import pytest
import torch

from projects import runs
from projects.eagan import evaluate
from projects.eagan.data import make_shapes
from projects.eagan.recipes import read
from projects.eagan.train import main, train


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


def test_resuming_changes_nothing(tmp_path, shapes):
    """Cut in the middle of the second epoch, between two steps."""
    train("shapes", *shapes, tmp_path / "whole", steps=5, seed=1)
    train("shapes", *shapes, tmp_path / "cut", steps=5, seed=1, stop_after=3)
    torch.manual_seed(99)
    train("shapes", *shapes, tmp_path / "cut", steps=5, seed=1, resume=True)
    whole, cut = networks(tmp_path / "whole"), networks(tmp_path / "cut")
    assert [name for name in whole if not torch.equal(whole[name], cut[name])] == []


def test_folders_are_not_mixed_up(tmp_path, shapes):
    with pytest.raises(ValueError, match=r"holds no checkpoint\.pth"):
        train("shapes", *shapes, tmp_path, steps=1, resume=True)
    with pytest.raises(ValueError, match="steps must be positive, got 0"):
        train("shapes", *shapes, tmp_path, steps=0)
    train("shapes", *shapes, tmp_path, steps=1)
    with pytest.raises(ValueError, match="go on with --resume, or name another --work-dir"):
        train("shapes", *shapes, tmp_path, steps=1)
    with pytest.raises(ValueError, match="another run: attention 'external', not 'self'"):
        train("shapes", *shapes, tmp_path, attention="self", steps=1, resume=True)
    checkpoint = tmp_path / "checkpoint.pth"
    checkpoint.write_bytes(checkpoint.read_bytes()[:5000])
    with pytest.raises(SystemExit, match=r"checkpoint\.pth: is truncated"):
        main(["--data", "shapes", "--work-dir", str(tmp_path), "--steps", "1", "--resume"])


@pytest.mark.slow
def test_a_short_training_reaches_its_floor(tmp_path):
    """A quarter of the steps; chance is a tenth."""
    log = train("shapes", *read("shapes", None), tmp_path, steps=200, judged_after=(0.1, 1))
    first, last = log[0], log[-1]
    assert last["distance"] < 0.7 * first["distance"]
    assert last["recognised"] > 0.25


def test_evaluation_of_a_run(tmp_path, shapes, capsys):
    folder, figure = tmp_path / "run", tmp_path / "samples.png"
    train("shapes", *shapes, folder, steps=1)
    command = [str(folder), "--samples", "50", "--figure", str(figure)]
    evaluate.main(command)
    assert "distance" in capsys.readouterr().out
    assert figure.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match="--statistics is of Inception features"):
        evaluate.main([*command, "--statistics", "real.npz"])
    with pytest.raises(SystemExit, match=r"--inception-weights none\.pth: no such file"):
        evaluate.main([*command, "--inception-weights", "none.pth"])
    other = tmp_path / "other.pth"
    torch.save({"weight": torch.zeros(1)}, other)
    with pytest.raises(SystemExit, match="not pytorch-fid's Inception weights"):
        evaluate.main([*command, "--inception-weights", str(other)])

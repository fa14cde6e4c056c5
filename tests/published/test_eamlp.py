"""EAMLP checkpoints: both forms of each file, and what is refused."""

import pytest
import torch

from mmseg_ext.backbones.eamlp import EAMLP, sinusoidal_positions
from mmseg_ext.checkpoint import convert_official


@pytest.fixture(scope="module")
def published() -> dict[str, torch.Tensor]:
    """The names and shapes of a published EAMLP-7 for 384x384 without its `pos_embed`."""
    return EAMLP(arch="7", img_size=384, num_classes=1000).state_dict()


@pytest.mark.parametrize("drift", [None, 0, 1e-4])
@pytest.mark.parametrize("classifier", [False, True])
def test_every_form(published, drift, classifier):
    """An exponential moving average in float32 moves the constant positions by about 1e-4."""
    state_dict = dict(published)
    if drift is not None:
        state_dict["pos_embed"] = sinusoidal_positions(577, 256) + drift
    converted = convert_official("eamlp", state_dict, classifier=classifier)
    model = EAMLP(arch="7", img_size=384, num_classes=1000 if classifier else None)
    model.load_state_dict(converted, strict=True)
    assert ("head.weight" in converted) == classifier
    assert all(torch.equal(value, published[key]) for key, value in converted.items())


def test_other_positions_are_refused(published):
    learned = sinusoidal_positions(577, 256)
    learned[0, 100, 3] += 0.01
    with pytest.raises(ValueError, match=r"pos_embed: .*0\.01"):
        convert_official("eamlp", {**published, "pos_embed": learned})

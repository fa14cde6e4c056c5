"""The context probe: fields of known convolutions, the far-cue set, and what training shows."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from mmseg_ext.commands.context_probe import main
from mmseg_ext.inspection.context_probe import (
    BLOCKS,
    IGNORED,
    SIZE,
    Probe,
    effective_receptive_field,
    far_cue_batch,
    probe_network,
    run_probe,
    share_beyond,
)
from mmseg_ext.inspection.context_report import draw_probe, probe_table


def convolution(kernel: torch.Tensor) -> nn.Conv2d:
    conv = nn.Conv2d(1, 1, kernel.shape[-1], padding=kernel.shape[-1] // 2, bias=False)
    conv.weight.data[:] = kernel
    return conv


def test_field_of_convolutions_is_their_kernel():
    kernel = torch.tensor([[1.0, 2, 1], [2, -4, 2], [1, 2, 1]])
    found = effective_receptive_field(convolution(kernel), torch.randn(3, 1, 9, 9))
    expected = torch.zeros(9, 9)
    expected[3:6, 3:6] = kernel.abs() / kernel.abs().sum()
    torch.testing.assert_close(found, expected)
    # Two box filters: a pyramid; the ring two pixels away holds 16 of 81 units' places.
    box = convolution(torch.ones(3, 3))
    found = effective_receptive_field(nn.Sequential(box, box), torch.randn(2, 1, 9, 9))
    ramp = torch.tensor([1.0, 2, 3, 2, 1])
    torch.testing.assert_close(found[2:7, 2:7], ramp[:, None] * ramp / 81)


def test_share_beyond_counts_by_distance():
    field_map = torch.zeros(9, 9)
    field_map[4, 4], field_map[4, 8], field_map[1, 0] = 0.5, 0.3, 0.2  # at 0, 4 and 5 pixels
    assert share_beyond(field_map, 3.9) == pytest.approx(0.5)
    assert share_beyond(field_map, 4.5) == pytest.approx(0.2)
    assert share_beyond(field_map, 5) == 0


def test_field_needs_a_gradient():
    class Blind(nn.Module):
        def forward(self, x):
            return x * 0

    with pytest.raises(ValueError, match="gradient"):
        effective_receptive_field(Blind(), torch.randn(1, 1, 4, 4))


@pytest.mark.parametrize("distance", [12, 48])
def test_far_cue_set_is_what_it_says(distance):
    """One white target a label marks, one cue of the class's colour at the distance asked for."""
    images, labels = far_cue_batch(40, distance, np.random.default_rng(0))
    assert images.shape == (40, 3, SIZE, SIZE) and set(labels.unique().tolist()) == {0, 1, IGNORED}
    for image, label in zip(images, labels, strict=True):
        kind = int(label[label != IGNORED][0])
        on_target = label == kind
        assert on_target.sum() == 64 and (image[:, on_target] == 2).all()
        exact = (image == 2) | (image == 0)
        for colour in (0, 1):
            cue = exact.all(0) & (image[colour] == 2) & (image.sum(0) == 2)
            assert (int(cue.sum()) == 64) == (colour == kind)
            if colour == kind:
                centres = [torch.nonzero(m).float().mean(0) for m in (cue, on_target)]
                assert float((centres[0] - centres[1]).norm()) == pytest.approx(distance, abs=0.8)


def test_classes_look_the_same_and_bad_distances_are_refused():
    images, labels = far_cue_batch(30, None, np.random.default_rng(1), centred=False)
    means = [images.permute(0, 2, 3, 1)[labels == kind].mean(0) for kind in (0, 1)]
    torch.testing.assert_close(*means)
    with pytest.raises(ValueError, match="distance"):
        far_cue_batch(1, 60, np.random.default_rng(0))
    with pytest.raises(ValueError, match="centred"):
        far_cue_batch(1, 30, np.random.default_rng(0), centred=True)


def reach(name: str) -> torch.Tensor:
    torch.manual_seed(0)
    model = probe_network(name, 8).double().eval()
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_var.fill_(0.25)
    for gain in (p for n, p in model.named_parameters() if n.endswith("gamma.scale")):
        nn.init.ones_(gain)
    images = torch.randn(4, 3, SIZE, SIZE, dtype=torch.float64)
    return effective_receptive_field(model, images)


def test_convolutions_end_and_blocks_of_context_do_not():
    """FCN sees 23 pixels at most from the middle; so does EA without a softmax over positions."""
    for name in BLOCKS:
        far = reach(name)[0, 0] + reach(name)[-1, -1]
        if name in ("FCN", "EA, softmax over slots"):
            assert far == 0 and share_beyond(reach(name), 34) == 0, name
        else:
            assert far > 0, name


def test_double_normalisation_alone_tells_ea_of_a_far_cue():
    """The same network learns the near cue either way, the far one through the softmax only."""
    both = {
        name: run_probe(name, seed=0, steps=160, batch=8, channels=16)
        for name in ("EA", "EA, softmax over slots")
    }
    assert both["EA"].accuracy[48] > 0.9
    assert 0.35 < both["EA, softmax over slots"].accuracy[48] < 0.65


def test_table_and_plot_of_probes(tmp_path):
    def probe(name: str, seed: int, far: float) -> Probe:
        field_map = torch.full((8, 8), 1 / 64)
        accuracy = {12: 1.0, 24: 0.9, 36: 0.7, 48: far}
        return Probe(name, seed, 1234, accuracy, (0.125, 0.25), field_map)

    probes = [probe("EA", 0, 0.5), probe("EA", 1, 0.7), probe("FCN", 0, 0.4)]
    lines = probe_table(probes).splitlines()
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells == ["EA", "1,234", "100.0 (100.0)", "90.0 (90.0)", "70.0 (70.0)"] + [
        "60.0 (50.0)",
        "12.5 %",
        "25.0 %",
    ]
    assert len(lines) == 4
    draw_probe(probes, tmp_path / "probe.png")
    with Image.open(tmp_path / "probe.png") as picture:
        assert np.asarray(picture.convert("RGB")).std() > 10


def test_command_trains_what_it_is_asked_for(tmp_path, capsys):
    path = tmp_path / "probe.json"
    options = ["--seeds", "1", "--steps", "2", "--channels", "8", "--json", str(path)]
    assert main(["--only", "FCN", *options]) == 0
    (entry,) = json.loads(path.read_text())
    assert entry["name"] == "FCN" and set(entry["accuracy"]) == {"12", "24", "36", "48"}
    assert "FCN, seed 0" in capsys.readouterr().out
    assert main(["--only", "XYZ"]) == 1
    assert "lambda" in capsys.readouterr().err

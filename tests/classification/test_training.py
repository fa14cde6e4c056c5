"""A small RMT classifier learns the five forms from crops of the embedded scenes."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, interpolate

from mmseg_ext.backbones import RMT
from mmseg_ext.datasets.shapes import FORMS, OBJECT, render_objects
from tests.models import NARROW_RMT

ARCH = {
    **NARROW_RMT,
    "embed_dims": (24, 32, 48, 64),
    "num_heads": (2, 2, 3, 4),
    "decomposed": (True, True, False, False),
    "drop_path_rate": 0.0,
}
SIDE = 48


def crops(first: int, scenes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (N, 3, SIDE, SIDE) of the objects that are seen best, and their classes (N,)."""
    images, classes = [], []
    for index in range(first, first + scenes):
        image, objects = render_objects(0, index)
        for label in np.unique(objects[objects > 0]):
            rows, columns = np.nonzero(objects == label)
            if len(rows) < 700:  # of some 1800
                continue
            part = image[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
            part = torch.from_numpy(part).permute(2, 0, 1)[None].float() / 64 - 2
            images.append(interpolate(part, (SIDE, SIDE), mode="bilinear"))
            classes.append(label % OBJECT - 1)
    return torch.cat(images), torch.tensor(classes).long()


@pytest.mark.slow
def test_rmt_tells_the_forms_apart():
    """Their colours and patterns are no help: chance is 20 %."""
    images, classes = crops(0, 220)
    unseen, truth = crops(1_000_000, 60)
    model = RMT(arch=ARCH, num_classes=len(FORMS))
    epochs, batch = 6, 32
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    steps = epochs * (len(images) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(epochs):
        order = torch.randperm(len(images))[: len(images) // batch * batch].view(-1, batch)
        for chosen in order:
            flipped = images[chosen].flip(3) if torch.rand(()) < 0.5 else images[chosen]
            optimizer.zero_grad()
            cross_entropy(model(flipped), classes[chosen]).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        right = (model.eval()(unseen).argmax(1) == truth).float().mean()
    assert len(truth) > 100 and right > 0.8, f"{right:.3f} of {len(truth)}"

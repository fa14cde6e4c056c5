"""Solids against their formulas, and HDF5 folders like the official ones, also damaged."""

import numpy as np
import pytest
import torch

from projects.eat.data import augmented, read_modelnet40, read_shapenet_part
from projects.eat.recipes import read
from projects.eat.solids import PARTS, SOLIDS, capsule, cylinder, make_solids, torus
from projects.eat.train import main
from tests.messages import raises_message


def test_points_lie_on_their_solids():
    points, part = cylinder(20, 50)
    radius, top = points[..., :2].norm(dim=2), points[..., 2].abs().amax(1, keepdim=True)
    torch.testing.assert_close(radius[part == 0], torch.ones(int((part == 0).sum())))
    assert torch.equal(points[..., 2].abs()[part == 1], top.expand(-1, 50)[part == 1])
    points, part = torus(20, 50)
    radius = points[..., :2].norm(dim=2)
    thick = ((radius - 1).square() + points[..., 2].square()).sqrt()
    torch.testing.assert_close(thick, thick[:, :1].expand_as(thick), atol=1e-4, rtol=1e-4)
    assert torch.equal(part == 1, radius < 1)
    points, part = capsule(20, 50)
    body = points[..., :2].norm(dim=2)[part == 0]
    torch.testing.assert_close(body, torch.ones_like(body))


def test_solids_are_the_same_for_a_seed_and_parts_belong_to_their_solids():
    points, labels, parts = make_solids(64, 40, seed=3)
    assert torch.equal(points, make_solids(64, 40, seed=3)[0])
    assert not torch.equal(points, make_solids(64, 40, seed=4)[0])
    assert labels.bincount().tolist() == len(SOLIDS) * [8]
    assert [part for parts_of in PARTS for part in parts_of] == list(range(14))
    for solid, count in enumerate(count for _, count in SOLIDS.values()):
        assert len(PARTS[solid]) == count
        assert set(parts[labels == solid].flatten().tolist()) == set(PARTS[solid])


def test_augmentation_scales_moves_and_drops():
    points = torch.rand(200, 30, 3) + 1
    moved = augmented(points, drop=0.0)
    change = (moved[:, 1] - moved[:, 0]) / (points[:, 1] - points[:, 0])  # the scale alone
    assert change.min() > 2 / 3 - 1e-3
    assert change.max() < 3 / 2 + 1e-3
    shift = moved[:, 0] - change * points[:, 0]
    assert shift.abs().max() < 0.2 + 1e-2
    dropped = augmented(points, drop=0.8)
    share = (dropped[:, 1:] == dropped[:, :1]).all(2).float().mean()
    assert share == pytest.approx(0.4, abs=0.05)  # uniform between none and 0.8


def write(folder, stem: str, **arrays) -> None:
    h5py = pytest.importorskip("h5py")
    folder.mkdir(exist_ok=True)
    with h5py.File(folder / f"ply_data_{stem}.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array


def clouds(seed: int, count: int = 3, label: int = 5) -> dict:
    data = np.random.RandomState(seed).rand(count, 2048, 3).astype(np.float32)
    return {"data": data, "label": np.full((count, 1), label, np.uint8)}


def test_modelnet40(tmp_path):
    for i in range(5):
        write(tmp_path, f"train{i}", **clouds(i, label=i))
    for i in range(2):
        write(tmp_path, f"test{i}", **clouds(9, label=39))
    train, test = read_modelnet40(tmp_path)
    assert train.points.shape == (15, 2048, 3)
    assert train.labels.tolist() == sorted(3 * list(range(5)))
    np.testing.assert_array_equal(train.points[6], clouds(2)["data"][0])
    assert test.labels.tolist() == 6 * [39]
    assert test.parts is None
    with raises_message(ValueError, "modelnet40_ply_hdf5_2048", where=f"{tmp_path / 'none'}: "):
        read("modelnet40", tmp_path / "none")
    path = tmp_path / "ply_data_train3.h5"
    path.write_bytes(path.read_bytes()[:3000])
    with raises_message(ValueError, "modelnet40_ply_hdf5_2048", where=f"{tmp_path}: "):
        read("modelnet40", tmp_path)


def test_shapenet_part(tmp_path):
    def with_parts(label: int, part: int) -> dict:
        return {**clouds(label, label=label), "pid": np.full((3, 2048), part, np.uint8)}

    for stem in (*(f"train{i}" for i in range(6)), "val0", "test0", "test1"):
        write(tmp_path, stem, **with_parts(15, 49))
    train, test = read_shapenet_part(tmp_path)
    assert train.parts.shape == (21, 2048)
    assert test.parts.unique().tolist() == [49]


def test_the_command_says_what_is_missing():
    with raises_message(SystemExit, "modelnet40_ply_hdf5_2048", todo="--folder"):
        main(["--data", "modelnet40"])

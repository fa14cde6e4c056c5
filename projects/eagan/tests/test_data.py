"""Archives like the official ones, complete and damaged, and images drawn by code."""

import io
import tarfile
import zipfile

import numpy as np
import torch
from PIL import Image

from projects.eagan.data import (
    SHAPES,
    make_shapes,
    read_cifar10,
    read_tiny_imagenet,
    to_float,
    to_uint8,
)
from projects.eagan.recipes import read
from projects.eagan.train import main
from tests.messages import raises_message

BATCHES = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]


def write_cifar10(path, **contents: bytes) -> None:
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name in BATCHES:
            content = contents.get(name.removesuffix(".bin"))
            if content is None:
                continue
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def records(label: int, colour: tuple[int, int, int]) -> bytes:
    """Return a file in CIFAR-10's layout: the label, then the red, green and blue planes."""
    record = bytes([label]) + b"".join(bytes([value]) * 1024 for value in colour)
    return record * 10_000


def test_cifar10(tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    contents = {f"data_batch_{i}": records(i, (i, 0, 255)) for i in range(1, 6)}
    write_cifar10(path, **contents, test_batch=records(9, (1, 2, 3)))
    train, test = read_cifar10(path)
    assert train.images.shape == (50_000, 3, 32, 32)
    assert train.labels.bincount().tolist() == [0] + 5 * [10_000]
    assert train.images[20_000, :, 5, 5].tolist() == [3, 0, 255]
    assert test.images.shape == (10_000, 3, 32, 32)
    assert test.images[0, :, 0, 0].tolist() == [1, 2, 3]


def test_another_file_is_refused_by_name(tmp_path):
    path = tmp_path / "archive"
    for data in ("cifar10", "tiny-imagenet"):
        with raises_message(ValueError, where=f"{path}: "):
            read(data, path)
    noise = {name.removesuffix(".bin"): np.random.RandomState(0).bytes(30_730) for name in BATCHES}
    write_cifar10(path, **noise)
    path.write_bytes(path.read_bytes()[:20_000])
    with raises_message(ValueError, "cifar-10-binary.tar.gz", where=f"{path}: "):
        read("cifar10", path)
    with raises_message(ValueError, "tiny-imagenet-200.zip", where=f"{path}: "):
        read("tiny-imagenet", path)


def test_tiny_imagenet(tmp_path):
    def jpeg(value: int) -> bytes:
        file = io.BytesIO()
        Image.new("L", (64, 64), value).save(file, "JPEG")
        return file.getvalue()

    path = tmp_path / "tiny-imagenet-200.zip"
    wnids = [f"n{i:08}" for i in range(200)]
    root = "tiny-imagenet-200"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{root}/wnids.txt", "\n".join(wnids))
        for i, wnid in enumerate(wnids):
            archive.writestr(f"{root}/train/{wnid}/images/{wnid}_0.JPEG", jpeg(i))
        rows = [f"val_{i}.JPEG\t{wnids[-1 - i]}\t0\t0\t9\t9" for i in range(3)]
        archive.writestr(f"{root}/val/val_annotations.txt", "\n".join(rows))
        for i in range(3):
            archive.writestr(f"{root}/val/images/val_{i}.JPEG", jpeg(50 + i))
    train, val = read_tiny_imagenet(path)
    assert train.images.shape == (200, 3, 64, 64)
    assert train.labels.tolist() == list(range(200))
    levels = train.images.float().mean((1, 2, 3)) - torch.arange(200)
    assert levels.abs().max() < 1.5
    assert val.labels.tolist() == [199, 198, 197]


def test_the_command_says_what_is_missing():
    with raises_message(SystemExit, "cifar-10-binary.tar.gz", todo="--archive"):
        main(["--data", "cifar10"])


def test_shapes_are_the_same_for_a_seed_and_survive_the_range_of_the_generator():
    pictures = make_shapes(500, seed=3)
    assert torch.equal(pictures.images, make_shapes(500, seed=3).images)
    assert not torch.equal(pictures.images, make_shapes(500, seed=4).images)
    assert pictures.labels.bincount(minlength=len(SHAPES)).min() > 0
    assert torch.equal(to_uint8(to_float(pictures.images)), pictures.images)

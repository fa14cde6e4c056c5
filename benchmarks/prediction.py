"""Measure `Predictor`: bfloat16 next to float32, and batches of small images."""

import numpy as np
from PIL import Image

from benchmarks.tables import Settings, command, compare_times
from mmseg_ext import Predictor, get_model
from mmseg_ext.environment import configs_folder

TRAINED = "ea_lite0_fpn_camvid_1600"
PHOTO = configs_folder().parent / "weights" / "street.jpg"  # in a clone


def half_precision(settings: Settings):
    """Compare float32 and bfloat16: time, memory, and labels of trained weights."""
    rows = []
    photo = np.asarray(Image.open(PHOTO))
    for name, image in ((TRAINED, photo), ("ea_r101_voc_45k", photo[:256, :256])):
        trained = name == TRAINED
        model = get_model(name, pretrained=trained, device=settings.device)
        ways = {"float32": Predictor(model), "bfloat16": Predictor(model, amp=True)}
        runs = {way: lambda p=predictor, image=image: p(image) for way, predictor in ways.items()}
        labels = [predictor(image).labels for predictor in ways.values()]
        equal = f"{(labels[0] == labels[1]).mean():.2%}" if trained else ""
        results = compare_times(runs, settings.rounds, settings.device, settings.clock)
        for way, (ms, ratio, mib) in results.items():
            size = "x".join(map(str, image.shape[1::-1]))
            cells = [f"{ms:.0f}", f"{ratio:.2f}", f"{mib:.0f}", equal if way != "float32" else ""]
            rows.append([f"{name}, {size}", way, *cells])
    headings = ["model, image", "way", "ms", "time over the first", "peak MiB", "equal labels"]
    return headings, rows


def batches(settings: Settings):
    """Compare a loop with batches, for 64 small images."""
    model = get_model("ea_r18_shapes", device=settings.device)
    rows = []
    for side in (64, 128):
        images = [*np.random.RandomState(0).randint(0, 256, (64, side, side, 3), np.uint8)]
        runs = {}
        for size in (1, 8, 32):
            predictor = Predictor(model, batch_size=size)
            runs[size] = lambda p=predictor, images=images: p(images)
        results = compare_times(runs, settings.rounds, settings.device, settings.clock)
        for size, (ms, ratio, mib) in results.items():
            cells = [f"{ms / 64:.1f}", f"{ratio:.2f}", f"{mib:.0f}"]
            rows.append([f"ea_r18_shapes, {side}x{side}", str(size), *cells])
    return ["model, images", "batch size", "ms per image", "time over the first", "MiB"], rows


if __name__ == "__main__":
    command(__doc__, {"bfloat16": half_precision, "batches": batches})

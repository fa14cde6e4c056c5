"""Measure `Predictor` in bfloat16 next to float32."""

import numpy as np

from benchmarks.tables import command
from mmseg_ext import Predictor, get_model
from mmseg_ext.comparison.timing import compare_times

NAME = "ea_r101_voc_45k"


def bfloat16(rounds: int):
    """Compare the times and the memory of 256x256 pixels."""
    model = get_model(NAME)
    image = np.random.RandomState(0).randint(0, 256, (256, 256, 3), np.uint8)
    ways = {"float32": Predictor(model), "bfloat16": Predictor(model, amp=True)}
    runs = {way: lambda p=predictor: p(image) for way, predictor in ways.items()}
    results = compare_times(runs, rounds)
    rows = [[k, f"{r.ms:.0f}", f"{r.ratio:.2f}", f"{r.mib:.0f}"] for k, r in results.items()]
    return [NAME, "ms", "time over the first", "peak MiB"], rows


if __name__ == "__main__":
    command(__doc__, {"bfloat16": bfloat16})

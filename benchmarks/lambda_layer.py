"""The command line of `benchmarks/lambda_layer.py`."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from mmseg.registry import MODELS

from benchmarks import lambda_cost
from mmseg_ext import register_all_modules
from mmseg_ext.cost.cost_table import machine, markdown
from mmseg_ext.cost.devices import usable_device
from mmseg_ext.layers import LambdaLayer

LOCAL_CASES = ((64, 56), (128, 64))  # channels, side
GLOBAL_CASE = (64, 64)
RESNET_D8 = {
    "type": "ResNet",
    "depth": 50,
    "strides": (1, 2, 1, 1),
    "dilations": (1, 1, 2, 4),
    "norm_cfg": {"type": "BN"},
}


PARTS = ("counts", "local", "choice", "global", "memory", "throughput")


def _parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Time, memory, parameters and multiply-adds of the lambda layer and of "
        "LambdaResNet."
    )
    parser.add_argument(
        "parts", nargs="*", help=f"{', '.join(PARTS)}; without names all but the last"
    )
    parser.add_argument("--rounds", type=int, default=9, help="rounds in turns; medians are shown")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--json", type=Path, help="write the measured rows to this file")
    parser.add_argument("--figure", type=Path, help="draw the layers' times to this PNG")
    args = parser.parse_args(argv)
    for part in args.parts:
        if part not in PARTS:
            parser.error(f"unknown part {part!r}: choose from {', '.join(PARTS)}")
    args.parts = args.parts or list(PARTS[:-1])
    return args


def _measure_layers(args: argparse.Namespace) -> list[lambda_cost.LayerTiming]:
    options = {"device": args.device, "dtype": getattr(torch, args.dtype)}
    cases = []
    if "local" in args.parts:
        for channels, side in LOCAL_CASES:
            contenders = lambda_cost.local_contenders(LambdaLayer(channels))
            cases.append((f"local, {channels} x {side} x {side}", contenders, channels, side))
    if "global" in args.parts:
        channels, side = GLOBAL_CASE
        layer = LambdaLayer(channels, receptive_field=None, resolution=(side, side))
        contenders = lambda_cost.global_contenders(layer)
        cases.append((f"global, {channels} x {side} x {side}", contenders, channels, side))
    timings = []
    for case, contenders, channels, side in cases:
        for training in (False, True):
            shape = (args.batch, channels, side, side)
            timings += lambda_cost.measure_layer(
                case, contenders, shape, training, args.rounds, **options
            )
    return timings


def main(argv: Sequence[str] | None = None) -> int:
    args = _parse_args(argv)
    try:
        usable_device(args.device)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    register_all_modules()
    results: dict[str, object] = {"machine": machine(args.device), "dtype": args.dtype}
    print(results["machine"])
    if "counts" in args.parts:
        results["counts"] = lambda_cost.count_rows()
        print(markdown(lambda_cost.COUNT_HEADINGS, results["counts"]))
    timings = _measure_layers(args)
    if timings:
        results["layers"] = [timing._asdict() for timing in timings]
        print(markdown(lambda_cost.TIMING_HEADINGS, lambda_cost.timing_rows(timings)))
        if args.figure is not None:
            lambda_cost.draw_timings(timings, args.figure)
    if "choice" in args.parts:
        results["choice"] = lambda_cost.choice_rows(args.rounds, args.device)
        print(markdown(lambda_cost.CHOICE_HEADINGS, results["choice"]))
    if "memory" in args.parts:
        memory = lambda_cost.training_memory(512, 2, args.device, with_cp=True)
        results["training_mib"] = memory._asdict()
        print(
            "LambdaResNet-50, 2 x 3 x 512 x 512, training with with_cp: first step "
            f"{memory.first:,.0f} MiB above its start, {memory.process:,.0f} MiB the process in "
            f"all; second step {memory.second:,.0f} MiB above its start"
        )
    if "throughput" in args.parts:
        models = {
            "LambdaResNet-50": MODELS.build({"type": "LambdaResNet"}),
            "LambdaResNet-50, output stride 8": MODELS.build(
                {"type": "LambdaResNet", "output_stride": 8}
            ),
            "ResNet-50-d8": MODELS.build(RESNET_D8),
        }
        shape = (args.batch, 3, 512, 512)
        for training in (False, True):
            rates = lambda_cost.images_per_second(
                models, shape, training, args.rounds, args.device, getattr(torch, args.dtype)
            )
            mode = "training" if training else "inference"
            results[f"images_per_second_{mode}"] = rates
            rows = [[name, f"{rate:.2f}"] for name, rate in rates.items()]
            print(markdown([f"{mode}, 512 x 512", "images per second"], rows))
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

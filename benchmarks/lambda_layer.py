"""Print the tables of docs/lambda.md: lambda layers and LambdaResNet.

Multiply-adds follow the dense form of the paper: taps on zero padding count. The FLOPs of the paper
are twice these numbers (arXiv 2102.08602 as reproduced by third parties).
"""

import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.reference.lambda_layer import PlainLambdaLayer, conv3d, folded_conv2d, table
from benchmarks.tables import Settings, command, time_modules, timing_table
from mmseg_ext.backbones.lambda_resnet import LambdaResNet
from mmseg_ext.cost.multiply_adds import count_multiply_adds
from mmseg_ext.cost.timing import compare_times, inference_step, training_step
from mmseg_ext.layers import LambdaLayer
from mmseg_ext.layers._fourier_lambdas import fourier_lambdas
from mmseg_ext.layers.lambda_layer import apply_lambdas, crop_embeddings, direct_lambdas


def count_lambda_resnet(size: int = 224, **arguments) -> tuple[int, int]:
    """Return parameters and multiply-adds of a classifier LambdaResNet for `size` x `size`."""
    with torch.device("meta"):
        model = LambdaResNet(num_classes=1000, **arguments).eval()
        counted = count_multiply_adds(model, torch.empty(1, 3, size, size))
    return sum(p.numel() for p in model.parameters()), counted.all


def local(settings: Settings):
    """Compare our layer, the plain formulation, and our layer with only the 2-D convolution."""
    results = {}
    for channels, side in ((64, 56), (128, 64)):
        layer = LambdaLayer(channels)
        ways = {
            "ours": layer,
            "plain formulation (3-D convolution, einsum)": PlainLambdaLayer(layer, conv3d),
            "2-D convolution, values folded": PlainLambdaLayer(layer, folded_conv2d, einsum=False),
        }
        x = torch.randn(1, channels, side, side)
        results |= time_modules(f"local, {channels} x {side} x {side}", ways, x, settings)
    return timing_table(results)


def global_context(settings: Settings):
    """Compare global context with the public table over pairs of positions."""
    layer = LambdaLayer(64, receptive_field=None, resolution=(64, 64))
    ways = {"ours": layer, "plain formulation (table)": PlainLambdaLayer(layer, table)}
    x = torch.randn(1, 64, 64, 64)
    return timing_table(time_modules("global, 64 x 64 x 64", ways, x, settings))


# Sides of the maps of LambdaResNet's c2 and c3 (64 and 128 channels), and the receptive field.
CHOICES = ((56, 28, 23), (128, 64, 23), (64, 32, 9), (128, 64, 7))


def choice(settings: Settings):
    """Compare the two forms that the layer chooses from by size.

    One image, k = 16, h = 4, u = 1. Only position lambdas and their application are measured.
    """
    results = {}
    for *sides, window in CHOICES:
        for channels, side in zip((64, 128), sides, strict=True):
            options = {"device": settings.device, "requires_grad": True}
            queries = torch.randn(1, 4, 16, side, side, **options)
            values = torch.randn(1, 1, channels // 4, side, side, **options)
            weight = torch.randn(16, 1, window, window, **options)
            inference, training = {}, {}
            for name, way in (("direct", direct_lambdas), ("Fourier", fourier_lambdas)):
                forward = partial(_lambdas_applied, way, queries, weight)
                inference[name] = inference_step(forward, values)
                training[name] = training_step(forward, values, (queries, weight))
            for mode, steps in (("inference", inference), ("training", training)):
                case = f"{channels} x {side}, r = {window}, {mode}"
                results[case] = compare_times(steps, settings.rounds, settings.device)
    return timing_table(results)


def _lambdas_applied(way: Callable, queries: Tensor, weight: Tensor, values: Tensor) -> Tensor:
    y, first = None, 0
    for lambdas in way(values, crop_embeddings(weight, *values.shape[3:])):
        last = first + lambdas.shape[1]
        y = apply_lambdas(queries[:, :, first:last], lambdas, y)
        first = last
    return y


PARTS = {"local": local, "choice": choice, "global": global_context}

if __name__ == "__main__":
    sys.exit(command("The lambda layer: time and memory of its forms.", PARTS))

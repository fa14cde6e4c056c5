"""The tables of docs/benchmarks/lambda.md: lambda layers and LambdaResNet.

Multiply-adds follow the dense form of the paper: taps on zero padding count, and the paper's FLOPs
are twice these (arXiv 2102.08602 as reproduced by third parties).
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.reference.lambda_layer import LOCAL_WAYS, PlainLambdaLayer, conv3d, table
from benchmarks.tables import Settings, command, contest_table, module_contest
from mmseg_ext.backbones.lambda_resnet import LambdaResNet
from mmseg_ext.cost.contest import contest
from mmseg_ext.cost.multiply_adds import count_multiply_adds
from mmseg_ext.layers import LambdaLayer
from mmseg_ext.layers._fourier_lambdas import fourier_lambdas
from mmseg_ext.layers.lambda_layer import apply_lambdas, crop_embeddings, direct_lambdas


def count_lambda_resnet(size: int = 224, **arguments) -> tuple[int, int]:
    """Parameters and multiply-adds of a classifier LambdaResNet on `size` x `size`.

    Builds on the meta device: nothing is allocated or computed.
    """
    with torch.device("meta"):
        model = LambdaResNet(num_classes=1000, **arguments).eval()
        counted = count_multiply_adds(model, torch.empty(1, 3, size, size))
    return sum(p.numel() for p in model.parameters()), counted.all


def local(settings: Settings):
    """Our layer, the plain formulation, and our layer with each known way in its place."""
    results = {}
    for channels, side in ((64, 56), (128, 64)):
        layer = LambdaLayer(channels)
        ways = {
            "ours": layer,
            "plain formulation (3-D convolution, einsum)": PlainLambdaLayer(layer, conv3d),
        }
        for name, way in LOCAL_WAYS.items():
            ways[name] = PlainLambdaLayer(layer, way, einsum=False)
        x = torch.randn(1, channels, side, side)
        results |= module_contest(f"local, {channels} x {side} x {side}", ways, x, settings)
    return contest_table(results)


def global_context(settings: Settings):
    """Global context against the public table over pairs of positions."""
    layer = LambdaLayer(64, receptive_field=None, resolution=(64, 64))
    ways = {"ours": layer, "plain formulation (table)": PlainLambdaLayer(layer, table)}
    x = torch.randn(1, 64, 64, 64)
    return contest_table(module_contest("global, 64 x 64 x 64", ways, x, settings))


# Channels, side of the map, receptive field: LambdaResNet's stages at 224, 256 and 512.
CHOICES = (
    *((64 * 2**i, side, 23) for i, side in enumerate((56, 28, 14, 7))),
    *((64 * 2**i, side, 23) for i, side in enumerate((128, 64, 32, 16))),
    *((64 * 2**i, side, 9) for i, side in enumerate((64, 32, 16, 8))),
    *((64 * 2**i, side, 7) for i, side in enumerate((128, 64, 32, 16))),
)


def choice(settings: Settings):
    """The layer's two ways beside each other, by size: what the layer's rule rests on.

    One image, k = 16, h = 4, u = 1; position lambdas and their application alone, no projection.
    """
    results = {}
    for channels, side, window in CHOICES:
        options = {"device": settings.device, "requires_grad": True}
        queries = torch.randn(1, 4, 16, side, side, **options)
        values = torch.randn(1, 1, channels // 4, side, side, **options)
        weight = torch.randn(16, 1, window, window, **options)
        inputs = (queries, values, weight)
        ways = {"direct": direct_lambdas, "Fourier": fourier_lambdas}
        forwards = {name: _lambdas_applied(way, *inputs) for name, way in ways.items()}
        inference = {name: torch.no_grad()(forward) for name, forward in forwards.items()}
        training = {
            name: lambda f=forward, i=inputs: torch.autograd.grad(f().sum(), i)
            for name, forward in forwards.items()
        }
        for mode, steps in (("inference", inference), ("training", training)):
            case = f"{channels} x {side}, r = {window}, {mode}"
            results[case] = contest(steps, settings.rounds, settings.device)
    return contest_table(results)


def _lambdas_applied(
    way: Callable, queries: Tensor, values: Tensor, weight: Tensor
) -> Callable[[], Tensor]:
    embeddings = crop_embeddings(weight, *values.shape[3:])

    def run() -> Tensor:
        y, first = None, 0
        for lambdas in way(values, embeddings):
            last = first + lambdas.shape[1]
            y = apply_lambdas(queries[:, :, first:last], lambdas, y)
            first = last
        return y

    return run


PARTS = {"local": local, "choice": choice, "global": global_context}

if __name__ == "__main__":
    sys.exit(command("The lambda layer: time and memory of its forms.", PARTS))

"""Print the tables of docs/lambda.md: time and memory of the lambda layer's forms."""

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.reference.lambda_layer import PlainLambdaLayer, conv3d, table
from benchmarks.tables import Settings, command, time_modules, timing_table
from mmseg_ext.layers import LambdaLayer
from mmseg_ext.layers._fourier_lambdas import fourier_lambdas
from mmseg_ext.layers.lambda_layer import direct_lambdas


class OneForm(nn.Module):
    """A lambda layer that computes its position lambdas in one form for maps of all sizes."""

    def __init__(self, layer: LambdaLayer, form: Callable):
        super().__init__()
        self.layer = layer
        self.form = form

    def forward(self, x: Tensor) -> Tensor:
        return self.layer._forward(x, self.form)


def local(settings: Settings):
    """Compare our layer, the plain formulation, and our layer with only the 2-D convolution."""
    results = {}
    for channels, side in ((64, 56), (128, 64)):
        layer = LambdaLayer(channels)
        ways = {
            "ours": layer,
            "plain formulation (3-D convolution, einsum)": PlainLambdaLayer(layer, conv3d),
            "2-D convolution": OneForm(layer, direct_lambdas),
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


# Channels, sides of the map and receptive fields in c2 (64 channels) and c3 of LambdaResNet.
CHOICES = (
    *((64, 56, 23), (128, 28, 23), (64, 128, 23), (128, 64, 23)),
    *((64, 64, 9), (128, 32, 9), (64, 128, 7), (128, 64, 7)),
)


def choice(settings: Settings):
    """Compare the two forms that the layer chooses from by size."""
    results = {}
    for channels, side, window in CHOICES:
        layer = LambdaLayer(channels, receptive_field=window)
        forms = {"direct": direct_lambdas, "Fourier": fourier_lambdas}
        ways = {name: OneForm(layer, form) for name, form in forms.items()}
        x = torch.randn(1, channels, side, side)
        results |= time_modules(f"{channels} x {side}, r = {window}", ways, x, settings)
    return timing_table(results)


PARTS = {"local": local, "choice": choice, "global": global_context}

if __name__ == "__main__":
    sys.exit(command("The lambda layer: time and memory of its forms.", PARTS))

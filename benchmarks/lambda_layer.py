"""Print the tables of docs/lambda.md: time and memory of the lambda layer's forms."""

import copy
from collections.abc import Iterator

import torch

from benchmarks.reference.lambda_layer import PlainLambdaLayer, conv3d, table
from benchmarks.tables import Case, command, in_published_order, timed
from mmseg_ext.layers import LambdaLayer


def local() -> Iterator[Case]:
    """Compare our layer, the plain formulation, and our layer with only the 2-D convolution."""
    for channels, side in ((64, 128), (128, 64)):  # c2 and c3 of a 512x512 crop
        layer = LambdaLayer(channels)
        ways = {
            "ours": layer,
            "plain formulation (3-D convolution, einsum)": PlainLambdaLayer(layer, conv3d),
            "2-D convolution": in_published_order(copy.deepcopy(layer)),
        }
        x = torch.randn(1, channels, side, side)
        yield Case(f"local, {channels} x {side} x {side}", ways, x)


def global_context() -> Iterator[Case]:
    """Compare global context with the public table over pairs of positions."""
    layer = LambdaLayer(64, receptive_field=None, resolution=(64, 64))
    ways = {"ours": layer, "plain formulation (table)": PlainLambdaLayer(layer, table)}
    yield Case("global, 64 x 64 x 64", ways, torch.randn(1, 64, 64, 64))


PARTS = {"local": timed(local), "global": timed(global_context)}

if __name__ == "__main__":
    command("The lambda layer: time and memory of its forms.", PARTS)

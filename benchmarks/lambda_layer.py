"""The tables of docs/benchmarks/lambda.md: lambda layers and LambdaResNet.

Multiply-adds follow the dense form of the paper: taps on zero padding count, and the paper's FLOPs
are twice these (arXiv 2102.08602 as reproduced by third parties).
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from mmseg.registry import MODELS
from torch import Tensor, nn

from benchmarks.contest import (
    Entrant,
    Settings,
    Table,
    command,
    contest,
    entrants_table,
    module_contest,
)
from benchmarks.reference.lambda_layer import LOCAL_WAYS, PlainLambdaLayer, conv3d, table
from mmseg_ext import register_all_modules
from mmseg_ext.backbones.lambda_resnet import LambdaResNet
from mmseg_ext.cost.cost_table import MEBI, training_step
from mmseg_ext.cost.measure import count_multiply_adds, held_peak, peak_memory
from mmseg_ext.layers import LambdaLayer
from mmseg_ext.layers._fourier_lambdas import fourier_lambdas
from mmseg_ext.layers.lambda_layer import apply_lambdas, crop_embeddings, direct_lambdas

LOCAL_CASES = ((64, 56), (128, 64))  # channels, side
GLOBAL_CASE = (64, 64)
RESNET_D8 = {
    "type": "ResNet",
    "depth": 50,
    "strides": (1, 2, 1, 1),
    "dilations": (1, 1, 2, 4),
    "norm_cfg": {"type": "BN"},
}


class PublishedCost(NamedTuple):
    """A row of the ablations on ResNet-50 at 224 x 224: arguments, millions of parameters."""

    arguments: dict
    paper: float
    remark: str = ""


def _grid(
    key_depth: int, num_heads: int, intra_depth: int, paper: float, remark: str = ""
) -> PublishedCost:
    arguments = {"key_depth": key_depth, "num_heads": num_heads, "intra_depth": intra_depth}
    return PublishedCost(arguments, paper, remark)


# Receptive field 23. The paper's column as copied in a third party's README.
KEY_HEAD_DEPTH_GRID = (
    _grid(2, 4, 1, 14.7, "differs"),
    _grid(4, 4, 1, 14.7),
    _grid(8, 4, 1, 14.8),
    _grid(16, 4, 1, 15.0),
    _grid(32, 4, 1, 15.4),
    _grid(2, 8, 1, 14.7, "differs"),
    _grid(4, 8, 1, 14.7, "differs"),
    _grid(8, 8, 1, 14.7),
    _grid(16, 8, 1, 15.1),
    _grid(32, 8, 1, 15.7, "differs"),
    _grid(8, 2, 1, 14.8, "differs"),
    _grid(8, 16, 1, 15.6, "differs"),
    _grid(16, 4, 4, 16.0, "16.04 with receptive field 7"),
    _grid(8, 8, 8, 16.0, "16.04 with receptive field 7"),
    _grid(8, 8, 4, 15.3, "15.26 with receptive field 7"),
)

# Convolution or lambda layer in c2 to c5. The paper's column is remembered, not read.
PLACEMENTS = {
    "CCCC": PublishedCost({"lambda_stages": ()}, 25.6),
    "LCCC": PublishedCost({"lambda_stages": (0,)}, 25.5),
    "LLCC": PublishedCost({"lambda_stages": (0, 1)}, 25.0),
    "LLLC": PublishedCost({"lambda_stages": (0, 1, 2)}, 21.7),
    "LLLL": PublishedCost({"lambda_stages": (0, 1, 2, 3)}, 15.0),
    "CLLL": PublishedCost({"lambda_stages": (1, 2, 3)}, 15.1),
    "CCLL": PublishedCost({"lambda_stages": (2, 3)}, 15.4, "differs"),
    "CCCL": PublishedCost({"lambda_stages": (3,)}, 18.8),
}


def count_lambda_resnet(size: int = 224, **arguments) -> tuple[int, int]:
    """Parameters and multiply-adds of a classifier LambdaResNet on `size` x `size`.

    Builds on the meta device: nothing is allocated or computed.
    """
    with torch.device("meta"):
        model = LambdaResNet(num_classes=1000, **arguments).eval()
        counted = count_multiply_adds(model, torch.empty(1, 3, size, size))
    return sum(p.numel() for p in model.parameters()), counted.all


def counts(settings: Settings) -> Table:
    """Parameters and multiply-adds beside the paper's; nothing is timed."""
    named = [
        (f"k={a['key_depth']}, h={a['num_heads']}, u={a['intra_depth']}", cost)
        for cost in KEY_HEAD_DEPTH_GRID
        for a in (cost.arguments,)
    ]
    rows = []
    for name, cost in [*named, *PLACEMENTS.items()]:
        parameters, multiply_adds = count_lambda_resnet(**cost.arguments)
        numbers = (f"{parameters / 1e6:.2f}", f"{cost.paper:.1f}", f"{multiply_adds / 1e9:.2f}")
        rows.append([name, *numbers, cost.remark])
    return Table(["", "parameters, M", "paper, M", "GMAC", ""], rows)


def local_contenders(layer: LambdaLayer) -> dict[str, nn.Module]:
    """Our layer, the plain formulation, and our layer with each known way in its place."""
    return {
        "ours": layer,
        "plain formulation (3-D convolution, einsum)": PlainLambdaLayer(layer, conv3d),
        **{name: PlainLambdaLayer(layer, way, einsum=False) for name, way in LOCAL_WAYS.items()},
    }


def local(settings: Settings) -> Table:
    """Local context at two sizes."""
    entrants = []
    for channels, side in LOCAL_CASES:
        case = f"local, {channels} x {side} x {side}"
        x = torch.randn(1, channels, side, side)
        entrants += module_contest(case, local_contenders(LambdaLayer(channels)), x, settings)
    if settings.figures is not None:
        draw(entrants, settings.figures / "lambda_ways.png")
    return entrants_table(entrants)


def global_context(settings: Settings) -> Table:
    """Global context against the public table over pairs of positions."""
    channels, side = GLOBAL_CASE
    layer = LambdaLayer(channels, receptive_field=None, resolution=(side, side))
    ways = {"ours": layer, "plain formulation (table)": PlainLambdaLayer(layer, table)}
    x = torch.randn(1, channels, side, side)
    case = f"global, {channels} x {side} x {side}"
    return entrants_table(module_contest(case, ways, x, settings))


def draw(entrants: list[Entrant], path: Path) -> None:
    """Bars of the times over ours, one panel per case."""
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(e.case for e in entrants))
    rows = -(-len(panels) // 2)
    figure = Figure(figsize=(11, 2.2 * rows), layout="constrained")
    axes = figure.subplots(rows, 2, squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        chosen = [e for e in entrants if e.case == panel][::-1]
        bars = axis.barh(
            [e.name for e in chosen],
            [e.over_first for e in chosen],
            color=["#c03028" if e.name == "ours" else "#8090a0" for e in chosen],
        )
        axis.bar_label(bars, [f" {e.ms:.1f} ms" for e in chosen], fontsize=7)
        axis.margins(x=0.3)
        axis.set_title(panel, fontsize=9)
        axis.set_xlabel("time over ours", fontsize=8)
        axis.tick_params(labelsize=7)
    figure.savefig(path, dpi=120)


# Channels, side of the map, receptive field: LambdaResNet's stages at 224, 256 and 512.
CHOICES = (
    *((64 * 2**i, side, 23) for i, side in enumerate((56, 28, 14, 7))),
    *((64 * 2**i, side, 23) for i, side in enumerate((128, 64, 32, 16))),
    *((64 * 2**i, side, 9) for i, side in enumerate((64, 32, 16, 8))),
    *((64 * 2**i, side, 7) for i, side in enumerate((128, 64, 32, 16))),
)


def choice(settings: Settings) -> Table:
    """The layer's two ways beside each other, by size: what the layer's rule rests on.

    One image, k = 16, h = 4, u = 1; position lambdas and their application alone, no projection.
    """
    entrants = []
    for channels, side, window in CHOICES:
        options = {"device": settings.device, "requires_grad": True}
        queries = torch.randn(1, 4, 16, side, side, **options)
        values = torch.randn(1, 1, channels // 4, side, side, **options)
        weight = torch.randn(16, 1, window, window, **options)
        inputs = (queries, values, weight)
        ways = {"direct": direct_lambdas, "Fourier": fourier_lambdas}
        forwards = {name: _lambdas_applied(way, *inputs) for name, way in ways.items()}
        steps = {name: torch.no_grad()(forward) for name, forward in forwards.items()}
        case = f"{channels} x {side}, r = {window}"
        entrants += contest(f"{case}, inference", steps, settings)
        steps = {
            name: lambda f=forward, i=inputs: torch.autograd.grad(f().sum(), i)
            for name, forward in forwards.items()
        }
        entrants += contest(f"{case}, training", steps, settings)
    return entrants_table(entrants)


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


def memory(settings: Settings) -> Table:
    """What forward and backward of LambdaResNet-50 need; meant for a fresh process.

    Peaks in MiB of the first and the second step above their starts, and of the process in the
    first, which also loads libraries.
    """
    model = LambdaResNet(with_cp=True).to(settings.device)
    run = training_step(model, torch.randn(2, 3, 512, 512, device=settings.device))
    first = peak_memory(run, settings.device)
    process = held_peak(settings.device)
    peaks = (first, process, peak_memory(run, settings.device))
    headings = ["", "first step", "process in all", "second step"]
    return Table(headings, [["2 x 3 x 512 x 512", *(f"{n / MEBI:,.0f}" for n in peaks)]])


def throughput(settings: Settings) -> Table:
    """Whole backbones on one image of 512 x 512."""
    configs = {
        "LambdaResNet-50": {"type": "LambdaResNet"},
        "LambdaResNet-50, output stride 8": {"type": "LambdaResNet", "output_stride": 8},
        "ResNet-50-d8": RESNET_D8,
    }
    models = {name: MODELS.build(config) for name, config in configs.items()}
    x = torch.randn(1, 3, 512, 512)
    return entrants_table(module_contest("512 x 512", models, x, settings))


PARTS = {
    "counts": counts,
    "local": local,
    "choice": choice,
    "global": global_context,
    "memory": memory,
    "throughput": throughput,
}

if __name__ == "__main__":
    register_all_modules()
    sys.exit(command("The lambda layer and LambdaResNet: counts, time and memory.", PARTS))

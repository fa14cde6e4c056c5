"""Parameters and multiply-adds of LambdaResNets beside the paper's, and the lambda benchmark.

Multiply-adds follow the dense form of the paper: taps on zero padding count, and the paper's FLOPs
are twice these (arXiv 2102.08602 as reproduced by third parties, docs/lambda.md).
"""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.reference.lambda_layer import LOCAL_WAYS, PlainLambdaLayer, conv3d, table
from mmseg_ext.backbones.lambda_resnet import LambdaResNet
from mmseg_ext.cost.cost_table import MEBI, inference_step, training_step
from mmseg_ext.cost.measure import count_multiply_adds, held_peak, paired_times, peak_memory
from mmseg_ext.layers.lambda_layer import (
    LambdaLayer,
    apply_lambdas,
    crop_embeddings,
    direct_lambdas,
    fourier_lambdas,
)


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


def count_rows() -> list[list[str]]:
    """Rows of the table of parameters and multiply-adds: name, ours, the paper's, GMAC, remark."""
    rows = []
    named = [
        (f"k={a['key_depth']}, h={a['num_heads']}, u={a['intra_depth']}", cost)
        for cost in KEY_HEAD_DEPTH_GRID
        for a in (cost.arguments,)
    ]
    for name, cost in [*named, *PLACEMENTS.items()]:
        parameters, multiply_adds = count_lambda_resnet(**cost.arguments)
        rows.append(
            [
                name,
                f"{parameters / 1e6:.2f}",
                f"{cost.paper:.1f}",
                f"{multiply_adds / 1e9:.2f}",
                cost.remark,
            ]
        )
    return rows


COUNT_HEADINGS = ["", "parameters, M", "paper, M", "GMAC", ""]


def local_contenders(layer: LambdaLayer) -> dict[str, nn.Module]:
    """Our layer, the plain formulation, and our layer with each known way in its place."""
    return {
        "ours": layer,
        "plain formulation (3-D convolution, einsum)": PlainLambdaLayer(layer, conv3d),
        **{name: PlainLambdaLayer(layer, way, einsum=False) for name, way in LOCAL_WAYS.items()},
    }


def global_contenders(layer: LambdaLayer) -> dict[str, nn.Module]:
    return {"ours": layer, "plain formulation (table)": PlainLambdaLayer(layer, table)}


class LayerTiming(NamedTuple):
    """Medians in milliseconds, and peak memory in MiB above what was held before the call."""

    case: str
    mode: str
    way: str
    milliseconds: float
    over_ours: float
    mebibytes: float


def measure_layer(
    case: str,
    contenders: dict[str, nn.Module],
    shape: tuple[int, ...],
    training: bool,
    rounds: int,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> list[LayerTiming]:
    """Time the contenders in turns on one input; half precision runs under autocast."""
    x = torch.randn(shape, device=device)
    step = training_step if training else inference_step
    steps = {name: step(module.to(device), x) for name, module in contenders.items()}
    with torch.autocast(device, dtype=dtype, enabled=dtype is not torch.float32):
        seconds = paired_times(steps, rounds, warmup=1)
        memory = {name: peak_memory(run, device) / MEBI for name, run in steps.items()}
    ours = seconds["ours"]
    return [
        LayerTiming(
            case,
            "training" if training else "inference",
            name,
            1e3 * statistics.median(times),
            statistics.median(t / o for t, o in zip(times, ours, strict=True)),
            memory[name],
        )
        for name, times in seconds.items()
    ]


TIMING_HEADINGS = ["case", "mode", "way", "ms", "time over ours", "peak MiB"]


def timing_rows(timings: list[LayerTiming]) -> list[list[str]]:
    return [
        [t.case, t.mode, t.way, f"{t.milliseconds:.1f}", f"{t.over_ours:.2f}", f"{t.mebibytes:.0f}"]
        for t in timings
    ]


def _lambdas_applied(
    fourier: bool, queries: Tensor, values: Tensor, weight: Tensor
) -> Callable[[], Tensor]:
    """A call of one of the layer's two ways, whichever the layer would choose."""
    embeddings = crop_embeddings(weight, *values.shape[3:])

    def run() -> Tensor:
        ways = fourier_lambdas if fourier else lambda v, w: [direct_lambdas(v, w)]
        y, first = None, 0
        for lambdas in ways(values, embeddings):
            last = first + lambdas.shape[1]
            y = apply_lambdas(queries[:, :, first:last], lambdas, y)
            first = last
        return y

    return run


# Channels, side of the map, receptive field: LambdaResNet's stages at 224, 256 and 512.
CHOICES = (
    *((64 * 2**i, side, 23) for i, side in enumerate((56, 28, 14, 7))),
    *((64 * 2**i, side, 23) for i, side in enumerate((128, 64, 32, 16))),
    *((64 * 2**i, side, 9) for i, side in enumerate((64, 32, 16, 8))),
    *((64 * 2**i, side, 7) for i, side in enumerate((128, 64, 32, 16))),
)
CHOICE_HEADINGS = [
    "channels x side",
    "r",
    *(f"{mode}, {way}, ms" for mode in ("inference", "training") for way in ("direct", "Fourier")),
]


def choice_rows(rounds: int, device: str = "cpu") -> list[list[str]]:
    """The layer's two ways beside each other, by size: what the layer's rule rests on.

    One image, k = 16, h = 4, u = 1; position lambdas and their application alone, no projection.
    """
    rows = []
    for channels, side, receptive_field in CHOICES:
        queries = torch.randn(1, 4, 16, side, side, device=device, requires_grad=True)
        values = torch.randn(1, 1, channels // 4, side, side, device=device, requires_grad=True)
        weight = torch.randn(16, 1, receptive_field, receptive_field, device=device)
        inputs = (queries, values, weight.requires_grad_())
        cells = []
        for training in (False, True):
            runs = {}
            for fourier in (False, True):
                forward = _lambdas_applied(fourier, *inputs)
                if training:
                    runs[fourier] = lambda f=forward, i=inputs: torch.autograd.grad(f().sum(), i)
                else:
                    runs[fourier] = torch.no_grad()(forward)
            seconds = paired_times(runs, rounds, warmup=1)
            cells += [f"{1e3 * statistics.median(seconds[way]):.1f}" for way in (False, True)]
        rows.append([f"{channels} x {side}", str(receptive_field), *cells])
    return rows


def draw_timings(timings: list[LayerTiming], path: str | Path) -> None:
    """Bars of the times over ours, one panel per case and mode."""
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys((t.case, t.mode) for t in timings))
    rows = -(-len(panels) // 2)
    figure = Figure(figsize=(11, 2.2 * rows), layout="constrained")
    axes = figure.subplots(rows, 2, squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        chosen = [t for t in timings if (t.case, t.mode) == panel][::-1]
        bars = axis.barh(
            [t.way for t in chosen],
            [t.over_ours for t in chosen],
            color=["#c03028" if t.way == "ours" else "#8090a0" for t in chosen],
        )
        axis.bar_label(bars, [f" {t.milliseconds:.1f} ms" for t in chosen], fontsize=7)
        axis.margins(x=0.3)
        axis.set_title(", ".join(panel), fontsize=9)
        axis.set_xlabel("time over ours", fontsize=8)
        axis.tick_params(labelsize=7)
    figure.savefig(path, dpi=120)


class TrainingMemory(NamedTuple):
    """Peaks in MiB: of the first and second step above their starts, of the process in the first.

    The first step also loads libraries.
    """

    first: float
    process: float
    second: float


def training_memory(size: int, batch: int, device: str = "cpu", **arguments) -> TrainingMemory:
    """What forward and backward of a LambdaResNet need; meant for a fresh process."""
    model = LambdaResNet(**arguments).to(device)
    run = training_step(model, torch.randn(batch, 3, size, size, device=device))
    first = peak_memory(run, device)
    process = held_peak(device)
    return TrainingMemory(*(n / MEBI for n in (first, process, peak_memory(run, device))))


def images_per_second(
    models: dict[str, nn.Module],
    shape: tuple[int, ...],
    training: bool,
    rounds: int,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> dict[str, float]:
    """Throughput of whole models, in turns; half precision runs under autocast."""
    x = torch.randn(shape, device=device)
    step = training_step if training else inference_step
    steps = {name: step(model.to(device), x) for name, model in models.items()}
    with torch.autocast(device, dtype=dtype, enabled=dtype is not torch.float32):
        seconds = paired_times(steps, rounds, warmup=1)
    return {name: shape[0] / statistics.median(times) for name, times in seconds.items()}

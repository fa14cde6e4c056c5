"""The first training step of RMT in bfloat16: seconds by the choice of cuDNN's kernels.

    python -m benchmarks.gpu --stages benchmarks.gpu.first_step:first_step --out DIR

cuDNN compiles some kernels when they are first used, and `cudnn.benchmark` tries several. Each
variant has its own process, which writes its stack to the stage's log every ten seconds.
"""

import faulthandler
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from mmengine.optim import build_optim_wrapper
from torch import Tensor
from torch.overrides import TorchFunctionMode

from benchmarks.gpu.checks import FORK
from benchmarks.gpu.stage import Row, Run, message_of
from mmseg_ext import register_all_modules
from mmseg_ext.backbones import RMT
from mmseg_ext.cost.step_memory import batch_of, build_training_model
from mmseg_ext.engine.config import load_config
from mmseg_ext.torch_versions import set_cudnn_attention

CONFIG = "fpn_rmt_small_ade20k_80k"
SECONDS = 25.0  # of each variant


class Variant(NamedTuple):
    """Trials of `cudnn.benchmark` (0: it is off), and where depthwise convolutions run."""

    trials: int
    depthwise: str = "cuDNN"


VARIANTS = (Variant(0), Variant(1), Variant(4), Variant(0, "native"), Variant(0, "float32"))
VARIANTS += (Variant(1, "native"), Variant(10))


def first_step(run: Run) -> Iterator[Row]:
    """Measure the first steps of each variant."""
    register_all_modules()
    for variant in VARIANTS[: 4 if run.quick else None]:
        title: Row = {"trials": variant.trials, "depthwise": variant.depthwise}
        limit = min(SECONDS, run.left() - 1)
        if limit < 5:
            yield {**title, "skipped": f"{run.left():.0f} s are left"}
            continue
        yield {**title, **measured_apart(run, variant, limit)}


def measured_apart(run: Run, variant: Variant, limit: float) -> Row:
    """Measure a variant in another process, which is killed after `limit` seconds."""
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=measure_steps, args=(run, variant, sender))
    process.start()
    sender.close()
    end, row = time.monotonic() + limit, {}
    try:
        # The process sends each figure when it has it, and closes the pipe at its end.
        while receiver.poll(max(0, end - time.monotonic())):
            row |= receiver.recv()
        row["failed"] = f"stopped after {limit:.0f} s"
    except EOFError:
        process.join(1)
    process.kill()
    process.join()
    return row


def measure_steps(run: Run, variant: Variant, sender: Connection) -> None:
    """Send the seconds of the start, of the first forward and backward pass, and of later steps."""
    faulthandler.dump_traceback_later(10, repeat=True)
    try:
        steps = training_steps(run, variant)
        begin = time.perf_counter()
        for name in ("start", "first forward", "first backward", "second step", "third step"):
            next(steps)
            if run.on_gpu:
                torch.cuda.synchronize()
            now = time.perf_counter()
            sender.send({f"{name}, s": f"{now - begin:.2f}"})
            begin = now
    except Exception as error:
        sender.send({"failed": message_of(error)})


def training_steps(run: Run, variant: Variant) -> Iterator[None]:
    """Train on random images; pause at the start, in the first step, and after each step."""
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = variant.trials > 0
    torch.backends.cudnn.benchmark_limit = variant.trials
    set_cudnn_attention(False)
    config = load_config(CONFIG)
    if run.quick:
        config.model.backbone.arch = {**RMT.arch_settings["tiny"], "depths": 4 * (1,)}
        config.crop_size = config.model.data_preprocessor.size = (64, 64)
    device = torch.device(run.device)
    model: Any = build_training_model(config, device).to(device)
    settings = {**config.optim_wrapper, "type": "OptimWrapper"}
    wrapper = build_optim_wrapper(model, settings)
    batch = batch_of(config, device)
    data = model.data_preprocessor(batch, training=True)
    half = torch.autocast(device.type, torch.bfloat16)
    yield
    with DepthwiseConvolutions(variant.depthwise):
        for step in range(3):
            with half:
                loss, _ = model.parse_losses(model(**data, mode="loss"))
            if step == 0:
                yield
            wrapper.update_params(loss)
            yield


class DepthwiseConvolutions(TorchFunctionMode):
    """Context in which depthwise convolutions run on cuDNN, on PyTorch's kernels or in float32."""

    def __init__(self, place: str):
        super().__init__()
        self.place = place

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is not F.conv2d or self.place == "cuDNN" or args[6:7] in ((), (1,)):
            return function(*args, **kwargs)
        x, weight, bias, _, padding, _, groups = args
        if self.place == "native":
            half = torch.get_autocast_dtype(x.device.type)
            operands = (t.to(half) for t in (x, weight, bias))
            return NativeConvolution.apply(*operands, padding, groups)
        with torch.autocast(x.device.type, enabled=False):
            operands = (t.float() for t in (x, weight, bias))
            return F.conv2d(*operands, padding=padding, groups=groups).to(x.dtype)


class NativeConvolution(torch.autograd.Function):
    """Convolution with stride 1 without cuDNN, forward and backward."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, padding, groups: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.settings = ((1, 1), padding, (1, 1), False, (0, 0), groups)
        with torch.backends.cudnn.flags(enabled=False):
            return torch.ops.aten.convolution(x, weight, bias, *ctx.settings)

    @staticmethod
    def backward(ctx, *gradients: Tensor):
        x, weight = ctx.saved_tensors
        settings = ([len(weight)], *ctx.settings, (True, True, True))
        with torch.backends.cudnn.flags(enabled=False):
            found = torch.ops.aten.convolution_backward(gradients[0], x, weight, *settings)
        return *found, None, None

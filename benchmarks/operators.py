"""Count the operators of training steps: `python -m benchmarks.operators [CONFIG ...]`.

Without names, those of docs/gpu.md, and of a prediction of the default model.

Python starts each operator, which takes 34 to 41 microseconds on the GPU host of docs/gpu.md. A
step with many small operators therefore waits for Python, however fast the GPU is. The counts are
of a step in float32 on the meta device, so they need no GPU. They have the forms of layers and
losses that a GPU has, but PyTorch's plain attention and dropout, which are several operators each.
Views start nothing on a GPU and are not counted.
"""

import argparse
import collections
import logging
from collections.abc import Sequence
from typing import Any

import torch
from mmengine.config import Config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.training_step import (
    META,
    WithoutData,
    batch_of,
    build_training_model,
    build_wrapper,
    training_loss,
)
from mmseg_ext import register_all_modules
from mmseg_ext.durable.optimizer_groups import merge_groups
from mmseg_ext.engine.config import load_config
from mmseg_ext.inference.models import DEFAULT

CONFIGS = (
    "ea_r101_ade20k_160k",
    "danet_r101_ade20k_160k",
    "fpn_rmt_small_ade20k_80k",
    "upernet_deepvit_s_ade20k_160k",
    "upernet_lambda_r101_ade20k_160k",
)
PHASES = ("forward", "backward", "optimizer")

# Operators that start no kernel and are not marked as views.
_FREE = {"detach", "_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "set_"}


class OperatorCounter(TorchDispatchMode):
    """Context that counts operators by name in `counts`, without views.

    They are operators on tensors of a type of device.
    """

    def __init__(self, device_type: str = "meta"):
        super().__init__()
        self.device_type = device_type
        self.counts: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        outputs = operator(*args, **(kwargs or {}))
        name = operator.overloadpacket.__name__
        tensors = [x for x in tree_leaves((args, kwargs, outputs)) if isinstance(x, torch.Tensor)]
        ours = any(x.device.type == self.device_type for x in tensors)
        if ours and not operator.is_view and name not in _FREE:
            self.counts[name] += 1
        return outputs


Counts = dict[str, collections.Counter[str]]
"""The operators by phase and name."""


def count_training_step(config: Config) -> Counts:
    """Return the operators of a training step in float32, without data."""
    with WithoutData():
        model = build_training_model(config, META)
        wrapper = build_wrapper(model, config)
        merge_groups(wrapper.optimizer)  # as a `DurableRunner`
        for group in wrapper.optimizer.param_groups:
            group["foreach"] = True  # the default on a GPU
        batch = batch_of(config, META)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        wrapper.step()  # creates the state of the optimizer
        wrapper.zero_grad()
        counters = {phase: OperatorCounter() for phase in PHASES}
        with counters["forward"]:
            loss = training_loss(model, batch)
        with counters["backward"]:
            wrapper.backward(loss)
        with counters["optimizer"]:
            wrapper.step()
            wrapper.zero_grad()
    return {phase: counter.counts for phase, counter in counters.items()}


def count_prediction(config: Config) -> Counts:
    """Return the operators of a prediction, from an image to its labels, without data."""
    with WithoutData(), torch.no_grad():
        model: Any = build_training_model(config, META).eval()
        config.train_dataloader.batch_size = 1
        image = batch_of(config, META)
        model.test_step(image)  # builds matrices of the resize
        with OperatorCounter() as counter:
            model.test_step(image)
    return {"prediction": counter.counts}


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table of the counts, and the most frequent operators."""
    parser = argparse.ArgumentParser(prog="benchmarks.operators", description=__doc__)
    parser.add_argument("configs", nargs="*", help="names (the five of gpu.md, and a prediction)")
    parser.add_argument("--top", type=int, default=0, help="also print the most frequent ones (0)")
    parser.add_argument("--batch-size", type=int, help="images (the config's)")
    args = parser.parse_args(argv)
    register_all_modules()
    logging.disable(logging.INFO)  # mmengine prints a line for each parameter
    for name in args.configs or CONFIGS:
        config = load_config(name)
        if args.batch_size:
            config.train_dataloader.batch_size = args.batch_size
        print_counts(name, count_training_step(config), args.top)
    if not args.configs:
        print_counts(f"{DEFAULT}, prediction", count_prediction(load_config(DEFAULT)), args.top)


def print_counts(title: str, counts: Counts, top: int) -> None:
    """Print a line of sums, and for each phase the most frequent operators."""
    sums = [phase.total() for phase in counts.values()]
    print(f"{title}: {' + '.join(map(str, sums))} = {sum(sums)}", flush=True)
    for phase, operators in counts.items() if top else ():
        print(f"    {phase}: {operators.most_common(top)}")


if __name__ == "__main__":
    main()

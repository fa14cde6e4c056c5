"""The stage `variants`: training steps with options that may make them faster, by `plan`.

Each row has the time of a step in a queue of steps, of a single step, and until Python has started
its kernels; and the time that the GPU is busy, by the profiler. The loss of the fifth step should
be nearly equal for all variants of a config. Equal checksums are equal weights, bit by bit.
"""

import copy
import functools
import gc
import itertools
import statistics
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.docs_tables import zoo
from benchmarks.gpu import plan
from benchmarks.gpu.isolated import Job, isolated_rows
from benchmarks.gpu.plan import Variant
from benchmarks.gpu.speed import number
from benchmarks.gpu.stage import Row, Run, attempt
from benchmarks.operators import OperatorCounter
from benchmarks.training_step import (
    build_training_model,
    build_wrapper,
    random_batch,
    set_precision,
    training_config,
)
from mmseg_ext import register_all_modules
from mmseg_ext.durable.cuda_graph import GraphedStep
from mmseg_ext.durable.levers import compile_blocks, preprocess_without_waiting, to_channels_last
from mmseg_ext.durable.optimizer_groups import merge_groups
from mmseg_ext.durable.without_waiting import PinnableSamples
from mmseg_ext.layers import lambda_layer

# FLOP per second of an H100 SXM without sparsity, as NVIDIA states them.
PEAK = {"bfloat16": 989e12, "TF32": 494e12, "float32": 67e12}
# cuDNN compares so many algorithms of a convolution; with torch's 10 a first step takes 20 s.
ALGORITHMS = 4
STEPS_OF_LOSS = 5
APPLY_BY_POSITIONS = lambda_layer.apply_by_positions

Step = Callable[[], dict[str, Any]]


def variants(run: Run) -> Iterator[Row]:
    """Measure the ceilings of the device, then the variants, the most valuable ones first."""
    register_all_modules()
    ceilings: Row = {}
    for row in isolated_rows(run, [Job({}, 30, lambda: device_limits(run))]):
        ceilings |= row
        yield row
    jobs = {variant: job_of(run, variant, ceilings) for variant in plan.variants(run.quick)}
    jobs = {variant: job for variant, job in jobs.items() if run.wants(job.title)}
    for _, group in itertools.groupby(jobs, key=lambda variant: variant.config):
        wanted = []
        for variant in group:
            reason = run.why_not(variant.precision)
            if not run.on_gpu and {"graph", "compile"} & {*variant.options.split()}:
                reason = "needs CUDA"
            if reason:
                yield {**jobs[variant].title, "skipped": reason}
            else:
                wanted.append(jobs[variant])
        yield from isolated_rows(run, wanted)


def job_of(run: Run, variant: Variant, ceilings: Row) -> Job:
    title: Row = {"config": variant.config, "precision": variant.precision}
    title |= {"batch": str(variant.batch), "options": variant.options}
    return Job(title, variant.limit, lambda: columns(run, variant, ceilings))


def columns(run: Run, variant: Variant, ceilings: Row) -> Iterator[Row]:
    """Measure a variant, and yield its columns as soon as they are known."""
    options = {*variant.options.split()}
    step, model = build_step(run, variant, options)
    yield first_steps(run, step, model)
    times = step_times(run, step)
    row: Row = {"images per s": number(variant.batch / times.queued)}
    row |= {"ms": number(1e3 * times.queued), "ms alone": number(1e3 * times.alone)}
    row["enqueue ms"] = number(1e3 * times.enqueued)
    row["peak GiB"] = f"{torch.cuda.max_memory_allocated() / 2**30:.2f}" if run.on_gpu else ""
    yield row | shares(variant, times.queued, ceilings)
    if options & {"graph", "compile"}:  # Python does not start their operators one by one
        yield {"operators": "", "us per operator": ""}
    else:
        yield operators(run, step, times.enqueued)
    empty: Row = {"busy ms": "", "kernels": "", "longest": ""}
    found = attempt({}, busy_time, step) if run.on_gpu and "profile" in options else empty
    # The step has been measured, also if the profiler fails.
    yield {**empty, "busy ms": found["failed"]} if "failed" in found else found


def build_step(run: Run, variant: Variant, options: set[str]) -> tuple[Step, BaseModel]:
    """Return a function that runs a training step and returns its losses, and the model."""
    set_backends(variant.precision, options)
    gc.collect()  # the model of the row before
    if run.on_gpu:
        torch.cuda.empty_cache()
    stored, config = stored_model(variant.config, "stock" in options, run.quick)
    model: Any = copy.deepcopy(stored).to(run.device)
    config = copy.deepcopy(config)
    config.train_dataloader.batch_size = variant.batch
    torch.manual_seed(0)  # equal images and dropout
    batch = random_batch(config)
    if run.on_gpu:
        batch["inputs"] = [image.pin_memory() for image in batch["inputs"]]
        if "stock" not in options:  # as DurableRunner does
            batch["data_samples"] = PinnableSamples(batch["data_samples"]).pin_memory()
            preprocess_without_waiting(model.data_preprocessor)
        torch.cuda.reset_peak_memory_stats()
    if "nhwc" in options:
        to_channels_last(model)
    if "compile" in options:
        torch._dynamo.reset()
        print("compiled blocks:", compile_blocks(model))
    half = variant.precision == "bfloat16"
    wrapper = build_wrapper(model, config, half, "fused" in options)
    if "merged" in options:
        merge_groups(wrapper.optimizer)
    train: Callable = model.train_step
    if "graph" in options:
        train = GraphedStep(model)
    return lambda: train(batch, wrapper), model


@functools.lru_cache(2)
def stored_model(name: str, stock: bool, quick: bool) -> tuple[BaseModel, Config]:
    """Build a model once in a process; its copies have equal weights, also for stock."""
    config = training_config(name, stock, quick)
    torch.manual_seed(0)
    return build_training_model(config, torch.device("cpu")), config


def set_backends(precision: str, options: set[str]) -> None:
    """Set torch's global switches."""
    set_precision(precision)
    torch.backends.cudnn.benchmark = "untuned" not in options
    if torch.backends.cudnn.is_available():
        torch.backends.cudnn.benchmark_limit = ALGORITHMS
    torch.backends.cuda.enable_cudnn_sdp(False)  # as our runs do
    by_channels = "channels" in options
    lambda_layer.apply_by_positions = (
        lambda_layer.apply_by_channels if by_channels else APPLY_BY_POSITIONS
    )


def first_steps(run: Run, step: Step, model: BaseModel) -> Row:
    """Run five steps, and return the time of the first and the results."""
    losses, seconds = {}, []
    for _ in range(STEPS_OF_LOSS):
        begin = time.perf_counter()
        losses = step()
        synchronize(run)
        seconds.append(time.perf_counter() - begin)
    checksum = 0
    for tensor in model.state_dict().values():
        checksum = zlib.crc32(tensor.cpu().numpy().tobytes(), checksum)
    row: Row = {
        "first step, s": f"{seconds[0]:.1f}",
        "slowest of the next 4, s": f"{max(seconds[1:]):.2f}",
    }
    return row | {"fifth loss": f"{float(losses['loss']):.6f}", "weights": f"{checksum:08x}"}


class Times(NamedTuple):
    """Seconds of a step: in a queue of steps, by itself, and until its kernels are started."""

    queued: float
    alone: float
    enqueued: float


def step_times(run: Run, step: Step) -> Times:
    """Measure three single steps, and three queues of as many steps as fit in half a second."""
    alone, enqueued, queued = [], [], []
    for _ in range(1 if run.quick else 3):
        synchronize(run)
        begin = time.perf_counter()
        step()
        enqueued.append(time.perf_counter() - begin)
        synchronize(run)
        alone.append(time.perf_counter() - begin)
    count = 1 if run.quick else max(2, int(0.5 / min(alone)))
    for _ in range(1 if run.quick else 3):
        begin = time.perf_counter()
        for _ in range(count):
            step()
        synchronize(run)
        queued.append((time.perf_counter() - begin) / count)
    return Times(*map(statistics.median, (queued, alone, enqueued)))


def synchronize(run: Run) -> None:
    if run.on_gpu:
        torch.cuda.synchronize()


def shares(variant: Variant, seconds: float, ceilings: Row) -> Row:
    """Return the part of the card's products per second that the network's products are."""
    # An addition and a multiplication, and two such products in the backward pass.
    operations = 6 * zoo()[variant.config].all_multiply_adds
    rate = operations * variant.batch / seconds
    measured = ceilings.get(f"{variant.precision}, TFLOP/s")
    part = f"{rate / float(str(measured)) / 1e12:.1%}" if measured else ""
    return {"of the peak": f"{rate / PEAK[variant.precision]:.1%}", "of a product": part}


def operators(run: Run, step: Step, enqueued: float) -> Row:
    """Count the operators of an eager step, and divide the time in which Python starts them."""
    with OperatorCounter(run.device) as counter:
        step()
    count = sum(counter.counts.values())
    return {"operators": count, "us per operator": number(1e6 * enqueued / count)}


def busy_time(step: Callable[[], object]) -> Row:
    """Return the time of the kernels of a step, their number, and the longest ones."""
    steps = 2
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    events = [e for e in profiler.key_averages() if e.device_type == DeviceType.CUDA]
    kernels = [e for e in events if not e.key.startswith("Mem")]  # copies, fills
    kernels.sort(key=lambda event: event.self_device_time_total, reverse=True)
    microseconds = sum(event.self_device_time_total for event in kernels) / steps
    longest = []
    for event in kernels[:16]:
        milliseconds = event.self_device_time_total / steps / 1e3
        longest.append(f"{milliseconds:.2f} ms: {event.count // steps} {event.key[:110]}")
    count = sum(event.count for event in kernels) // steps
    return {"busy ms": number(microseconds / 1e3), "kernels": count, "longest": longest}


def device_limits(run: Run) -> Iterator[Row]:
    """Measure the fastest products and copies, and the time in which Python starts an operator."""
    side, count = (64, 1) if run.quick else (8192, 20)
    for precision in ("bfloat16", "TF32", "float32"):
        set_precision(precision)
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        one = torch.randn(side, side, device=run.device, dtype=dtype)
        out = torch.empty_like(one)
        rounds = 4 if precision == "float32" and not run.quick else count
        seconds = repeated(run, lambda one=one, out=out: torch.mm(one, one, out=out), rounds)
        yield {f"{precision}, TFLOP/s": f"{2 * side**3 / seconds / 1e12:.3g}"}
    source = torch.empty(side * side * 16, device=run.device, dtype=torch.uint8)
    target = torch.empty_like(source)
    seconds = repeated(run, lambda: target.copy_(source), count)
    yield {"copy, TB/s": f"{2 * len(source) / seconds / 1e12:.3g}"}
    yield host_costs(run, "")
    if run.on_gpu:  # what the profiler leaves behind makes later rows slower
        busy_time(lambda: source.add_(1))
        yield host_costs(run, " after a profile")


def host_costs(run: Run, when: str) -> Row:
    """Return the time until an addition, and a linear layer in mixed precision, are started."""
    count = 20 if run.quick else 2000
    value = torch.zeros(1, device=run.device)
    layer, x = torch.nn.Linear(8, 8, device=run.device), torch.zeros(8, 8, device=run.device)

    def train() -> None:
        with torch.autocast(run.device, torch.bfloat16):
            loss = layer(x).sum()
        loss.backward()

    addition = repeated(run, lambda: value.add_(1), count)
    training = repeated(run, train, count // 10)
    row: Row = {f"us of add_{when}": number(1e6 * addition)}
    return row | {f"us of a linear layer's step{when}": number(1e6 * training)}


def repeated(run: Run, function: Callable[[], object], count: int) -> float:
    """Return the seconds of a call of many, after a first one."""
    function()
    synchronize(run)
    begin = time.perf_counter()
    for _ in range(count):
        function()
    synchronize(run)
    return (time.perf_counter() - begin) / count

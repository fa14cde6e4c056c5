"""Ways to make a run fast. The start of a log has the values of the table `LEVERS` for the run.

`LEVERS` names each lever, and the function or module that applies it. Three functions are recipes:
`prepare_for_gpu` before a Runner is built, `use_channels_last` when weights are loaded, and
`prepare_training` when the training begins. `LeverHook` calls the last two for a Runner of any
class. `DurableRunner` adds what must happen between them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from torch import nn

from mmseg_ext.checkpoint.safe_loading import unwrap_model
from mmseg_ext.durable.cuda_graph import GraphedStep
from mmseg_ext.durable.optimizer_groups import is_merged, single_wrappers
from mmseg_ext.durable.without_waiting import WaitingInfoHook
from mmseg_ext.torch_versions import allows_cudnn_attention, eager_stance, set_cudnn_attention
from mmseg_ext.upstream import (
    converts_channels,
    copy_without_waiting,
    set_channel_conversion,
)

# Names of the classes of repeated blocks: of the ResNets of all OpenMMLab packages, and of ours.
_BLOCKS = {"BasicBlock", "Block", "Bottleneck", "InvertedResidual", "ManhattanBlock"}
# Packages whose layers were trained channels last: all but mmseg's DMHead, which raises an error.
_CHANNELS_LAST = {"mmcv", "mmengine", "mmseg", "mmseg_ext", "torch"}


def prepare_for_gpu(cfg: Any) -> None:
    """Set torch and a config's loaders for a GPU, if there is one, before the Runner is built."""
    if not torch.cuda.is_available():  # on some CPUs the precision would change products
        return
    torch.set_float32_matmul_precision(cfg.get("float32_matmul_precision", "highest"))
    # `cudnn_benchmark` tries four kernels instead of ten: cuDNN compiles some of them first.
    torch.backends.cudnn.benchmark_limit = 4
    # Also in compiled programs and in layers of other packages. `mmseg_ext.layers.fused_attention`
    # has the reasons.
    set_cudnn_attention(False)
    for name in ("train_dataloader", "val_dataloader", "test_dataloader"):
        if cfg.get(name):
            cfg[name].setdefault("pin_memory", True)


def use_channels_last(runner: Any) -> None:
    """Store weights in the layout of cuDNN's fastest kernels; results differ by rounding.

    When weights are loaded, because the state of the optimizer is loaded in their layout. Without
    a checkpoint when the training begins: random weights are drawn in the order of the memory.
    """
    model = unwrap_model(runner.model)
    untested = untested_layers(model)
    if runner.cfg.get("channels_last", torch.cuda.is_available() and not untested):
        to_channels_last(model)


def to_channels_last(model: nn.Module) -> nn.Module:
    """Store the 4-D weights of `model` channels last, in place, and return it.

    cuDNN computes in the layout of the weights. So the first convolution converts the images, and
    the other layers keep the layout of their input.
    """
    return model.to(memory_format=torch.channels_last)  # type: ignore  # not in torch's types


def untested_layers(model: nn.Module) -> set[str]:
    """Return the classes of layers that may not accept channels-last features.

    `Tensor.view` raises an error for some shapes in this layout.
    """
    names = set()
    for kind in {type(module) for module in model.modules()}:
        package = kind.__module__.partition(".")[0]
        if package not in _CHANNELS_LAST or kind.__name__ == "DMHead":
            names.add(kind.__name__)
    return names


def compile_loss(runner: Any) -> None:
    """Compile a model's `loss`; mmengine's `train_step` would compile again in eight iterations."""
    model: Any = unwrap_model(runner.model)
    settings = runner.cfg.get("compile")
    if settings is True:
        settings = {}
    if isinstance(settings, dict) and hasattr(model, "loss"):
        model.loss = torch.compile(model.loss, **settings)
        runner.logger.info("compile: the first iterations are slow")


def preprocess_without_waiting(preprocessor: nn.Module) -> None:
    """Let a data preprocessor copy batches and swap BGR and RGB without waiting for a GPU.

    torch keeps pinned memory until it is copied, and copies other memory at once. mmsegmentation
    copies the index of the channels to the GPU for each image; `flip` needs none.
    """
    copy_without_waiting(preprocessor)
    own = type(preprocessor).forward.__qualname__ == "SegDataPreProcessor.forward"
    if not own or not converts_channels(preprocessor):
        return

    def swap_channels(preprocessor: Any, args: tuple) -> tuple:
        data, *others = args
        data = preprocessor.cast_data(data)
        if converts_channels(preprocessor) and len(data["inputs"][0]) == 3:
            data["inputs"] = [image.flip(0) for image in data["inputs"]]
        set_channel_conversion(preprocessor, False)
        return data, *others

    def allow_swapping(preprocessor: nn.Module, args: tuple, batch: dict) -> None:
        set_channel_conversion(preprocessor, True)

    preprocessor.register_forward_pre_hook(swap_channels)
    preprocessor.register_forward_hook(allow_swapping, always_call=True)


def compile_blocks(model: nn.Module, **settings: Any) -> int:
    """Compile the repeated blocks of `model` for fixed shapes, and return their number.

    Blocks of equal shapes share the result. Compiling a complete network takes minutes. `settings`
    are arguments of `torch.compile`.
    """
    # With symbolic shapes inductor does not choose the memory layout of convolutions.
    settings = {"dynamic": False, **settings}
    count = 0
    for module in model.modules():
        names = {kind.__name__ for kind in type(module).__mro__}
        if names & _BLOCKS:
            module.compile(**settings)
            count += 1
    return count


def prepare_training(runner: Any) -> None:
    """Apply what a training may use once its weights are loaded; it begins after this."""
    use_channels_last(runner)
    model: Any = unwrap_model(runner.model)
    if torch.cuda.is_available():
        preprocess_without_waiting(model.data_preprocessor)
    settings = runner.cfg.get("compile_blocks")
    if settings or runner.cfg.get("compile"):
        eager_stance(False)  # an earlier run of the process may have ended in a validation
        torch.compiler.reset()  # torch counts compilations up to a limit, of all runs
        if runner.deterministic:
            runner.logger.warning(
                "compile: torch may compile other kernels after a restart, so a resumed run can "
                "differ in spite of randomness.deterministic=True"
            )
    if settings:
        count = compile_blocks(model, **({} if settings is True else settings))
        runner.logger.info(f"compile_blocks: {count} blocks; the first iterations are slow")
    if not runner.cfg.get("cuda_graph"):
        return
    if is_model_wrapper(runner.model) or not torch.cuda.is_available():
        runner.logger.warning("cuda_graph: needs one GPU and one process; runs without it")
    else:
        runner.model.train_step = GraphedStep(runner.model)


class Lever(NamedTuple):
    """A way to make a run fast.

    `read` gets the Runner when the training begins. It returns what the run uses, read from the
    optimizer, the weights and torch, or None where the lever has no meaning.
    """

    key: str  # of the config, or the name in the log
    about: str  # for `mmseg-ext env`
    applied_by: str  # in this package
    read: Callable[[Any], Any] | None = None


def _read_precision(runner: Any) -> str | None:
    if not torch.cuda.is_available():
        return None
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # of newer versions, if a user has set the precision of one backend
        return "set for each backend"


def _read_fused(runner: Any) -> bool:
    optimizers = [one.optimizer for one in single_wrappers(runner.optim_wrapper)]
    return all(group.get("fused") for one in optimizers for group in one.param_groups)


def _read_layout(runner: Any) -> str | bool:
    model = unwrap_model(runner.model)
    if any(p.ndim == 4 and not p.is_contiguous() for p in model.parameters()):
        return True
    untested = untested_layers(model)
    if torch.cuda.is_available() and "channels_last" not in runner.cfg and untested:
        return f"False (not tested with {', '.join(sorted(untested))}; try channels_last=True)"
    return False


def _read_deferred(runner: Any) -> bool | None:
    if not torch.cuda.is_available():
        return None
    return any(type(hook) is WaitingInfoHook for hook in runner.hooks)


LEVERS = (
    Lever(
        "float32_matmul_precision",
        "TF32 on a GPU with 'high', the default of our configs",
        "durable.levers.prepare_for_gpu",
        _read_precision,
    ),
    Lever(
        "cudnn_benchmark",
        "env_cfg.cudnn_benchmark=True tries four kernels of each convolution",
        "durable.levers.prepare_for_gpu",
        lambda runner: torch.backends.cudnn.benchmark if torch.cuda.is_available() else None,
    ),
    Lever(
        "cudnn_attention",
        "off on a GPU: its gradients can be NaN",
        "durable.levers.prepare_for_gpu",
        lambda runner: allows_cudnn_attention() if torch.cuda.is_available() else None,
    ),
    Lever(
        "pin_memory",
        "train_dataloader.pin_memory, on by default on a GPU",
        "durable.levers.prepare_for_gpu",
        lambda runner: runner.train_dataloader.pin_memory,
    ),
    Lever(
        "deferred_losses",
        "logged losses stay on a GPU until something reads them",
        "durable.without_waiting.defer_losses",
        _read_deferred,
    ),
    Lever(
        "pinned_labels",
        "label maps are pinned with the images",
        "durable.without_waiting.pin_samples",
    ),
    Lever(
        "merged_groups",
        "parameter groups with equal settings are computed together",
        "durable.optimizer_groups.merge_groups",
        lambda runner: all(is_merged(w.optimizer) for w in single_wrappers(runner.optim_wrapper)),
    ),
    Lever(
        "channels_last", "on by default on a GPU", "durable.levers.use_channels_last", _read_layout
    ),
    Lever(
        "fused_steps",
        "new runs on a GPU; optim_wrapper.optimizer.foreach=True turns it off",
        "durable.optimizer_groups.select_fused_steps",
        _read_fused,
    ),
    Lever(
        "compile",
        "off; True compiles the loss",
        "durable.levers.compile_loss",
        lambda runner: runner.cfg.get("compile") or False,
    ),
    Lever(
        "copies",
        "batches are copied to a GPU without waiting",
        "durable.levers.preprocess_without_waiting",
    ),
    Lever(
        "compile_blocks",
        "off; True compiles repeated blocks",
        "durable.levers.compile_blocks",
        lambda runner: runner.cfg.get("compile_blocks") or False,
    ),
    Lever(
        "cuda_graph",
        "off; True repeats the kernels of a step on one GPU",
        "durable.cuda_graph.GraphedStep",
        lambda runner: isinstance(getattr(runner.model, "train_step", None), GraphedStep),
    ),
    Lever(
        "strips",
        "class maps and losses in strips; model.type='EncoderDecoder' turns it off",
        "segmentors.strip_encoder_decoder.StripEncoderDecoder",
        lambda runner: getattr(unwrap_model(runner.model), "predicts_in_strips", bool)(),
    ),
    # Not of one run, or decided for each call.
    Lever(
        "transforms",
        "faster equal forms of two transforms",
        "datasets.checked_dataset.CheckedDataset",
    ),
    Lever(
        "lovasz",
        "LovaszLoss with NumPy's sort on a CPU",
        "segmentors.fast_lovasz.use_fast_lovasz",
    ),
    Lever("attention", "torch's fused kernels", "layers.fused_attention"),
    Lever("fast", "Predictor(fast=True) folds norms", "inference.fast_copy"),
)


class LeverHook(Hook):
    """Applies levers when weights are loaded and when the training begins, and logs what is used.

    A validation runs uncompiled: images of each size would compile again, up to torch's limit.
    """

    priority = "ABOVE_NORMAL"  # other hooks see the optimizer and the layout that are used

    def __init__(self):
        self.used: dict[str, Any] = {}

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        use_channels_last(runner)

    def before_train(self, runner) -> None:
        prepare_training(runner)
        for lever in LEVERS:
            value = None if lever.read is None else lever.read(runner)
            if value is not None:
                self.used[lever.key] = value
        parts = [f"{key}={value}" for key, value in self.used.items()]
        runner.logger.info(f"levers: {', '.join(parts)}")

    def before_val(self, runner) -> None:
        if self.used.get("compile_blocks"):
            eager_stance(True)

    def after_val(self, runner) -> None:
        if self.used.get("compile_blocks"):
            eager_stance(False)

    def after_train(self, runner) -> None:
        vars(unwrap_model(runner.model)).pop("train_step", None)

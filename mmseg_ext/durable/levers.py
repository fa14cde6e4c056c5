"""What makes a run fast: one table, applied at fixed stages, and printed at the start of a log.

Add a lever as a row of `LEVERS`. Its stage is the earliest moment at which it may be applied, and
the comments of the functions give the reason. `LeverHook` applies what a Runner of any class can
have; the other stages are called by `DurableRunner`. Levers that are decided for each call, in a
layer or a transform, are rows without functions: their stage names the module.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from mmengine.hooks import Hook, RuntimeInfoHook
from mmengine.model import is_model_wrapper
from torch import nn

from mmseg_ext.checkpoint.safe_loading import unwrap_model
from mmseg_ext.durable.cuda_graph import GraphedStep
from mmseg_ext.durable.optimizer_groups import (
    is_merged,
    merge_groups,
    select_fused_steps,
    single_wrappers,
)
from mmseg_ext.durable.without_waiting import WaitingInfoHook, pin_samples
from mmseg_ext.torch_versions import allows_cudnn_attention, eager_stance, set_cudnn_attention
from mmseg_ext.upstream import (
    converts_channels,
    copy_without_waiting,
    resumes,
    set_channel_conversion,
)

# Names of the classes of repeated blocks: of the ResNets of all OpenMMLab packages, and of ours.
_BLOCKS = {"BasicBlock", "Block", "Bottleneck", "InvertedResidual", "ManhattanBlock"}
# Packages whose layers were trained channels last: all but mmseg's DMHead, which raises an error.
_CHANNELS_LAST = {"mmcv", "mmengine", "mmseg", "mmseg_ext", "torch"}


class Lever(NamedTuple):
    """A way to make a run fast.

    `apply` gets what the stage has, and decides itself whether to do something. `read` gets the
    Runner when the training starts, and returns what the run then uses, or None where the lever
    has no meaning.
    """

    key: str  # of the config, or the name in the log
    about: str  # for `mmseg-ext env`
    stage: str
    apply: Callable[[Any], Any] | None = None
    read: Callable[[Any], Any] | None = None


def use_float32_precision(cfg: Any) -> None:
    if torch.cuda.is_available():  # on some CPUs it would change products
        torch.set_float32_matmul_precision(cfg.get("float32_matmul_precision", "highest"))


def limit_cudnn_trials(cfg: Any) -> None:
    """Let `cudnn_benchmark` try four kernels instead of ten: cuDNN compiles some of them first."""
    if torch.cuda.is_available():
        torch.backends.cudnn.benchmark_limit = 4


def forbid_cudnn_attention(cfg: Any) -> None:
    """Forbid it also in compiled programs and in layers of other packages.

    `mmseg_ext.layers.fused_attention` has the reasons.
    """
    if torch.cuda.is_available():
        set_cudnn_attention(False)


def pin_loaders(cfg: Any) -> None:
    for name in ("train_dataloader", "val_dataloader", "test_dataloader"):
        if torch.cuda.is_available() and cfg.get(name):
            cfg[name].setdefault("pin_memory", True)


def defer_losses(runner: Any) -> None:
    """Leave logged losses on a GPU until something reads them."""
    for i, hook in enumerate(runner.hooks):
        if type(hook) is RuntimeInfoHook:
            runner.hooks[i] = WaitingInfoHook()


def merge_equal_groups(wrapper: Any) -> None:
    # Before schedules are built, which replace `step`, too.
    for one in single_wrappers(wrapper):
        merge_groups(one.optimizer)


def use_channels_last(runner: Any) -> None:
    """Store weights in the layout of cuDNN's fastest kernels; results differ by rounding.

    At `weights`, because the state of the optimizer is loaded in the layout of the weights. At
    `train` for a run without a checkpoint: random weights are drawn in the order of the memory.
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


def _read_layout(runner: Any) -> str | bool:
    model = unwrap_model(runner.model)
    if any(p.ndim == 4 and not p.is_contiguous() for p in model.parameters()):
        return True
    untested = untested_layers(model)
    if torch.cuda.is_available() and "channels_last" not in runner.cfg and untested:
        return f"False (not tested with {', '.join(sorted(untested))}; try channels_last=True)"
    return False


def use_fused_steps(runner: Any) -> None:
    """Select torch's fused steps; a resumed run continues as it began."""
    if not resumes(runner):
        for one in single_wrappers(runner.optim_wrapper):
            select_fused_steps(one.optimizer, runner.model)


def compile_loss(runner: Any) -> None:
    """Compile a model's `loss`; mmengine's `train_step` would compile again in eight iterations."""
    model: Any = unwrap_model(runner.model)
    settings = runner.cfg.get("compile")
    if settings is True:
        settings = {}
    if isinstance(settings, dict) and hasattr(model, "loss"):
        model.loss = torch.compile(model.loss, **settings)
        runner.logger.info("compile: the first iterations are slow")


def copy_batches_without_waiting(runner: Any) -> None:
    if torch.cuda.is_available():
        model: Any = unwrap_model(runner.model)
        preprocess_without_waiting(model.data_preprocessor)


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


def compile_repeated_blocks(runner: Any) -> None:
    """Compile the repeated blocks of a network; blocks of equal shapes share the result.

    Compiling a complete network takes minutes.
    """
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
        settings = {} if settings is True else settings
        count = compile_blocks(unwrap_model(runner.model), **settings)
        runner.logger.info(f"compile_blocks: {count} blocks; the first iterations are slow")


def compile_blocks(model: nn.Module, **settings: Any) -> int:
    """Compile the repeated blocks of `model` for fixed shapes, and return their number.

    `settings` are arguments of `torch.compile`.
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


def graph_steps(runner: Any) -> None:
    """Let a GPU repeat the kernels of a step without Python; results are bit-equal."""
    if not runner.cfg.get("cuda_graph"):
        return
    if is_model_wrapper(runner.model) or not torch.cuda.is_available():
        runner.logger.warning("cuda_graph: needs one GPU and one process; runs without it")
    else:
        runner.model.train_step = GraphedStep(runner.model)


def _read_precision(runner: Any) -> str | None:
    if not torch.cuda.is_available():
        return None
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # of newer versions, if a user has set the precision of one backend
        return "set for each backend"


def _read_deferred(runner: Any) -> bool | None:
    if not torch.cuda.is_available():
        return None
    return any(type(hook) is WaitingInfoHook for hook in runner.hooks)


def _read_fused(runner: Any) -> bool:
    optimizers = [one.optimizer for one in single_wrappers(runner.optim_wrapper)]
    return all(group.get("fused") for one in optimizers for group in one.param_groups)


def _setting(key: str) -> Callable[[Any], Any]:
    return lambda runner: runner.cfg.get(key) or False


LEVERS = (
    # The Runner is not built yet.
    Lever(
        "float32_matmul_precision",
        "TF32 on a GPU with 'high', the default of our configs",
        "config",
        use_float32_precision,
        _read_precision,
    ),
    Lever(
        "cudnn_benchmark",
        "env_cfg.cudnn_benchmark=True tries four kernels of each convolution",
        "config",
        limit_cudnn_trials,
        lambda runner: torch.backends.cudnn.benchmark if torch.cuda.is_available() else None,
    ),
    Lever(
        "cudnn_attention",
        "off on a GPU: its gradients can be NaN",
        "config",
        forbid_cudnn_attention,
        lambda runner: allows_cudnn_attention() if torch.cuda.is_available() else None,
    ),
    Lever(
        "pin_memory",
        "train_dataloader.pin_memory, on by default on a GPU",
        "config",
        pin_loaders,
        lambda runner: runner.train_dataloader.pin_memory,
    ),
    # A DurableRunner has its hooks.
    Lever(
        "deferred_losses",
        "logged losses stay on a GPU until something reads them",
        "hooks",
        defer_losses,
        _read_deferred,
    ),
    # A DurableRunner has built a loader.
    Lever("pinned_labels", "label maps are pinned with the images", "loader", pin_samples),
    # A DurableRunner has built its optimizer.
    Lever(
        "merged_groups",
        "parameter groups with equal settings are computed together",
        "optimizer",
        merge_equal_groups,
        lambda runner: all(is_merged(w.optimizer) for w in single_wrappers(runner.optim_wrapper)),
    ),
    # A checkpoint has filled the weights, and the state of the optimizer is not loaded yet.
    Lever("channels_last", "on by default on a GPU", "weights", use_channels_last),
    # A DurableRunner has loaded everything, and has not called a hook's `before_train`.
    Lever(
        "fused_steps",
        "new runs on a GPU; optim_wrapper.optimizer.foreach=True turns it off",
        "loaded",
        use_fused_steps,
        _read_fused,
    ),
    Lever("compile", "off; True compiles the loss", "loaded", compile_loss, _setting("compile")),
    # The training begins.
    Lever("channels_last", "", "train", use_channels_last, _read_layout),
    Lever(
        "copies",
        "batches are copied to a GPU without waiting",
        "train",
        copy_batches_without_waiting,
    ),
    Lever(
        "compile_blocks",
        "off; True compiles repeated blocks",
        "train",
        compile_repeated_blocks,
        _setting("compile_blocks"),
    ),
    Lever(
        "cuda_graph",
        "off; True repeats the kernels of a step on one GPU",
        "train",
        graph_steps,
        lambda runner: isinstance(getattr(runner.model, "train_step", None), GraphedStep),
    ),
    # Decided for each call.
    Lever(
        "strips",
        "class maps and losses in strips; model.type='EncoderDecoder' turns it off",
        "mmseg_ext.segmentors.strip_encoder_decoder",
        read=lambda runner: hasattr(unwrap_model(runner.model), "predicts_in_strips"),
    ),
    Lever(
        "transforms", "faster equal forms of two transforms", "mmseg_ext.datasets.checked_dataset"
    ),
    Lever("attention", "torch's fused kernels", "mmseg_ext.layers.fused_attention"),
    Lever("fast", "Predictor(fast=True) folds norms", "mmseg_ext.inference.fast_copy"),
)


def apply_levers(stage: str, run: Any) -> None:
    """Apply the levers of a stage to what it has: a config, a loader, a wrapper or a Runner."""
    for lever in LEVERS:
        if lever.stage == stage and lever.apply is not None:
            lever.apply(run)


class LeverHook(Hook):
    """Applies levers when weights are loaded and when the training begins, and logs what is used.

    A validation runs uncompiled: images of each size would compile again, up to torch's limit.
    """

    priority = "ABOVE_NORMAL"  # other hooks see the optimizer and the layout that are used

    def __init__(self):
        self.used: dict[str, Any] = {}

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        apply_levers("weights", runner)

    def before_train(self, runner) -> None:
        apply_levers("train", runner)
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

"""Faster training steps, each lever with its own key in the config.

- `channels_last`: convolutions compute in the memory layout of cuDNN's fastest kernels. Results
  differ by rounding. On a GPU this is the default for models of mmsegmentation and of this package.
- `compile_blocks = True`, or a dict of arguments of `torch.compile`: the repeated blocks of a
  network are compiled, and blocks of equal shapes share the result. Compiling a complete network
  takes minutes. mmengine's Runner would pass an entry of `compile` on to torch.
- `cuda_graph = True`: a GPU repeats the kernels of a step without Python. Results are bit-equal.
"""

import contextlib
import copy
import gc
import random
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.model import BaseModel, is_model_wrapper
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from mmseg_ext.checkpoint.safe_loading import unwrap_model
from mmseg_ext.errors import LaunchError
from mmseg_ext.torch_versions import eager_stance
from mmseg_ext.upstream import (
    accumulates_gradients,
    converts_channels,
    copy_without_waiting,
    set_channel_conversion,
)

# Names of the classes of repeated blocks: of the ResNets of all OpenMMLab packages, and of ours.
_BLOCKS = {"BasicBlock", "Block", "Bottleneck", "InvertedResidual", "ManhattanBlock"}
# Packages whose layers were trained channels last: all but mmseg's DMHead, which raises an error.
_CHANNELS_LAST = {"mmcv", "mmengine", "mmseg", "mmseg_ext", "torch"}
# Steps before a capture, in which kernels are chosen and caches filled.
_WARM_UP = 3


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


def preprocess_without_waiting(preprocessor: nn.Module) -> None:
    """Let a data preprocessor copy batches and swap BGR and RGB without waiting for a GPU.

    torch keeps pinned memory until it is copied, and copies other memory at once.
    """
    copy_without_waiting(preprocessor)
    own = type(preprocessor).forward.__qualname__ == "SegDataPreProcessor.forward"
    if own and converts_channels(preprocessor):
        preprocessor.register_forward_pre_hook(_swap_channels)
        preprocessor.register_forward_hook(_allow_swapping, always_call=True)


def _swap_channels(preprocessor: Any, args: tuple) -> tuple:
    """Swap the channels as mmsegmentation, which copies an index to the GPU for each image."""
    data, *others = args
    data = preprocessor.cast_data(data)
    if converts_channels(preprocessor) and len(data["inputs"][0]) == 3:
        data["inputs"] = [image.flip(0) for image in data["inputs"]]
    set_channel_conversion(preprocessor, False)
    return data, *others


def _allow_swapping(preprocessor: nn.Module, args: tuple, batch: dict) -> None:
    set_channel_conversion(preprocessor, True)


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


class CudaGraph:
    """The recorded kernels of a step, and the stream of the steps without a graph.

    A capture needs a separate stream. The steps before use the same one, because torch adds up a
    parameter's gradients on the stream that it first saw.
    """

    def __init__(self):
        self._stream = torch.cuda.Stream()
        self._graph = torch.cuda.CUDAGraph()

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Run on the stream, after the work before, and before the work that follows."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def capture(self, function: Callable[[], Any]) -> Any:
        """Record the kernels of `function` without running them, and return its result."""
        # Otherwise a data loader's thread could not pin memory.
        mode = "thread_local"
        with torch.cuda.graph(self._graph, stream=self._stream, capture_error_mode=mode):
            return function()

    def replay(self) -> None:
        """Run the kernels, which read and write the same memory each time."""
        self._graph.replay()


class _Captured(NamedTuple):
    """A step in a graph: the memory that it reads and writes."""

    batch: dict  # read
    losses: dict  # written
    gradients: list[Tensor | None]  # written
    # Caches could free what the graph reads, such as the matrices of a resize.
    alive: list[Tensor]


class GraphedStep:
    """`model.train_step` with the forward and backward pass in a CUDA graph.

    The first steps run without a graph. Then a step is captured, and repeated for each batch of the
    same shapes. Batches of other shapes run without it. The optimizer is outside, so schedules,
    clipping, and hooks of the optimizer and of the model work as before. Results are bit-equal.

    A repeated step runs no Python code of the model: hooks of its layers are not called, and a loss
    that changes with the iteration does not change. A step is captured again if weights are
    moved or frozen, and if a layer switches between training and evaluation.

    Args:
        graph: a class like `CudaGraph`; None for a model on a CPU, where no step is captured.

    Raises:
        LaunchError: from a step that cannot be captured.
    """

    def __init__(self, model: BaseModel, graph: Callable[[], Any] | None = None):
        self._model = model
        self._parameters = list(model.parameters())
        self._tensors = [*self._parameters, *model.buffers()]
        self._modules = list(model.modules())
        on_gpu = any(parameter.is_cuda for parameter in self._parameters)
        self._new_graph = graph
        if graph is None and on_gpu:
            self._new_graph = CudaGraph
        self._graph: Any = None
        self._captured: _Captured | None = None
        self._state: list | None = None  # of the model, at the last step
        self._steps = 0  # since the state changed
        self._reported = False

    def __call__(self, data: Any, optim_wrapper: OptimWrapper) -> dict[str, Tensor]:
        """Train on a batch, and return the values for the log."""
        if self._new_graph is None:
            return BaseModel.train_step(self._model, data, optim_wrapper)
        if self._state is None:
            _require_capturable(self._model, optim_wrapper)
        with optim_wrapper.optim_context(self._model):
            batch = self._model.data_preprocessor(data, True)
        state = self._current_state()
        if state != self._state:
            self._graph = self._new_graph()
            self._captured = None
            self._state = state
            self._steps = 0
        self._steps += 1
        if self._steps <= _WARM_UP:
            return self._run(batch, optim_wrapper)
        if self._captured is None:
            self._captured = self._capture(batch, optim_wrapper)
        shapes, captured_shapes = _shapes(batch), _shapes(self._captured.batch)
        if shapes != captured_shapes:
            self._report(shapes, captured_shapes)
            return self._run(batch, optim_wrapper)
        return self._replay(self._captured, batch, optim_wrapper)

    def _current_state(self) -> list:
        """Return what a graph takes for granted: places of tensors, and modes of layers."""
        places = [(tensor.data_ptr(), tensor.requires_grad) for tensor in self._tensors]
        modes = [module.training for module in self._modules]
        return places + modes

    def _run(self, batch: dict, optim_wrapper: OptimWrapper) -> dict[str, Tensor]:
        """Train without a graph, on the stream of the captures."""
        with self._graph.stream():
            with optim_wrapper.optim_context(self._model):
                losses = self._model(**batch, mode="loss")
            loss, log_vars = self._model.parse_losses(losses)
            optim_wrapper.update_params(loss)
        return log_vars

    def _capture(self, batch: dict, optim_wrapper: OptimWrapper) -> _Captured:
        static = copy.deepcopy(batch)

        def forward_and_backward() -> tuple[dict, list[Tensor | None]]:
            for parameter in self._parameters:
                parameter.grad = None  # else the graph would add to it
            with optim_wrapper.optim_context(self._model):
                losses: Any = self._model.forward(**static, mode="loss")  # without its hooks
            self._model.parse_losses(losses)[0].backward()
            losses = tree_map_only(Tensor, Tensor.detach, losses)
            return losses, [parameter.grad for parameter in self._parameters]

        before = _random_state_of_host()
        buffers = list(self._model.buffers())
        try:
            losses, gradients = self._graph.capture(forward_and_backward)
        except Exception as error:
            raise _refusal(self._model, _first_error(error)) from error
        if _random_state_of_host() != before:
            raise _refusal(self._model, "it draws random numbers on the CPU")
        for buffer, buffer_before in zip(self._model.buffers(), buffers, strict=True):
            if buffer is not buffer_before:
                raise _refusal(self._model, "a layer replaces its buffers")
        alive = [x for x in gc.get_objects() if issubclass(type(x), Tensor) and x.is_cuda]
        return _Captured(static, losses, gradients, alive)

    def _replay(
        self, captured: _Captured, batch: dict, optim_wrapper: OptimWrapper
    ) -> dict[str, Tensor]:
        torch._foreach_copy_(_tensors_of(captured.batch), _tensors_of(batch))
        self._graph.replay()
        for parameter, gradient in zip(self._parameters, captured.gradients, strict=True):
            parameter.grad = gradient  # the optimizer has removed it
        # The model's hooks see this batch and its losses.
        self._model.forward = lambda *args, **kwargs: captured.losses
        try:
            losses = self._model(**batch, mode="loss")
        finally:
            del self._model.forward
        loss, log_vars = self._model.parse_losses(losses)
        # The gradients exist, so this backward pass ends at the loss.
        optim_wrapper.update_params(loss.detach().requires_grad_())
        return log_vars

    def _report(self, shapes: list[tuple], captured_shapes: list[tuple]) -> None:
        """Log once that a batch has another shape than the captured one."""
        if self._reported:
            return
        self._reported = True
        which = "other"
        if shapes and captured_shapes:
            which = f"{shapes[0][0]} and not {captured_shapes[0][0]}"  # of the images
        print_log(f"cuda_graph: runs without it for shapes {which}", logger="current")


def _require_capturable(model: BaseModel, optim_wrapper: OptimWrapper) -> None:
    """Raise a LaunchError for steps that are more than forward, backward and optimizer."""
    scaler = getattr(optim_wrapper, "loss_scaler", None)
    if type(model).train_step is not BaseModel.train_step:
        raise _refusal(model, "it has its own train_step")
    if isinstance(optim_wrapper, OptimWrapperDict):
        raise _refusal(model, "it has several optimizers")
    if accumulates_gradients(optim_wrapper):
        raise _refusal(model, "optim_wrapper.accumulative_counts is not 1")
    if scaler is not None and scaler.is_enabled():
        raise _refusal(model, "optim_wrapper.dtype='float16' scales the loss; use 'bfloat16'")


def _refusal(model: BaseModel, reason: str) -> LaunchError:
    name = type(model).__name__
    return LaunchError(f"cuda_graph=True: cannot capture {name}: {reason}; set cuda_graph=False")


def _first_error(error: BaseException) -> str:
    """Return the error that ended a capture, and its line outside torch."""
    while error.__context__ is not None:  # ending the capture raises another error
        error = error.__context__
    package = str(Path(torch.__file__).parent)
    place = "torch"
    for frame in traceback.extract_tb(error.__traceback__):
        if not frame.filename.startswith(package):
            place = f"{Path(frame.filename).name}:{frame.lineno}"  # of the last such frame
    first_line = str(error).partition("\n")[0]
    return f"{place}: {type(error).__name__}: {first_line}"


def _random_state_of_host() -> tuple:
    """Return the states of the generators on the CPU, as values to compare."""
    numpy_state: Any = np.random.get_state()
    kind, keys, *rest = numpy_state
    return random.getstate(), kind, keys.tobytes(), rest, torch.get_rng_state().tolist()


def _tensors_of(batch: Any) -> list[Tensor]:
    """Return the tensors of a batch and of its samples."""
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, BaseDataElement):
        batch = dict(sorted(batch.items()))  # the fields are a set
    if isinstance(batch, dict):
        batch = list(batch.values())
    if not isinstance(batch, list | tuple):
        return []
    tensors = []
    for part in batch:
        tensors.extend(_tensors_of(part))
    return tensors


def _shapes(batch: dict) -> list[tuple]:
    return [(tuple(x.shape), x.dtype) for x in _tensors_of(batch)]


class AccelerationHook(Hook):
    """Applies `channels_last`, `compile_blocks` and `cuda_graph` of the config."""

    def __init__(self):
        self._compiled = False  # blocks

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        # Not later: the state of the optimizer is loaded in the layout of the weights.
        self._set_layout(runner)

    def _set_layout(self, runner) -> None:
        model = unwrap_model(runner.model)
        default = torch.cuda.is_available() and not untested_layers(model)
        if runner.cfg.get("channels_last", default):
            to_channels_last(model)

    def before_train(self, runner) -> None:
        # Not earlier: random weights are drawn in the order of the memory.
        self._set_layout(runner)
        model: Any = unwrap_model(runner.model)
        if torch.cuda.is_available():
            preprocess_without_waiting(model.data_preprocessor)
        if torch.cuda.is_available() and "channels_last" not in runner.cfg:
            for name in sorted(untested_layers(model)):
                runner.logger.info(f"channels_last: not tested with {name}; try channels_last=True")
        compiles_blocks = runner.cfg.get("compile_blocks")
        if compiles_blocks or runner.cfg.get("compile"):
            eager_stance(False)  # an earlier run of the process may have ended in a validation
            torch.compiler.reset()  # torch counts compilations up to a limit, of all runs
        if compiles_blocks:
            self._compile_blocks(runner)
        if runner.cfg.get("cuda_graph"):
            if is_model_wrapper(runner.model) or not torch.cuda.is_available():
                runner.logger.warning("cuda_graph: needs one GPU and one process; runs without it")
            else:
                model.train_step = GraphedStep(model)

    def _compile_blocks(self, runner) -> None:
        settings = runner.cfg.compile_blocks
        if settings is True:
            settings = {}
        count = compile_blocks(unwrap_model(runner.model), **settings)
        self._compiled = True
        runner.logger.info(f"compile_blocks: {count} blocks; the first iterations are slow")

    def before_val(self, runner) -> None:
        if self._compiled:  # images of each size would compile again, up to torch's limit
            eager_stance(True)

    def after_val(self, runner) -> None:
        if self._compiled:
            eager_stance(False)

    def after_train(self, runner) -> None:
        vars(unwrap_model(runner.model)).pop("train_step", None)

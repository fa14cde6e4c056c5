"""Training steps in a CUDA graph: a GPU repeats the kernels of a step without Python."""

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
from mmengine.logging import print_log
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.structures import BaseDataElement
from torch import Tensor
from torch.utils._pytree import tree_map_only

from mmseg_ext.errors import LaunchError
from mmseg_ext.upstream import accumulates_gradients

# Steps before a capture, in which kernels are chosen and caches filled.
_WARM_UP = 3


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
        if self._state is None:  # the first step
            self._require_capturable(optim_wrapper)
        with optim_wrapper.optim_context(self._model):
            batch = self._model.data_preprocessor(data, True)
        # A graph takes for granted where tensors are, which are trained, and the modes of layers.
        state: list = [(tensor.data_ptr(), tensor.requires_grad) for tensor in self._tensors]
        state += [module.training for module in self._modules]
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
            if not self._reported:  # once
                self._reported = True
                which = "other"
                if shapes and captured_shapes:
                    which = f"{shapes[0][0]} and not {captured_shapes[0][0]}"  # of the images
                print_log(f"cuda_graph: runs without it for shapes {which}", logger="current")
            return self._run(batch, optim_wrapper)
        return self._replay(self._captured, batch, optim_wrapper)

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
            raise self._refusal(_first_error(error)) from error
        if _random_state_of_host() != before:
            raise self._refusal("it draws random numbers on the CPU")
        for buffer, buffer_before in zip(self._model.buffers(), buffers, strict=True):
            if buffer is not buffer_before:
                raise self._refusal("a layer replaces its buffers")
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

    def _require_capturable(self, optim_wrapper: OptimWrapper) -> None:
        """Raise a LaunchError for steps that are more than forward, backward and optimizer."""
        scaler = getattr(optim_wrapper, "loss_scaler", None)
        if type(self._model).train_step is not BaseModel.train_step:
            raise self._refusal("it has its own train_step")
        if isinstance(optim_wrapper, OptimWrapperDict):
            raise self._refusal("it has several optimizers")
        if accumulates_gradients(optim_wrapper):
            raise self._refusal("optim_wrapper.accumulative_counts is not 1")
        if scaler is not None and scaler.is_enabled():
            raise self._refusal("optim_wrapper.dtype='float16' scales the loss; use 'bfloat16'")

    def _refusal(self, reason: str) -> LaunchError:
        name = type(self._model).__name__
        return LaunchError(
            f"cuda_graph=True: cannot capture {name}: {reason}; set cuda_graph=False"
        )


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

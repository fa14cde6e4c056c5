"""One action for all processes of a run."""

from collections.abc import Callable
from typing import Any, TypeVar

from mmengine import dist

from mmseg_ext.errors import CheckpointError, LaunchError, RunError

T = TypeVar("T")


def on_rank_zero(action: Callable[[], T]) -> T:
    """Run `action` on rank 0 and return its result, or raise its error, on every rank.

    Other ranks raise a RunError for an error that is neither a LaunchError nor a CheckpointError.
    """
    result, error = None, None
    if dist.is_main_process():
        try:
            result = action()
        except Exception as raised:  # of any kind, or the other ranks would wait
            error = raised
    # An error of another type may not survive pickling.
    own = error is None or isinstance(error, LaunchError | CheckpointError)
    sent: list[Any] = [
        result,
        error if own else RunError(f"rank 0: {type(error).__name__}: {error}"),
    ]
    dist.broadcast_object_list(sent)
    error = error or sent[1]
    if error is not None:
        raise error
    return sent[0]

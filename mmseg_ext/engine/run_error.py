"""The errors of a run that has started."""

SAFE_UNTIL_NOW = (
    "the checkpoints written before are untouched, --resume goes on from the last of them"
)


class RunError(RuntimeError):
    """A run that had to stop. The message is complete: the tools print it, no trace."""


class NonFiniteLoss(RunError):
    """A loss that is infinite or not a number, or too many skipped steps in a row."""


class StoppedBySignal(SystemExit):
    """The run saved its state and ends with status 0, as the signal asked."""

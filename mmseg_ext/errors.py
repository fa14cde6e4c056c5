"""The errors that users meet. Each message is complete: the commands print it without a trace."""

SAFE_UNTIL_NOW = (
    "the checkpoints written before are untouched, --resume goes on from the last of them"
)


class StackError(ImportError):
    """The mm stack is missing, broken or too old. Its message is one line with the remedy."""


class LaunchError(ValueError):
    """A run that cannot start as asked. The message is complete: the tools print it, no trace."""


class RunError(RuntimeError):
    """A run that had to stop. The message is complete: the tools print it, no trace."""


class NonFiniteLoss(RunError):
    """A loss that is infinite or not a number, or too many skipped steps in a row."""


class StoppedBySignal(SystemExit):
    """The run saved its state and ends with status 0, as the signal asked."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used as asked."""


class UnsafeCheckpoint(CheckpointError):
    """A file that only unpickling could read: it could run code, so it is refused."""


class BrokenCheckpoint(CheckpointError):
    """A file that is truncated, changed or no checkpoint at all."""


class PartialWeights(CheckpointError):
    """Weights that fill too little of a model."""


class NonFiniteWeights(CheckpointError):
    """Weights that are infinite or not a number."""


class CheckpointNotWritten(CheckpointError):
    """A checkpoint that could not be written; the ones written before are untouched."""


class NotWritten(OSError):
    """A file that could not be written; what stood under its name before is untouched."""

    def __str__(self) -> str:
        return f"{self.filename} cannot be written: {self.strerror}"


class UnreadableFileError(OSError):
    """A file that is missing, empty, truncated or no image; the message starts with its path."""


class MissingFileError(UnreadableFileError):
    """A file that is not there."""


class MissingDataError(FileNotFoundError):
    """Data that is not where a config says; the message holds the layout and the command."""


class LabelError(ValueError):
    """A label map that loading would corrupt; the message starts with its path."""


class CannotCheckError(RuntimeError):
    """The check cannot run; the message says why."""


class ExportError(ValueError):
    """A model that cannot be exported as asked; the message says why."""

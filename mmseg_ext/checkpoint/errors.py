"""What can be wrong with a checkpoint. Each message is complete: the file and the remedy."""


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

"""The error of a run that cannot start."""


class LaunchError(ValueError):
    """A run that cannot start as asked. The message is complete: the tools print it, no trace."""

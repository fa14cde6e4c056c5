"""Keep long or repeated lines of mmengine off the terminal; the log files have them."""

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator

from mmengine.logging import print_log

# Long records of the start: the environment, the config, the order of the hooks, and the settings
# of each parameter.
_LONG = ("-----", "Config:", "Hooks will be executed in the following order", "paramwise_options")
_LONG += ("Distributed training is not used",)
# Warnings of runs with default settings, which nobody can act on.
_USELESS = re.compile(
    r'"FileClient" will be|"HardDiskBackend" is the alias|The prefix is not set in metric|'
    r"Default ``avg_non_ignore``|The draw is False|Fail to import ``MultiScaleDeformable|"
    r"`optimizer.step\(\)` has been overridden"
)


def quiet_terminal(logger: logging.Logger, beginnings: tuple[str, ...] = _LONG) -> None:
    """Hide records that begin with these texts on the logger's terminal, but not in its files.

    By default these are the four hundred lines before the first iteration. Useful warnings are
    shown.
    """

    def is_shown(record: logging.LogRecord) -> bool:
        text = record.getMessage().lstrip()
        if record.levelno > logging.INFO:
            return not _USELESS.search(text)
        return not text.startswith(beginnings)

    for handler in logger.handlers:
        if not isinstance(handler, logging.FileHandler):
            handler.addFilter(is_shown)


@contextlib.contextmanager
def logged_warnings() -> Iterator[None]:
    """Write Python's warnings to mmengine's current log, and so to its file."""

    def log(message, category, filename, lineno, file=None, line=None) -> None:
        text = f"{filename}:{lineno}: {category.__name__}: {message}"
        print_log(text, logger="current", level=logging.WARNING)

    with warnings.catch_warnings():
        warnings.showwarning = log  # as Python's documentation allows
        yield

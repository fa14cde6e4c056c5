"""Keep long or repeated lines of mmengine off the terminal; the log files have them."""

import logging

# Long records of the start: the environment, the config, the order of the hooks, and the settings
# of each parameter.
_LONG = ("-----", "Config:", "Hooks will be executed in the following order", "paramwise_options")


def quiet_terminal(logger: logging.Logger, beginnings: tuple[str, ...] = _LONG) -> None:
    """Hide records that begin with these texts on the logger's terminal, but not in its files.

    By default these are the four hundred lines before the first iteration. Warnings are shown.
    """

    def is_shown(record: logging.LogRecord) -> bool:
        text = record.getMessage().lstrip()
        return record.levelno > logging.INFO or not text.startswith(beginnings)

    for handler in logger.handlers:
        if not isinstance(handler, logging.FileHandler):
            handler.addFilter(is_shown)

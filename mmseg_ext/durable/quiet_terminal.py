"""Keep the four hundred lines that mmengine logs before the first iteration off the terminal."""

import logging

# Long records of the start: the environment, the config, the order of the hooks, and the settings
# of each parameter.
_LONG = ("-----", "Config:", "Hooks will be executed in the following order", "paramwise_options")


def quiet_terminal(logger: logging.Logger) -> None:
    """Hide the long records of the start on the logger's terminal, but not in its files."""

    def is_short(record: logging.LogRecord) -> bool:
        return record.levelno > logging.INFO or not record.getMessage().lstrip().startswith(_LONG)

    for handler in logger.handlers:
        if not isinstance(handler, logging.FileHandler):
            handler.addFilter(is_short)

"""The errors that users meet. Each message is complete: the commands print it without a traceback.

Other invalid input raises `ValueError`. Messages shorten other errors and long lists the same way.
"""

import re
from collections.abc import Sequence

_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # colors, as of torch's exporter
SHOWN = 8  # names or values in a message
RESUME_HINT = "the checkpoints written before are complete; --resume continues from the newest"


class StackError(ImportError):
    """A missing, broken or too old package of the OpenMMLab stack."""


class LaunchError(ValueError):
    """A run that cannot start with these settings."""


class RunError(RuntimeError):
    """A run that had to stop: a loss or gradient that is not finite, a failed save, ..."""


class CheckpointError(ValueError):
    """A checkpoint that is unsafe, damaged, does not fit the model, or cannot be written."""


class NotWritten(OSError):
    """A file that could not be written; the file that had its name before is unchanged."""

    def __str__(self) -> str:
        return f"{self.filename}: cannot be written ({self.strerror})"


class UnreadableFileError(OSError):
    """A missing, empty or truncated file, or no image; the message starts with its path."""


class MissingDataError(FileNotFoundError):
    """Data that is not where a config expects it; the message has the files and the command."""


class LabelError(ValueError):
    """A label map that loading would corrupt; the message starts with its path."""


def pointer_problem(data: bytes) -> str:
    """Return what is wrong if Git stored a pointer or changed line ends of a file, else nothing."""
    if data.startswith(b"version https://git-lfs"):
        return "is a pointer of Git LFS instead of the file; run: git lfs pull"
    if data.startswith((b"\x89PNG\n\x1a", b"\x89PNG\r\r\n")):
        return "is a PNG that was changed as if it were text; get the file again in another way"
    return ""


def labels_outside(num_classes: int, found: object, expected: str, ignored: int) -> str:
    """Return what is wrong with labels that are neither one of the classes nor ignored."""
    return (
        f"values outside the {num_classes} classes: {found}; expected {expected}, or {ignored} for "
        "ignored pixels"
    )


def one_line(error: object, length: int | None = None) -> str:
    """Return the text of an error, or of anything else, without line breaks and terminal codes.

    Args:
        length: cut the text after so many characters.
    """
    return " ".join(_TERMINAL_CODE.sub("", str(error)).split())[:length]


def short(text: str, most: int = 60) -> str:
    """Return a text with at most so many characters."""
    return text if len(text) <= most else text[: most - 3] + "..."


def format_error(error: BaseException) -> str:
    """Return 'KeyError: ...' without line breaks, cut after 300 characters."""
    message: object = error
    if isinstance(error, KeyError) and error.args:
        message = error.args[0]  # the text of a KeyError is its `repr`
    return short(one_line(f"{type(error).__name__}: {message}"), 300)


def join_names(names: Sequence[str], shown: int = SHOWN) -> str:
    """Return the first names, by default eight, and how many more there are: `a, b, 3 more`."""
    parts = list(names[:shown])
    if len(names) > shown:
        parts.append(f"{len(names) - shown} more")
    return ", ".join(parts)

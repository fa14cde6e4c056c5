"""Checks of messages by their parts, `WHERE: WHAT; TODO`, so that their words are free.

`model.num_classes=2: the labels contain the value 2; set it to 3` is checked by its file or key
(`model.num_classes=2`), its values (2), and the next step that it names (3):

    with raises_message(LaunchError, 2, where="model.num_classes=2", todo="3"):
        build(config)
"""

import re
from contextlib import contextmanager

import pytest


def check_message(text, *values, where="", todo=""):
    """Fail if a message lacks one of its parts.

    Args:
        values: what the message must contain, as words of their own: 3 is not found in 30 or 3.png.
        where: the file or key with which the message starts.
        todo: what the last step after a semicolon contains; True is any text.
    """
    text = str(text)
    assert text.startswith(str(where)), f"{text!r} does not start with {where!r}"
    for value in values:
        assert _contains(text, value), f"{value!r} is not in {text!r}"
    if todo:
        step = text.partition("; ")[2]
        assert step, f"{text!r} names no next step"
        assert todo is True or _contains(step, todo), f"{todo!r} is not in {step!r}"


def _contains(text, value):
    """Return whether the value is in the text, and no part of a longer word, number or name."""
    value = str(value)
    before = r"(?<!\w)(?<!\w\.)" if re.match(r"\w", value) else ""
    after = r"(?!\w|\.\w)" if re.search(r"\w$", value) else ""
    return re.search(f"{before}{re.escape(value)}{after}", text) is not None


@contextmanager
def raises_message(kind, *values, where="", todo=""):
    """Expect an error of this kind with these parts, as `check_message`; yield what was caught."""
    with pytest.raises(kind) as caught:
        yield caught
    check_message(caught.value, *values, where=where, todo=todo)


@contextmanager
def warns_message(kind, *values, where="", todo=""):
    """Expect a warning of this kind with these parts; yield all warnings."""
    with pytest.warns(kind) as caught:
        yield caught
    texts = [str(warning.message) for warning in caught]
    found = [text for text in texts if all(_contains(text, value) for value in values)]
    assert found, f"no warning has {values}: {texts}"
    check_message(found[0], where=where, todo=todo)


def lines_with(text, *values):
    """Return the lines of a text that contain all of the values, as words of their own."""
    lines = text.splitlines()
    return [line for line in lines if all(_contains(line, value) for value in values)]


def resumed_iterations(log):
    """Return the iterations at which mmengine's Runner resumed, by the lines of its log."""
    return [int(number) for number in re.findall(r"resumed epoch: \d+, iter: (\d+)", log)]

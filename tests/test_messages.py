"""The checks of messages find a missing part, whatever the words are."""

import pytest

from mmseg_ext.errors import LaunchError
from tests.messages import check_message, lines_with, raises_message, resumed_iterations

TEXT = "model.num_classes=2: the labels have 30 values and 4.5; set it to 3 with --cfg-options"


def test_all_parts_are_found():
    check_message(TEXT, 2, 30, 4.5, where="model.num_classes=2: ", todo="--cfg-options")
    check_message(TEXT, todo=3)
    check_message(LaunchError(TEXT), todo=True)


@pytest.mark.parametrize(
    ("text", "values", "parts"),
    [
        (TEXT, (3.0,), {}),
        (TEXT, (4,), {}),  # of 4.5
        (TEXT, ("num_classes",), {}),  # of a longer key
        (TEXT, ("cfg",), {"where": "num_classes"}),
        (TEXT, (), {"todo": 30}),
        ("model.num_classes=2: has 30 values", (30,), {"todo": True}),
    ],
)
def test_a_missing_part_fails(text, values, parts):
    with pytest.raises(AssertionError):
        check_message(text, *values, **parts)


def test_another_error_fails():
    with pytest.raises(pytest.fail.Exception), raises_message(LaunchError, 2):
        pass
    with pytest.raises(AssertionError), raises_message(LaunchError, 5):
        raise LaunchError(TEXT)


def test_lines_of_a_log():
    log = "resumed epoch: 0, iter: 4\na/iter_4.pth: 7 of 8\nresumed epoch: 1, iter: 12\n"
    assert resumed_iterations(log) == [4, 12]
    assert lines_with(log, "iter_4.pth:", 7, 8) == ["a/iter_4.pth: 7 of 8"]
    assert not lines_with(log, "iter_4", 7)

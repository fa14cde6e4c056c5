"""Texts of messages: errors of several lines, and long lists of names."""

import pytest

from mmseg_ext.errors import join_names, one_line


def test_an_error_of_several_lines_becomes_one():
    error = ValueError("shapes differ:\n\tmine  (1, 2)\n\ttheirs (3,)\n")
    assert one_line(error) == "shapes differ: mine (1, 2) theirs (3,)"
    assert one_line(error, 6) == "shapes"
    assert one_line(ValueError()) == ""
    assert one_line("\x1b[1;96m[torch.onnx]\x1b[0m failed\x1b[K", 19) == "[torch.onnx] failed"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a, b"),
        (["a", "b", "c"], "a, b, 1 more"),
        (list("abcde"), "a, b, 3 more"),
    ],
)
def test_a_list_of_names_ends_with_the_number_of_the_others(names, text):
    assert join_names(names, 2) == text

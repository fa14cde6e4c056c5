"""The steps of CONTRIBUTING.md work in a copy of the repository."""

import re
import shutil
import sys
from pathlib import Path

from tests.engine.runs import ROOT, copy_tree, run
from tests.test_guides import FILE

NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".mim", "__pycache__", "work_dirs", "build", "site"
)
LINES = re.compile(r"^```diff\n(.*?)^```$", re.M | re.S)
CONCERNED = (
    "tests/layers/test_foo.py",
    "tests/layers/test_every_layer.py::test_no_layer_is_left_out",
    "tests/layers/test_every_layer.py::test_memory_format_is_kept[foo]",
    "tests/decode_heads/test_every_head.py",
    "tests/test_configs.py::test_name_and_numbers_agree[foo_r101_ade20k_160k]",
    "tests/test_configs.py::test_one_training_step[foo_r101_ade20k_160k]",
    "tests/test_packaging.py::test_metafiles_say_what_the_configs_say",
    "tests/own_dataset/test_foo.py",
    "tests/test_readme.py::test_what_a_document_names_exists[CONTRIBUTING.md]",
)

# One process for both: importing the stack takes longer than either.
TABLES_AND_TESTS = """
import sys
import pytest
from benchmarks.docs_tables import main
_, words, *tests = sys.argv
main(words.split())
sys.exit(pytest.main(["-v", *tests]))
"""


def change_lines(diff: str, folder: Path) -> None:
    """Apply the page's diff: a `+` line goes below the line before it and replaces a `-` line."""
    for line in diff.splitlines():
        if line[0] not in " +-":
            path = folder / line
            lines, at = path.read_text().splitlines(), None
            continue
        sign, text = line[0], line[1:]
        if sign == "+":
            lines.insert(at + 1, text)
            at += 1
        else:
            (at,) = (i for i, old in enumerate(lines) if old == text)
            if sign == "-":
                del lines[at]
                at -= 1
        path.write_text("\n".join(lines) + "\n")


def test_a_method_is_added_as_the_page_says(tmp_path):
    clone = tmp_path / "clone"
    copy_tree(ROOT, clone, NOT_COPIED)
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for match in FILE.finditer(text):
        assert not (clone / match["name"]).exists()
        (clone / match["name"]).write_text(match["text"])
    for diff in LINES.findall(text):
        change_lines(diff, clone)
    (words,) = re.findall(r"`python -m benchmarks\.docs_tables (--count \w+)`", text)
    for command in (
        ("-m", "ruff", "check", "."),
        ("-m", "ruff", "format", "--check", "."),
        ("-c", TABLES_AND_TESTS, words, *CONCERNED),
    ):
        result = run(sys.executable, *command, folder=clone, PYTHONPATH=str(clone))
        assert result.returncode == 0, result.stdout + result.stderr
    assert "model_zoo.md: written" in result.stdout
    assert "TestFooHead::test_loss_and_gradients PASSED" in result.stdout

"""What the README and the docs name exists: make targets, commands, files, links and pictures."""

import re
from pathlib import Path

import pytest

from mmseg_ext.commands import COMMANDS
from tests.test_guides import FILE

ROOT = Path(__file__).parents[1]
# Placeholders; the files that a page tells its reader to write are added.
PLACEHOLDERS = {
    "configs/NAME.py",
    "configs/classification/NAME.py",
    "mmseg_ext/converters/foo.py",
    "tests/decode_heads/test_foo_head.py",
}
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "projects").glob("*/README.md")),
]
FOLDERS = "tools|configs|docs|demo|mmseg_ext|tests|projects"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_document_names_exists(document):
    text = document.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"(?:^|`)make ([\w-]+)", text, re.M)) <= targets
    started = re.findall(r"(?:^|`)(?:mmseg-ext|python -m mmseg_ext) ([a-z_]+)", text, re.M)
    assert set(started) <= set(COMMANDS)
    files = set(re.findall(rf"(?<![\w/.-])((?:{FOLDERS})/[\w./-]+\.\w+)", text))
    files -= PLACEHOLDERS | {match["name"] for match in FILE.finditer(text)}
    assert not {name for name in files if not (ROOT / name).exists()}
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", text)
    assert not [link for link in links if not (document.parent / link).exists()]


def test_the_readme_names_the_two_commands_for_a_fresh_clone():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "`make demo`" in text and "`make test`" in text

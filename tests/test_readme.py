"""The README's commands exist: make targets, tools, configs and documents that it names."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# Files that the guides have their reader write (tests/test_guides.py follows them), a placeholder.
OF_THE_READER = {
    "configs/my_head.py",
    "configs/my_masa.py",
    "configs/ea_r18_fields.py",
    "configs/_base_/datasets/fields.py",
    "configs/NAME.py",
}
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "projects").glob("*/README.md")),
]


def test_the_two_commands_come_first():
    commands = re.findall(r"^make (\w+)", README, re.M)
    assert commands[:2] == ["demo", "test"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_make_targets_exist(document):
    targets = set(re.findall(r"^([a-z]\w*):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:^|`)make (\w+)", document.read_text(encoding="utf-8"), re.M))
    assert named <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_that_are_named_exist(document):
    text = document.read_text(encoding="utf-8")
    named = set(
        re.findall(
            r"(?<![\w/.-])((?:tools|configs|docs|demo|mmseg_ext|tests|projects)/[\w./-]+\.\w+)",
            text,
        )
    )
    assert not {name for name in named - OF_THE_READER if not (ROOT / name).exists()}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_pictures_exist(document):
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", text)
    assert not [link for link in links if not (document.parent / link).exists()]


def test_ci_runs_the_test_command_alone():
    script = (ROOT / ".ci" / "run").read_text()
    commands = [
        line for line in script.splitlines() if line and not line.startswith(("#", "set ", "cd "))
    ]
    assert commands == ["make test"]

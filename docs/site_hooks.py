"""What the site adds to mkdocs: root files as pages, links out of docs/, and missing docstrings."""

import functools
import logging
import re
from pathlib import Path

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
ROOT_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}

log = logging.getLogger("mkdocs.hooks")  # with --strict a warning fails the build


def on_files(files, config):
    """start.md is the front page; the changelog and the guide for contributors become pages."""
    start = files.get_file_from_path("start.md")
    files.remove(start)
    front = File(start.src_uri, start.src_dir, start.dest_dir, True, dest_uri="index.html")
    front.name = "index"
    files.append(front)
    for source, page in ROOT_PAGES.items():
        text = re.sub(r"\]\((?!https?:|#)", "](../", (ROOT / source).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text.replace("](../docs/", "](")))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links out of docs/ lead to a page of the site, or to the repository."""

    def link(match):
        path = match[1]
        if not (ROOT / path).exists():
            log.warning("%s links to %s, which does not exist", page.file.src_uri, path)
        return "](" + ROOT_PAGES.get(path, f"{config.repo_url}/blob/main/{path}")

    for name in re.findall(r"^::: mmseg_ext\.(\S+)", markdown, re.M):
        report_missing(package()[name])
    return re.sub(r"\]\(\.\./([^)#\s]+)", link, markdown)


@functools.cache
def package():
    return griffe.load("mmseg_ext", search_paths=[ROOT], docstring_parser="google")


def report_missing(listed):
    """Warn of public names of the reference without docstring, and of arguments that are none."""
    methods = [m for name, m in listed.members.items() if m.is_function and name[0] != "_"]
    for item in (listed, *methods):
        if not item.has_docstring:
            log.warning("%s has no docstring", item.path)
            continue
        for section in item.docstring.parse(warnings=False):
            if section.kind is griffe.DocstringSectionKind.parameters:
                names = {name for entry in section.value for name in entry.name.split(", ")}
                if unknown := names - {p.name for p in item.parameters}:
                    log.warning("%s has no argument %s", item.path, ", ".join(unknown))

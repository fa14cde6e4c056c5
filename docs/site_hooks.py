"""Additions to mkdocs: root files as pages, links out of docs/, warnings for missing docstrings."""

import functools
import logging
import re
from pathlib import Path

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
ROOT_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
# Their methods override mmengine's, whose documentation applies.
OVERRIDING = re.compile(r"mmseg_ext\.(datasets|evaluation|durable|engine|reports|detection)\b")

# The address of the repository; None while there is none.
HOME = re.search(r'^HOME = (?:None|"(.+)")', (ROOT / "setup.py").read_text(encoding="utf-8"), re.M)[
    1
]

log = logging.getLogger("mkdocs.hooks")  # with --strict, a warning fails the build


def on_files(files, config):
    """Make start.md the front page, and the changelog and the guide for contributors pages."""
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
    """Turn links out of docs/ into links to a page of the site or to the repository.

    Without a HOME, a link to the repository becomes its text, followed by the path.
    """

    def link(match):
        text, path, anchor = match[1], match[2], match[3] or ""
        if not (ROOT / path).exists():
            log.warning("%s links to %s, which does not exist", page.file.src_uri, path)
        if path in ROOT_PAGES:
            return f"[{text}]({ROOT_PAGES[path]}{anchor})"
        if HOME:
            return f"[{text}]({HOME}/blob/main/{path}{anchor})"
        return text if path in text else f"{text} (`{path}`)"

    for module in re.findall(r"^::: (\S+)", markdown, re.M):
        for member in api()[module].members.values():
            report_missing(member, methods=not OVERRIDING.match(module))
    return re.sub(r"\[([^\]]*)\]\(\.\./([^)#\s]+)(#[^)\s]*)?\)", link, markdown)


@functools.cache
def api():
    loader = griffe.GriffeLoader(search_paths=[ROOT], docstring_parser="google")
    loader.load("mmseg_ext")
    return loader.modules_collection


def report_missing(listed, methods=True):
    """Warn of public names without docstring, and of described arguments that do not exist."""
    public = listed.is_public and listed.name[0] != "_"
    if not public or not (listed.is_class or listed.is_function):
        return
    if not listed.has_docstring:
        log.warning("%s has no docstring", listed.path)
        return
    for section in listed.docstring.parse(warnings=False):
        if section.kind is griffe.DocstringSectionKind.parameters:
            names = {name for entry in section.value for name in entry.name.split(", ")}
            if unknown := names - {p.name for p in listed.parameters}:
                log.warning("%s has no argument %s", listed.path, ", ".join(unknown))
    for method in listed.members.values() if listed.is_class and methods else ():
        report_missing(method)

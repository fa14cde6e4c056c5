"""The documentation's site: what `make docs` does beyond mkdocs' own checks."""

import importlib.util
from pathlib import Path

import griffe
import pytest
from mkdocs.config import load_config
from mkdocs.structure.files import get_files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SOURCE = '''
class Layer:
    """A layer.

    Args:
        width, {argument}: sizes.
    """

    def __init__(self, width: int, depth: int): ...

    def forward(self, x):
        {docstring}
'''


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs/site_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("argument", "docstring", "problem"),
    [
        ("depth", '"""x to the same."""', None),
        ("depth", "...", "Layer.forward has no docstring"),
        ("height", '"""x to the same."""', "Layer has no argument height"),
    ],
)
def test_a_gap_in_the_reference_is_a_warning(hooks, caplog, argument, docstring, problem):
    source = SOURCE.format(argument=argument, docstring=docstring)
    with griffe.temporary_visited_module(source, docstring_parser="google") as module:
        hooks.report_missing(module["Layer"])
    assert [r.message.removeprefix("module.") for r in caplog.records] == [problem] * bool(problem)


OUTSIDE = {"b": "configs/ea_r18_shapes.py", "c": "gone.py"}


def test_links_out_of_the_docs(hooks, caplog, monkeypatch):
    config = load_config(str(ROOT / "mkdocs.yml"))
    files = config.plugins.on_files(get_files(config), config=config)
    page = Page(None, files.get_file_from_path("start.md"), config)
    assert page.url == ""  # the front page
    text = (
        "[a](../CHANGELOG.md#020), [b](../configs/ea_r18_shapes.py), [c](../gone.py), [d](faq.md)"
    )
    kept = "[a](changelog.md#020), {}, [d](faq.md)"
    told = hooks.on_page_markdown(text, page, config, files)
    assert told == kept.format("b (`configs/ea_r18_shapes.py`), c (`gone.py`)")
    record, *_ = caplog.records
    assert record.message == "start.md links to gone.py, which does not exist"
    monkeypatch.setattr(hooks, "HOME", "https://a.example/b")
    links = [f"[{t}](https://a.example/b/blob/main/{p})" for t, p in OUTSIDE.items()]
    assert hooks.on_page_markdown(text, page, config, files) == kept.format(", ".join(links))
    assert "](tools.md)" in files.get_file_from_path("changelog.md").content_string

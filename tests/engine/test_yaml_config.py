"""A config in YAML is data: tags that make objects and aliases that make gigabytes are refused."""

import pytest

from mmseg_ext.engine.launch import load_settings
from mmseg_ext.errors import LaunchError


def refused(path) -> str:
    with pytest.raises(LaunchError) as error:
        load_settings(str(path))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_plain_one_is_read(tmp_path):
    (tmp_path / "base.yaml").write_text("a: &x [1, 2]\nb: {c: *x}\n")
    (tmp_path / "own.yml").write_text("_base_: base.yaml\nb: {d: 2.5}\n")
    cfg = load_settings(str(tmp_path / "own.yml"))
    assert cfg.a == [1, 2] and cfg.b == {"c": [1, 2], "d": 2.5}


@pytest.mark.parametrize("name", ["own.yml", "base.yaml"])
def test_no_tag_runs(name, tmp_path):
    mark = tmp_path / "ran"
    (tmp_path / "own.yml").write_text("_base_: [base.yaml]\n")
    (tmp_path / "base.yaml").write_text("a: 1\n")
    tag = f"x: !!python/object/apply:builtins.open [{str(mark)!r}, 'w']\n"
    with (tmp_path / name).open("a") as file:
        file.write(tag)
    assert "could not determine a constructor" in refused(tmp_path / "own.yml")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [*a]\n", "the document holds itself"),
        ("a: [1\n", "expected"),
        ("a: " + "[" * 3000 + "]" * 3000, "recursion"),
        ("a: " + "x" * 2**20, "more than 1 MiB"),
        (
            "a0: &a0 ["
            + "1, " * 9
            + "1]\n"
            + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)),
            "more than 1,000,000 values",
        ),
    ],
    ids=["itself", "broken", "deep", "large", "laughs"],
)
def test_endless_ones_end(text, message, tmp_path):
    (tmp_path / "own.yml").write_text(text)
    assert message in refused(tmp_path / "own.yml")

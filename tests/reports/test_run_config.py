"""A finished run is read as data: no statement of its config runs and no module of it loads."""

import sys

import pytest
from mmengine.config import Config

from mmseg_ext.commands.report import main as report
from mmseg_ext.reports.curves import Curve, read_scalars
from mmseg_ext.reports.run_config import read_config, require_known_types
from mmseg_ext.reports.run_data import read_curves
from tests.configs import CONFIGS


@pytest.mark.parametrize("name", ["ea_r18_shapes", "upernet_rmt_small_cityscapes_80k"])
def test_a_resolved_config_is_what_mmengine_reads(name, tmp_path):
    written = Config.fromfile(CONFIGS / f"{name}.py")
    written.odd = {"a.b": (1, -2.5), "c": {None, "x"}, "d": [True, float("inf"), -float("inf")]}
    path = tmp_path / "config.py"
    path.write_text(written.pretty_text)
    assert read_config(path).to_dict() == written.to_dict()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import os", "line 1 is no assignment"),
        ("a = 1\nb = open('x')", r"line 2 holds \"open\('x'\)\""),
        ("a = __import__('os').system('true')", "line 1 holds"),
        ("a = dict(**{'b': 1})", "line 1 holds"),
        ("a = [i for i in (1, 2)]", "line 1 holds"),
        ("a = f'{1}'", "line 1 holds"),
        ("a = b = 1", "line 1 is no assignment"),
        ("a = (", "is no config: SyntaxError"),
        ("a = " + "[" * 5000 + "]" * 5000, "is no config"),
        ("a = '\0'", "is "),
    ],
)
def test_anything_else_is_refused(text, message, tmp_path):
    path = tmp_path / "config.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_config(path)


def test_types_that_are_not_registered_are_not_looked_for(tmp_path, monkeypatch):
    """mmengine takes an unknown type, or scope, for the name of a module and imports it."""
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    monkeypatch.syspath_prepend(str(tmp_path))
    known = {"type": "EncoderDecoder", "backbone": {"type": "mmseg.ResNet"}}
    require_known_types(known, "a")
    for kind in ("evil", "evil.EncoderDecoder", "os.system", "mmseg.models.ResNet", 3, None):
        with pytest.raises(ValueError, match="which is not registered here"):
            require_known_types({**known, "decode_head": [{"type": kind}]}, "a")
    with pytest.raises(ValueError, match=r"'evil\.EncoderDecoder'"):
        require_known_types({**known, "_scope_": "evil"}, "a")


def test_a_report_runs_nothing_of_a_work_directory(tmp_path, capsys):
    mark = tmp_path / "ran"
    folder = tmp_path / "run/1/vis_data"
    folder.mkdir(parents=True)
    (folder / "scalars.json").write_text('{"loss": 1.0, "step": 1}\n')
    (folder / "config.py").write_text(f"a = open({str(mark)!r}, 'w')\n")
    (tmp_path / "run/iter_1.pth").write_bytes(b"")
    assert report([str(tmp_path / "run")]) == 1
    assert "a resolved config is read as data: line 1 holds" in capsys.readouterr().err
    assert not mark.exists() and "evil" not in sys.modules


def test_cut_lines_are_left_out_and_told(tmp_path):
    lines = '{"loss": 3.0, "step": 1}\n{"loss": 2.0, "st\n[1]\n{"loss": 1.0}\n\xff\0\n'
    path = tmp_path / "1/vis_data/scalars.json"
    path.parent.mkdir(parents=True)
    path.write_text(lines + '{"loss": 1.5, "step": 3}\n{"loss": 0.5, "step": 4', encoding="latin1")
    curve = Curve([1, 3], [3.0, 1.5])
    assert read_scalars(path)["loss"] == curve
    other = tmp_path / "2/vis_data/scalars.json"
    other.parent.mkdir(parents=True)
    other.write_text("{")
    notes: list[str] = []
    assert read_curves(tmp_path, notes.append) == {"loss": curve}
    assert notes == [f"{path}: 5 damaged lines are left out", f"{other} holds no scalars"]

"""Printed lines of `new_project`; tests/datasets/test_new_project.py has the files."""

import importlib
import shlex

import numpy as np

from mmseg_ext.commands import run
from tests.datasets.trees import save


def test_it_prints_commands_that_parse(tmp_path, capsys):
    for kind, names in (("images", "abcd"), ("masks", "abc")):
        for i, name in enumerate(names):
            pixels = np.kron([[0, 255], [i % 2, 1]], np.ones((8, 8))).astype(np.uint8)
            save(tmp_path / kind / f"{name}.png", pixels)
    flags = ["--images", str(tmp_path / "images"), "--masks", str(tmp_path / "masks")]
    words = [str(tmp_path / "my project"), *flags, "--ignore", "255"]
    assert run("new_project", words) == 0
    told, _, following = capsys.readouterr().out.partition("Next:\n")
    assert "left out: 1 files" in told and "d.png" in told
    assert "values: 0 is class_0, 1 is class_1, 255 is ignored" in told
    assert "train: 2 pairs" in told and "training starts from random weights" in told
    names = []
    for line in following.splitlines():
        program, name, *given = shlex.split(line)
        names.append(name)
        args = importlib.import_module(f"mmseg_ext.commands.{name}").parser().parse_args(given)
        paths = [vars(args).get(key) for key in ("config", "work_dirs", "input")]
        assert program == "mmseg-ext" and words[0] in str(paths)
    assert names == ["check_dataset", "train", "test", "report", "image_demo"]
    assert f"{words[0]}/work_dir/iter_600.pth" in shlex.split(following)
    assert run("new_project", words) == 0
    assert "config.py: exists, unchanged" in capsys.readouterr().out
    for flag, value in (("--val", "0"), ("--val", "1"), ("--from", "nothing")):
        assert run("new_project", [*words, flag, value]) == 1
        assert f"{flag} {value}" in capsys.readouterr().err

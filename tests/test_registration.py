"""What an import registers, what it says without the mm stack, and that every model is tested."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mmseg.registry import MODELS

import mmseg_ext
from mmseg_ext import environment
from mmseg_ext.commands.env import main as env
from tests.backbones.base import BackboneTester
from tests.decode_heads.base import HeadTester
from tests.engine.runs import run_script

ROOT = Path(__file__).parents[1]
STACK = ("mmengine", "mmcv", "mmseg")


def run(code_or_args, tmp_path, missing=()):
    """A fresh interpreter in which the packages in `missing` cannot be imported."""
    lines = [f"sys.modules[{name!r}] = None" for name in missing]
    (tmp_path / "sitecustomize.py").write_text("import sys\n" + "\n".join(lines))
    args = ["-c", code_or_args] if isinstance(code_or_args, str) else code_or_args
    return subprocess.run(
        [sys.executable, "-W", "ignore", *args],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))},
    )


def models_under(base: type) -> set[str]:
    return {cls.config["type"] for cls in _subclasses(base) if hasattr(cls, "config")}


def _subclasses(cls: type) -> set[type]:
    direct = set(cls.__subclasses__())
    return direct.union(*(_subclasses(c) for c in direct)) if direct else direct


@pytest.mark.parametrize(
    ("package", "base"), [("backbones", BackboneTester), ("decode_heads", HeadTester)]
)
def test_every_model_passes_the_base_tester(package, base):
    for path in (ROOT / "tests" / package).glob("test_*.py"):
        __import__(f"tests.{package}.{path.stem}")
    tested = models_under(base)
    registered = {
        name
        for name, item in MODELS.module_dict.items()
        if item.__module__.startswith(f"mmseg_ext.{package}")
    }
    assert registered and registered == tested


def test_the_documented_names_are_registered():
    names = environment.registered_names()
    assert {"EAHead", "DANetEAHead", "MaSAHead", "RMT", "LambdaResNet", "DeepViT", "EAMLP"} <= set(
        names
    )


@pytest.mark.parametrize("missing", [STACK, ("mmseg",)], ids=str)
def test_import_without_the_stack(missing, tmp_path):
    """The import succeeds, the layers work, and the one-line remedy comes when it is asked for."""
    code = (
        "import torch, mmseg_ext\n"
        "from mmseg_ext.layers import ExternalAttention2d\n"
        "print(ExternalAttention2d(8)(torch.randn(1, 8, 9, 9)).shape)\n"
        "try:\n    mmseg_ext.register_all_modules()\n"
        "except mmseg_ext.StackError as error:\n    print('ERROR', error)\n"
    )
    result = run(code, tmp_path, missing)
    assert result.returncode == 0, result.stderr
    shape, error = result.stdout.strip().splitlines()
    assert shape == "torch.Size([1, 8, 9, 9])"
    first = next(name for name in STACK if name in missing)
    assert f"'{first}' is not installed" in error and "pip install onedl-mmcv" in error


def test_heads_and_backbones_name_the_missing_stack(tmp_path):
    code = (
        "import importlib\n"
        "for room in ('backbones', 'decode_heads'):\n"
        "    try:\n        importlib.import_module(f'mmseg_ext.{room}')\n"
        "    except Exception as error:\n        print(type(error).__name__, error)\n"
    )
    lines = run(code, tmp_path, ("mmcv",)).stdout.strip().splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("StackError mmseg_ext: the package 'mmcv' is not")
        assert "pip install onedl-mmcv" in line


OTHER_PACKAGE = """
import mmseg_ext, mmseg_ext.engine.launch
from mmengine.registry import *
scope = Registry("model", scope="other", parent=MODELS)
names = ["RMT", "LambdaResNet", "DeepViT", "EAMLP", "mmseg.RMT", mmseg_ext.backbones.RMT]
print([type(scope.build(dict(type=n, **({"arch": "tiny"} if n == "RMT" else {})))).__name__
       for n in names if with_mmseg or n != "mmseg.RMT"])
hooks = ["DurableCheckpointHook", "FiniteLossHook", "RunRecordHook", "StopOnSignalHook"]
found = [HOOKS.get(name).__module__.split(".")[0] for name in hooks]
found += [RUNNERS.get("DurableRunner").__name__, PARAM_SCHEDULERS.get("HeldPolyLR").__name__]
print(found, TRANSFORMS.get("CheckedLoadImage").__name__)
"""


@pytest.mark.parametrize("with_mmseg", [True, False])
def test_another_package_finds_backbones_runner_and_hooks(with_mmseg, tmp_path):
    code = f"with_mmseg = {with_mmseg}\n{OTHER_PACKAGE}"
    if with_mmseg:
        (tmp_path / "code.py").write_text(code)
        result = run_script(tmp_path / "code.py")
    else:
        result = run(code, tmp_path, ("mmseg",))
    assert result.returncode == 0, result.stderr
    backbones, others = result.stdout.splitlines()
    expected = ["RMT", "LambdaResNet", "DeepViT", "EAMLP", *["RMT"] * (1 + with_mmseg)]
    assert backbones == str(expected)
    assert others == str([*["mmseg_ext"] * 4, "DurableRunner", "HeldPolyLR"]) + " CheckedLoadImage"


def test_environment_table(capsys):
    assert env([]) == 0
    printed = capsys.readouterr().out
    for word in ("mmseg_ext", "torch", "devices", "mmcv.ops", "EAHead", mmseg_ext.__version__):
        assert word in printed


@pytest.mark.parametrize("args", [["-m", "mmseg_ext", "env"], ["tools/train.py", "c.py"]])
def test_commands_without_the_stack_say_what_to_install(args, tmp_path):
    result = run(args, tmp_path, ("mmseg", "mmdet", "mmpretrain"))
    assert result.returncode != 0
    assert "'mmseg' is not installed; run: pip install" in result.stderr
    assert "Traceback" not in result.stderr


def test_models_that_do_not_import_are_named(tmp_path):
    """As of mmseg 1.2.2 without ftfy, which imports itself all the same."""
    result = run(["tools/train.py", "c.py"], tmp_path, ("mmseg.models",))
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("mmseg_ext: 'mmseg.models' is installed but fails to import (")
    assert "run: pip install onedl-mmcv" in line


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ("0.30.0", r"mmseg 0\.30\.0 is older than 1\.2\.2"),
        (None, r"mmseg None is older .*; run: pip install"),
    ],
)
def test_too_old_or_unknown_stack_is_named(version, line, monkeypatch):
    import mmseg

    environment.stack_problem.cache_clear()
    monkeypatch.setattr(mmseg, "__version__", version)
    try:
        assert re.search(line, environment.stack_problem())
        with pytest.raises(mmseg_ext.StackError, match=line):
            mmseg_ext.register_all_modules()
    finally:
        environment.stack_problem.cache_clear()


def test_versions_other_than_the_tested_ones_are_named(monkeypatch):
    """A CUDA build of torch, say, which pip takes without the constraints."""
    constraints = (ROOT / "constraints.txt").read_text()
    for name, version in environment.TESTED.items():
        package = {"torch": "torch", "mmseg": "onedl-mmsegmentation"}.get(name, f"onedl-{name}")
        assert f"\n{package}=={version}\n" in constraints
    monkeypatch.setattr("torch.__version__", "99.1+cu130")
    assert ("torch", "99.1+cu130 (tested with 2.13.0)") in environment.describe()

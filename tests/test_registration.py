"""Names that importing the package registers, and messages about missing packages."""

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import Mock

import pytest
from mmengine.registry import MODELS as ROOT_MODELS
from mmengine.registry import Registry

import mmseg_ext
from mmseg_ext import commands, environment
from mmseg_ext.commands.env import describe
from tests.backbones.base import BackboneTester
from tests.engine.runs import ROOT, run
from tests.messages import check_message
from tests.models import untested


def run_without(missing: Sequence[str], folder: Path, *words: str) -> CompletedProcess:
    """Run Python in a process in which the packages in `missing` cannot be imported."""
    modules = f"sys.modules |= dict.fromkeys({missing})"
    (folder / "sitecustomize.py").write_text(f"import sys\n{modules}\n")
    path = os.pathsep.join((str(folder), str(ROOT)))
    return run(sys.executable, "-W", "ignore", *words, PYTHONPATH=path)


def test_every_backbone_passes_the_base_tester():
    """Heads are tested automatically (tests/decode_heads/test_every_head.py)."""
    assert not untested("backbones", BackboneTester), "write a BackboneTester, as in test_rmt.py"


WITHOUT_THE_STACK = """
import importlib, sys
import torch
before = set(sys.modules)
import mmseg_ext.layers
print(*sorted(name for name in set(sys.modules) - before if name.startswith("torch.")))
print(mmseg_ext.layers.ExternalAttention2d(8)(torch.randn(1, 8, 9, 9)).shape)
for call, name in (
    (mmseg_ext.register_all_modules, True),
    (importlib.import_module, "mmseg_ext.backbones"),
    (importlib.import_module, "mmseg_ext.decode_heads"),
    (mmseg_ext.__getattr__, "safe_loading"),
    (mmseg_ext.__getattr__, "train"),
):
    try:
        call(name)
    except mmseg_ext.StackError as error:
        print(error)
"""


def test_without_the_stack_the_layers_work(tmp_path):
    """They import no further module of torch. Other parts raise a line with what to install."""
    result = run_without(("mmcv",), tmp_path, "-c", WITHOUT_THE_STACK)
    assert result.returncode == 0, result.stderr
    new, shape, *errors = result.stdout.splitlines()
    assert not new and shape == "torch.Size([1, 8, 9, 9])"
    assert len(errors) == 5
    for error in errors:
        check_message(error, "'mmcv'", where="mmseg_ext: ", todo="pip install")


WITHOUT_THE_PACKAGE = """
import sys
import mmseg.models, mmseg.datasets, mmseg.evaluation, mmseg.engine, mmengine.runner
before = set(sys.modules)
import mmseg_ext, mmseg_ext.layers
new = set(sys.modules) - before
print(*sorted(name for name in new if not name.startswith("mmseg_ext.")))
"""


def test_importing_costs_what_the_stack_costs(tmp_path):
    """The only other package it imports is filelock, which torch requires."""
    result = run_without((), tmp_path, "-c", WITHOUT_THE_PACKAGE)
    new = {name.split(".")[0] for name in result.stdout.splitlines()[-1].split()}
    assert new - set(sys.stdlib_module_names) == {"filelock", "mmseg_ext"}, result.stderr


LAYERS_FIRST = """
import importlib.util, sys
import mmseg_ext.layers
assert not {"mmengine", "mmcv", "mmseg"} & set(sys.modules)
assert importlib.util.find_spec("mmengine")  # without importing it
importlib.import_module(sys.argv[1])
from mmengine.registry import HOOKS, MODELS
from mmseg.registry import METRICS
from mmseg.registry import MODELS as MMSEG_MODELS
assert "RMT" in MODELS.module_dict and "FiniteLossHook" in HOOKS.module_dict
assert "EAHead" in MMSEG_MODELS.module_dict and "CheckedIoUMetric" in METRICS.module_dict
assert not any(type(finder).__module__ == "mmseg_ext" for finder in sys.meta_path)
"""


FIRST = ["mmengine.config", "mmseg.apis", "mmseg_ext.decode_heads", "mmseg_ext.checkpoint"]


@pytest.mark.parametrize("first", [*FIRST, "mmseg_ext.images.files"])
def test_layers_need_only_torch_and_registering_waits_for_the_stack(first, tmp_path):
    """Also if a config imports the package again, which then does nothing."""
    result = run_without((), tmp_path, "-c", LAYERS_FIRST, first)
    assert result.returncode == 0, result.stderr


WITHOUT_MMSEG = """
import mmseg_ext, mmseg_ext.engine.build
from mmengine.registry import MODELS as ROOT_MODELS
from mmengine.registry import Registry
from mmengine.registry import *
other = Registry("model", scope="other", parent=MODELS)
for name in ("RMT", "LambdaResNet", "DeepViT", "EAMLP"):
    other.build(dict(type=name, arch="tiny") if name == "RMT" else dict(type=name))
for name in ("DurableCheckpointHook", "FiniteLossHook", "RunRecordHook", "StopOnSignalHook"):
    assert HOOKS.get(name).__module__.startswith("mmseg_ext"), name
assert RUNNERS.get("DurableRunner") and PARAM_SCHEDULERS.get("HeldPolyLR")
assert TRANSFORMS.get("CheckedLoadImage")
"""


def test_another_package_works_without_mmseg(tmp_path):
    result = run_without(("mmseg",), tmp_path, "-c", WITHOUT_MMSEG)
    assert result.returncode == 0, result.stderr


def test_environment_table(monkeypatch, capsys):
    assert commands.run("env", []) == 0
    printed, error = capsys.readouterr()
    assert not error
    monkeypatch.setattr(environment, "stack_problem", lambda: "a problem")
    assert commands.run("env", []) == 1
    captured = capsys.readouterr()
    assert captured.err == "a problem\n" and "a problem" in captured.out
    for word in ("mmseg_ext", "torch", "devices", "mmcv.ops", "EAHead", mmseg_ext.__version__):
        assert word in printed


def test_another_package_names_a_backbone_with_the_scope():
    other = Registry("model", scope="other", parent=ROOT_MODELS)
    assert type(other.build({"type": "mmseg.RMT", "arch": "tiny"})) is mmseg_ext.backbones.RMT


def test_a_command_without_packages_says_what_to_install(tmp_path):
    words = (str(ROOT / "tools/train.py"), "c.py", "--cfg-options", "a=1")
    result = run_without(("mmengine",), tmp_path, *words)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    check_message(line, "'mmengine'", where="mmseg_ext: ", todo="pip install")


def test_a_torchvision_of_another_torch_is_named(tmp_path):
    """mmseg imports timm, which imports torchvision; every command answers with the line."""
    (tmp_path / "timm.py").write_text("import torchvision")
    error = "operator torchvision::nms does not exist"
    (tmp_path / "torchvision.py").write_text(f"raise RuntimeError({error!r})")
    result = run_without((), tmp_path, "-m", "mmseg_ext", "print_config", "ea_r18_shapes")
    (line,) = result.stderr.splitlines()
    assert result.returncode == 1 and error in line
    assert line.endswith("pip install --upgrade torch torchvision")


def test_two_distributions_of_one_module_are_named(monkeypatch):
    """pip does not notice that they overwrite each other."""
    monkeypatch.setattr(environment, "installed", lambda: ["onedl-mmcv", "mmcv", "mmengine"])
    remedy = "python3 -m venv clean && clean/bin/pip install onedl-mmcv=="
    check_message(environment.mixture(), "onedl-mmcv", "'mmcv'")
    assert remedy in environment.mixture()
    monkeypatch.setattr(environment, "installed", lambda: ["mmcv-lite", "mmengine"])
    assert environment.mixture() is None
    assert remedy in environment.remedy()


@pytest.mark.parametrize(("version", "told"), [("0.0.2", True), ("0.3.0", False)])
def test_another_project_with_a_package_of_this_name(version, told, tmp_path, monkeypatch, capsys):
    """On the package index `mmseg-ext` is not this project, which once had that name."""
    folder = tmp_path / f"mmseg_ext-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Name: mmseg-ext\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    line = f"mmseg_ext: the distribution mmseg-ext {version} is another project"
    with warnings.catch_warnings(record=True) as caught:
        mmseg_ext.register()
    assert [line in str(w.message) for w in caught] == [True] * told
    commands.run("env", [])
    assert (line in capsys.readouterr().out) == told


stack_problem = environment.stack_problem.__wrapped__  # without its cache


def test_an_old_or_incomplete_stack_is_named(monkeypatch):
    for version in ("0.30.0", None):
        monkeypatch.setattr("mmseg.__version__", version)
        check_message(stack_problem(), f"mmseg {version}", "1.2.2")
    monkeypatch.setattr("mmseg.__version__", "1.2.2")
    assert stack_problem() is None
    monkeypatch.setitem(sys.modules, "mmseg.models", None)  # as 1.2.2 is without ftfy
    check_message(stack_problem(), "'mmseg.models'")
    monkeypatch.setitem(sys.modules, "mmseg", None)
    check_message(stack_problem(), "'mmseg'", todo="pip install")


def test_missing_operators_are_replaced_not_installed(monkeypatch):
    """mmsegmentation 1.2.2 needs mmcv's compiled operators, which mmcv-lite never has."""
    modules = [*map(sys.modules.get, environment.STACK), ModuleNotFoundError("No 'mmcv._ext'")]
    monkeypatch.setattr("importlib.import_module", Mock(side_effect=modules))
    problem = stack_problem()
    assert "use_operators_in_pytorch()" in problem and "pip" not in problem


def test_versions_other_than_the_tested_ones_are_named(monkeypatch):
    """A CUDA build of torch, say, which pip takes without the constraints."""
    constraints = (ROOT / "constraints.txt").read_text()
    for name, version in environment.TESTED.items():
        package = {"torch": "torch", "mmseg": "onedl-mmsegmentation"}.get(name, f"onedl-{name}")
        assert f"\n{package}=={version}\n" in constraints
    monkeypatch.setattr("torch.__version__", "99.1+cu130")
    assert ("torch", "99.1+cu130 (tested with 2.13.0)") in describe()

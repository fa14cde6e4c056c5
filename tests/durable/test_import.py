"""Importing the package registers names and changes nothing else in the process."""

import json
import subprocess
import sys
import warnings

import mmseg
import pytest

from mmseg_ext.environment import has_compiled_operators, quiet_stack_imports

SNAPSHOT = """
import importlib, inspect, json, pkgutil, signal, sys, warnings
import torch
import mmcv, mmengine, mmseg.apis, mmseg.models, mmseg.datasets, mmengine.runner


def parts():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] not in ("mmengine", "mmcv", "mmseg") or module is None:
            continue
        for key, value in vars(module).items():
            if inspect.isroutine(value) or inspect.isclass(value):
                found[f"{name}.{key}"] = id(value)
            if inspect.isclass(value) and value.__module__ == name:
                found |= {f"{name}.{key}.{k}": id(v) for k, v in vars(value).items()
                          if inspect.isroutine(v) or isinstance(v, (classmethod, property))}
    loaders = mmengine.runner.checkpoint.CheckpointLoader._schemes
    found |= {f"loader of {k!r}": id(v) for k, v in loaders.items()}
    found["warnings"] = repr(warnings.filters)
    found["threads"] = torch.get_num_threads(), torch.get_num_interop_threads()
    found["random"] = hash(torch.get_rng_state().numpy().tobytes())
    found["dtype"] = str(torch.get_default_dtype())
    allowed = map(str, torch.serialization.get_safe_globals())  # torch adds its own when it likes
    found["safe globals"] = sorted(name for name in allowed if "torch." not in name)
    found["signals"] = [str(signal.getsignal(s)) for s in signal.valid_signals()]
    found["hooks"] = repr((sys.excepthook, sys.path_hooks, sys.meta_path))
    return found

def changed():
    now = parts()
    return [key for key in before if now.get(key) != before[key]]

before = parts()
import mmseg_ext
assert "mmseg_ext.durable.runner" in sys.modules
print(json.dumps([len(before), changed()]))
with mmseg_ext.safe_loading():
    inside = changed()
assert "mmengine.runner.checkpoint.load_state_dict" in inside, inside
assert changed() == []
mmseg_ext.safe_loading(min_backbone_share=0)
assert changed() == []  # only its block changes something
from mmseg_ext.checkpoint.safe_loading import check_coverage
with mmseg_ext.safe_loading(min_backbone_share=0), mmseg_ext.safe_loading():
    assert changed() == inside
    assert "0.0%" in check_coverage(torch.nn.Linear(1, 1), {})
"""


@pytest.mark.slow
@pytest.mark.skipif(
    mmseg.__version__ == "1.2.2" and not has_compiled_operators(),
    reason="mmsegmentation 1.2.2 does not import without mmcv's operators",
)
def test_the_import_and_the_context_leave_the_process_unchanged():
    """In a fresh process: functions, classes, methods, loaders, filters, threads, streams."""
    command = [sys.executable, "-W", "ignore", "-c", SNAPSHOT]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if line.startswith("[")]
    count, changed = json.loads(lines[-1])
    assert count > 5000
    assert changed == []


def test_filters_that_an_import_adds_remain(monkeypatch):
    """torch, numpy, scipy and sympy add nine when they are imported."""
    monkeypatch.setattr(warnings, "filters", list(before := warnings.filters))
    with quiet_stack_imports():
        warnings.filterwarnings("ignore", message="of an imported package")
        with warnings.catch_warnings(record=True) as shown:
            warnings.warn("Fail to import ``MultiScaleDeformableAttention``")
    assert shown == []
    (added,) = [entry for entry in warnings.filters if entry not in before]
    assert added[1].pattern == "of an imported package"

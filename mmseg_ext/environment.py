"""Check the packages that mmseg_ext needs, with one line that names the remedy."""

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import io
import platform
import re
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType

from mmseg_ext.errors import StackError
from mmseg_ext.upstream import COMPILED_OPERATORS

# By import names, which the maintained and the original packages share. The oldest accepted
# versions are the newest of the original packages.
LOWEST = {"mmengine": "0.10.7", "mmcv": "2.1.0", "mmseg": "1.2.2"}
TESTED = {"torch": "2.13.0", "mmengine": "0.10.12", "mmcv": "2.3.6", "mmseg": "1.4.2"}
# The distributions that install each module. Of two in a row, the last one installed wins.
DISTRIBUTIONS = {
    "mmengine": ("onedl-mmengine", "mmengine"),
    "mmcv": ("onedl-mmcv", "mmcv", "mmcv-lite"),
    "mmseg": ("onedl-mmsegmentation", "mmsegmentation"),
}
STACK = tuple(LOWEST)
BASE = STACK[:2]
"""The packages that backbones, runner and hooks need; mmdetection and mmpretrain use these."""
ONEDL = (
    f"pip install onedl-mmcv=={TESTED['mmcv']} onedl-mmengine=={TESTED['mmengine']} "
    f"onedl-mmsegmentation=={TESTED['mmseg']} matplotlib rich"
)
MMLAB = (
    f"pip install mmcv-lite=={LOWEST['mmcv']} mmengine=={LOWEST['mmengine']} "
    f"mmsegmentation=={LOWEST['mmseg']} ftfy regex 'setuptools<82' matplotlib rich"
)


def installed() -> list[str]:
    """Return the installed distributions of the mm stack."""
    names = (d.metadata["Name"] or "" for d in importlib.metadata.distributions())
    found = {name.lower().replace("_", "-") for name in names}
    return [name for names in DISTRIBUTIONS.values() for name in names if name in found]


def remedy() -> str:
    """Return the command that completes the installed set of packages.

    Without any it installs the maintained set, and a mixture of both sets is removed first.
    """
    found = installed()
    maintained = [name for name in found if name.startswith("onedl-")]
    if maintained and len(maintained) < len(found):
        return f"pip uninstall -y {' '.join(found)} && {ONEDL}"
    return MMLAB if found and not maintained else ONEDL


def mixture() -> str | None:
    """Return a line if two installed distributions have written the same modules."""
    found = installed()
    for name, distributions in DISTRIBUTIONS.items():
        both = [d for d in distributions if d in found]
        if len(both) > 1:
            return (
                f"mmseg_ext: {' and '.join(both)} both install the module {name!r}, and each has "
                f"overwritten parts of the other; run: {remedy()}"
            )
    return None


@contextlib.contextmanager
def quiet_stack_imports() -> Iterator[None]:
    """Silence what mmcv and mmseg print about optional parts."""
    warnings.filterwarnings("ignore", message="Fail to import ``MultiScaleDeformable")
    own = warnings.filters[0]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        # Not `catch_warnings`, which would also remove the filters that the imports add.
        if own in warnings.filters:
            warnings.filters.remove(own)


def _import(name: str) -> ModuleType:
    """Import a module of the stack.

    mmseg tries to import mmdet, which fails half-way if mmcv has no compiled operators. The parts
    of mmdet that were imported would keep functions that refuse to work, even if
    `mmseg_ext.detection.operators_in_pytorch` is imported later. None in `sys.modules` makes mmdet
    "not found" at once; Python has no other way to hide an installed package from an import.
    """
    hide = "mmdet" not in sys.modules and importlib.util.find_spec("mmcv") is not None
    hide = hide and name.startswith("mmseg") and not importlib.util.find_spec(COMPILED_OPERATORS)
    if hide:
        sys.modules["mmdet"] = None  # type: ignore[assignment]
    try:
        with quiet_stack_imports():
            return importlib.import_module(name)
    finally:
        if hide:
            del sys.modules["mmdet"]


@functools.cache
def stack_problem(stack: tuple[str, ...] = STACK) -> str | None:
    """Return None if these packages can be imported in accepted versions, else one line."""
    for name in stack:
        if importlib.util.find_spec(name) is None:
            problem = f"the package {name!r} is not installed"
        else:
            problem = _import_problem(name)
        if problem is not None:
            if COMPILED_OPERATORS in problem:
                action = "call mmseg_ext.use_operators_in_pytorch() before you import mmseg"
            else:
                action = f"run: {remedy()}"
            return mixture() or f"mmseg_ext: {problem}; {action}"
    return None


def _import_problem(name: str) -> str | None:
    try:
        version = str(getattr(_import(name), "__version__", "of unknown version"))
        numbers = [
            [int(part) for part in re.findall(r"\d+", text)[:3]] for text in (version, LOWEST[name])
        ]
        if numbers[0] < numbers[1]:
            return f"{name} {version} is older than {LOWEST[name]}, the oldest supported version"
        if name == "mmseg":  # the package of 1.2.2 imports without ftfy, its models do not
            name = "mmseg.models"
            _import(name)
    except Exception as error:  # mmseg 1.2.2 raises AssertionError for a newer mmcv
        return f"{name!r} is installed but fails to import ({' '.join(str(error).split())})"
    return None


def check_stack(stack: tuple[str, ...] = STACK) -> None:
    """Raise StackError if any of these packages is missing or cannot be used."""
    problem = stack_problem(stack)
    if problem is not None:
        raise StackError(problem)


def require_package(name: str, extra: str) -> None:
    """Raise StackError, naming the extra to install, if a package is missing."""
    if importlib.util.find_spec(name) is None:
        raise StackError(
            f"the package {name!r} is not installed; run, in the repository's folder: "
            f"pip install -e '.[mm,{extra}]'"
        )


def registered_names() -> list[str]:
    """Return the names that this package has registered with mmengine, sorted."""
    from mmengine import registry as registries

    roots = [root for root in vars(registries).values() if isinstance(root, registries.Registry)]
    return sorted(
        {
            name
            for root in roots
            for registry in (root, *root.children.values())
            for name, item in registry.module_dict.items()
            if getattr(item, "__module__", "").startswith("mmseg_ext.")
        }
    )


_NO_OPERATORS = (
    "not compiled: detectors run on slow replacements, and heads of mmsegmentation that use other "
    "operators (PointRend, CCNet, PSANet) cannot run"
)


def has_compiled_operators() -> bool:
    """Return whether mmcv has its extension module; our replacement has no file."""
    found = importlib.util.find_spec(COMPILED_OPERATORS)
    return found is not None and found.has_location


def describe() -> list[tuple[str, str]]:
    """Return rows (name, value): versions, devices, packages, operators, registered names."""
    import torch

    from mmseg_ext.version import __version__

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    rows = [
        ("mmseg_ext", __version__),
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("devices", ", ".join([*gpus, f"CPU, {torch.get_num_threads()} threads"])),
    ]
    for name, tested in TESTED.items():
        try:
            version = str(getattr(_import(name), "__version__", "unknown"))
        except Exception as error:
            version = f"not usable: {' '.join(str(error).split())}"
        same = version.partition("+")[0] == tested
        rows.append((name, version if same else f"{version} (tested with {tested})"))
    rows.append(("packages", ", ".join(installed()) or "none"))
    rows.append(("stack", mixture() or stack_problem() or "usable"))
    if stack_problem() is None:
        rows.append(("mmcv.ops", "compiled" if has_compiled_operators() else _NO_OPERATORS))
        rows.append(("registered", ", ".join(registered_names())))
    return rows

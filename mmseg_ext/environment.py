"""Check the packages that mmseg_ext needs, and find its configs.

Two sets of distributions install the same modules: OpenMMLab's original packages, and the
maintained ones, whose names begin with onedl-. `stack_problem` imports the modules, compares their
versions, and says what to install.
"""

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import io
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import cast

from mmseg_ext.errors import StackError, one_line
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
INSTALL = (
    f"pip install onedl-mmcv=={TESTED['mmcv']} onedl-mmengine=={TESTED['mmengine']} "
    f"onedl-mmsegmentation=={TESTED['mmseg']} matplotlib rich tifffile"
)


def installed() -> list[str]:
    """Return the installed distributions of the mm stack."""
    every = set()
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"] or ""  # of a damaged one
        every.add(name.lower().replace("_", "-"))
    found = []
    for names in DISTRIBUTIONS.values():
        found += [name for name in names if name in every]
    return found


def remedy() -> str:
    """Return the commands that make a clean environment; one is enough without other packages."""
    if all(name.startswith("onedl-") for name in installed()):
        return f"run: {INSTALL}"
    return f"make a clean environment: python3 -m venv clean && clean/bin/{INSTALL}"


def mixture() -> str | None:
    """Return a line if two installed distributions have written the same modules."""
    found = installed()
    for name, distributions in DISTRIBUTIONS.items():
        both = [d for d in distributions if d in found]
        if len(both) > 1:
            return (
                f"mmseg_ext: {' and '.join(both)} both install the module {name!r}, and each has "
                f"overwritten parts of the other; {remedy()}"
            )
    return None


def other_project() -> str | None:
    """Return a line if another project is installed that also installs a package `mmseg_ext`."""
    for found in importlib.metadata.distributions(name="mmseg-ext"):
        if found.version.startswith("0.0."):  # later ones are this project, under its former name
            return (
                f"mmseg_ext: the distribution mmseg-ext {found.version} is another project "
                "(GPL-3.0) whose files overwrite this package's; run: pip uninstall -y mmseg-ext "
                "mmseg-attention, and install mmseg-attention again"
            )
    return None


@contextlib.contextmanager
def quiet_stack_imports() -> Iterator[None]:
    """Silence what mmcv and mmseg print about optional parts."""
    warnings.filterwarnings("ignore", message="Fail to import ``MultiScaleDeformable")
    filters = cast(list, warnings.filters)
    own = filters[0]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        # Not `catch_warnings`, which would also remove the filters that the imports add.
        if own in filters:
            filters.remove(own)


def import_quietly(name: str) -> ModuleType:
    """Import a module of the stack.

    If mmcv has no compiled operators, mmseg's attempt to import mmdet fails half-way, and what was
    imported of mmdet refuses to work, even with `mmseg_ext.detection.operators_in_pytorch`. None in
    `sys.modules` makes mmdet "not found" at once; Python has no other way to hide a package.
    """
    tries_mmdet = name.startswith("mmseg") and "mmdet" not in sys.modules
    hide = tries_mmdet and importlib.util.find_spec(COMPILED_OPERATORS) is None
    if hide:
        sys.modules["mmdet"] = None  # type: ignore[assignment] (its type has only modules)
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
        problem = _import_problem(name)
        if problem is None:
            continue
        action = remedy()
        if COMPILED_OPERATORS in problem:
            action = "call mmseg_ext.use_operators_in_pytorch() before you import mmseg"
        elif "torchvision" in problem:
            action = "torch and torchvision do not fit: pip install --upgrade torch torchvision"
        return mixture() or f"mmseg_ext: {problem}; {action}"
    return None


def _import_problem(name: str) -> str | None:
    if importlib.util.find_spec(name) is None:
        return f"the package {name!r} is not installed"
    try:
        version = str(getattr(import_quietly(name), "__version__", "of unknown version"))
        if _release(version) < _release(LOWEST[name]):
            return f"{name} {version} is older than {LOWEST[name]}, the oldest supported version"
        if name == "mmseg":  # the package of 1.2.2 imports without ftfy, its models do not
            name = "mmseg.models"
            import_quietly(name)
    except Exception as error:  # mmseg 1.2.2 raises AssertionError for a newer mmcv
        return f"{name!r} is installed but fails to import ({one_line(error)})"
    return None


def _release(version: str) -> list[int]:
    """Return the first three numbers of a version such as '2.13.0+cpu'."""
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def check_stack(stack: tuple[str, ...] = STACK) -> None:
    """Raise StackError if any of these packages is missing or cannot be used."""
    problem = stack_problem(stack)
    if problem is not None:
        raise StackError(problem)


def require_package(name: str, extra: str) -> None:
    """Raise StackError, naming the extra to install, if a package is missing."""
    if importlib.util.find_spec(name) is None:
        clone = Path(__file__).parents[1]
        is_clone = (clone / "setup.py").is_file()
        extras = f"-e '{clone}[mm,{extra}]'" if is_clone else f"'mmseg-attention[{extra}]'"
        raise StackError(f"the package {name!r} is not installed; run: pip install {extras}")


def configs_folder() -> Path:
    """Return the folder of the configs, in a clone or an installation."""
    package = Path(__file__).parent
    folder = package / ".mim" / "configs"  # in an editable installation a link into the clone
    if not folder.is_dir():
        folder = package.parent / "configs"
    return folder.resolve()


def has_compiled_operators() -> bool:
    """Return whether mmcv has its extension module; our replacement has no file."""
    found = importlib.util.find_spec(COMPILED_OPERATORS)
    return found is not None and found.has_location

"""Whether the mm stack can be imported, in one line with the remedy, and what `env` prints."""

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
from pathlib import Path
from types import ModuleType

from mmseg_ext.errors import StackError
from mmseg_ext.upstream import COMPILED_OPERATORS

# By import names, which the maintained and the original packages share. The oldest version that is
# accepted is that of the original packages.
LOWEST = {"mmengine": "0.10.7", "mmcv": "2.1.0", "mmseg": "1.2.2"}
TESTED = {"torch": "2.13.0", "mmengine": "0.10.12", "mmcv": "2.3.6", "mmseg": "1.4.2"}
# The distributions of each: whichever of a row was installed last owns the modules.
DISTRIBUTIONS = {
    "mmengine": ("onedl-mmengine", "mmengine"),
    "mmcv": ("onedl-mmcv", "mmcv", "mmcv-lite"),
    "mmseg": ("onedl-mmsegmentation", "mmsegmentation"),
}
STACK = tuple(LOWEST)
BASE = STACK[:2]
"""What the backbones, the runner and the hooks need; mmdetection and mmpretrain do the rest."""
ONEDL = (
    f"pip install onedl-mmcv=={TESTED['mmcv']} onedl-mmengine=={TESTED['mmengine']} "
    f"onedl-mmsegmentation=={TESTED['mmseg']} matplotlib rich"
)
MMLAB = (
    f"pip install mmcv-lite=={LOWEST['mmcv']} mmengine=={LOWEST['mmengine']} "
    f"mmsegmentation=={LOWEST['mmseg']} ftfy regex 'setuptools<82' matplotlib rich"
)


def installed() -> list[str]:
    """The distributions of the mm stack that are installed."""
    known = (name for names in DISTRIBUTIONS.values() for name in names)
    return [name for name in known if _is_installed(name)]


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def remedy() -> str:
    """The command that completes the set of packages that is there, or installs the maintained one.

    Where the two sets are mixed, both are removed first.
    """
    there = installed()
    ours = [name for name in there if name.startswith("onedl-")]
    if ours and len(ours) < len(there):
        return f"pip uninstall -y {' '.join(there)} && {ONEDL}"
    return MMLAB if there and not ours else ONEDL


def mixture() -> str | None:
    """A line if two distributions have written the same modules, else None."""
    there = installed()
    for name, distributions in DISTRIBUTIONS.items():
        both = [d for d in distributions if d in there]
        if len(both) > 1:
            return (
                f"mmseg_ext: {' and '.join(both)} both install the module {name!r}, and each has "
                f"overwritten parts of the other; run: {remedy()}"
            )
    return None


@contextlib.contextmanager
def quiet_stack_imports() -> Iterator[None]:
    """Silence what mmcv and mmseg print and warn of parts that nothing here needs."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.filterwarnings("ignore", message="Fail to import ``MultiScaleDeformable")
        yield


@contextlib.contextmanager
def _without_half_of_mmdet() -> Iterator[None]:
    """Hide mmdet from mmseg, which tries it, where mmcv has no compiled operators.

    The import would fail half-way, and the modules that did import would keep functions that refuse
    to work, even if `mmseg_ext.detection.operators_in_pytorch` comes later.
    """
    if "mmdet" in sys.modules or importlib.util.find_spec(COMPILED_OPERATORS) is not None:
        yield
        return
    sys.modules["mmdet"] = None  # "not found", at once
    try:
        yield
    finally:
        del sys.modules["mmdet"]


def _import(name: str) -> ModuleType:
    hidden = _without_half_of_mmdet() if name.startswith("mmseg") else contextlib.nullcontext()
    with quiet_stack_imports(), hidden:
        return importlib.import_module(name)


@functools.cache
def stack_problem(stack: tuple[str, ...] = STACK) -> str | None:
    """None if these packages import in versions that we accept, else one line with the remedy."""
    problems = filter(None, map(_problem, stack))
    return next((mixture() or f"mmseg_ext: {p}; run: {remedy()}" for p in problems), None)


def _problem(name: str) -> str | None:
    if importlib.util.find_spec(name) is None:
        return f"the package {name!r} is not installed"
    try:
        version = str(getattr(_import(name), "__version__", "of unknown version"))
        if _release(version) < _release(LOWEST[name]):
            return f"{name} {version} is older than {LOWEST[name]}, the oldest supported version"
        if name == "mmseg":  # 1.2.2 imports without ftfy and mmcv's operators, its models do not
            name = "mmseg.models"
            _import(name)
    except Exception as error:  # mmseg 1.2.2 raises AssertionError for a newer mmcv
        return f"{name!r} is installed but fails to import ({' '.join(str(error).split())})"
    return None


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def check_stack(stack: tuple[str, ...] = STACK) -> None:
    """Raise StackError with the line of `stack_problem`, if there is a problem."""
    problem = stack_problem(stack)
    if problem is not None:
        raise StackError(problem)


def require_package(name: str, extra: str) -> None:
    """Raise StackError, naming the extra to install, if another OpenMMLab package is missing."""
    if importlib.util.find_spec(name) is None:
        raise StackError(
            f"the package {name!r} is not installed; run, in the repository's folder: "
            f"pip install -e '.[mm,{extra}]'"
        )


def module_version(name: str) -> str:
    """The module's `__version__`, or why there is none."""
    try:
        return str(getattr(_import(name), "__version__", "unknown"))
    except Exception as error:
        return f"not usable: {' '.join(str(error).split())}"


def configs_folder() -> Path:
    """The folder of this package's configs, in an installation or in a clone."""
    package = Path(__file__).parent
    installed = package / ".mim" / "configs"  # in an editable installation a link to the clone's
    return (installed if installed.is_dir() else package.parent / "configs").resolve()


def registered_names() -> list[str]:
    """Every name that this package has put into mmengine's registries, sorted."""
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
    "not compiled: mmdetection's detectors run on slow stand-ins, and heads of mmsegmentation that "
    "use other operators (PointRend, CCNet, PSANet) cannot run"
)


def has_compiled_operators() -> bool:
    """Whether mmcv has its extension module; a stand-in has no file."""
    if importlib.util.find_spec("mmcv") is None:
        return False
    found = importlib.util.find_spec(COMPILED_OPERATORS)
    return found is not None and found.has_location


def describe() -> list[tuple[str, str]]:
    """Rows (what, value) of the environment: versions, stack, devices, ops, registered names."""
    import torch

    from mmseg_ext.version import __version__

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    rows = [
        ("mmseg_ext", __version__),
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("devices", ", ".join([*gpus, f"CPU, {torch.get_num_threads()} threads"])),
    ]
    for name, tested in TESTED.items():
        version = module_version(name)
        same = version.partition("+")[0] == tested
        rows.append((name, version if same else f"{version} (tested with {tested})"))
    rows.append(("packages", ", ".join(installed()) or "none"))
    rows.append(("stack", mixture() or stack_problem() or "usable"))
    if stack_problem() is None:
        rows.append(("mmcv.ops", "compiled" if has_compiled_operators() else _NO_OPERATORS))
        rows.append(("registered", ", ".join(registered_names())))
    return rows

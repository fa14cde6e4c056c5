"""What is installed: the mm stack's state in a sentence, and what the command `env` prints."""

import contextlib
import functools
import importlib
import importlib.util
import io
import platform
import re
import sys
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from mmseg_ext.errors import StackError

INSTALL = (
    "pip install onedl-mmcv==2.3.6 onedl-mmengine==0.10.12 onedl-mmsegmentation==1.4.2 "
    "matplotlib rich tensorboard"
)


class Requirement(NamedTuple):
    """An import name and the lowest version the code is written for.

    `part` is a module of it that must import, too.
    """

    module: str
    lowest: str
    part: str | None = None


# What the backbones, the runner and the hooks need; mmdetection and mmpretrain do the rest.
BASE = (
    Requirement("mmengine", "0.10.7"),
    Requirement("mmcv", "2.1.0"),
)
STACK = (
    *BASE,
    # mmseg 1.2.2 itself imports without ftfy and mmcv's compiled operators, its models do not.
    Requirement("mmseg", "1.2.2", part="mmseg.models"),
)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


@contextlib.contextmanager
def quiet_stack_imports() -> Iterator[None]:
    """Without what mmcv and mmseg say of parts that nothing here needs.

    mmcv warns that it has no compiled ops, and mmseg prints twice that an optional backend is
    missing (`print_log` without a logger prints even at the debug level).
    """
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.filterwarnings("ignore", message="Fail to import ``MultiScaleDeformable")
        yield


@contextlib.contextmanager
def _without_half_of_mmdet() -> Iterator[None]:
    """mmseg tries mmdet, which fails half-way where mmcv has no compiled operators.

    The modules that did import would keep functions that refuse to work, in spite of
    `operators_in_pytorch`, which may come later and then gives mmseg what it missed.
    """
    if "mmdet" in sys.modules or importlib.util.find_spec("mmcv._ext") is not None:
        yield
        return
    sys.modules["mmdet"] = None  # "not found", at once
    try:
        yield
    finally:
        del sys.modules["mmdet"]


def _import(name: str) -> ModuleType:
    with quiet_stack_imports():
        if not name.startswith("mmseg"):
            return importlib.import_module(name)
        with _without_half_of_mmdet():
            return importlib.import_module(name)


@functools.cache
def stack_problem(stack: tuple[Requirement, ...] = STACK) -> str | None:
    """None where mmengine, mmcv and mmseg import in versions we accept, else one line.

    With `stack=BASE` mmseg is not asked for.
    """
    for requirement in stack:
        name = requirement.module
        if importlib.util.find_spec(name) is None:
            return f"mmseg_ext: the package {name!r} is not installed; run: {INSTALL}"
        try:
            module = _import(name)
            version = str(getattr(module, "__version__", None))
            if not _release(version):
                return f"mmseg_ext: {name} is of unknown version ({version}); run: {INSTALL}"
            if _release(version) < _release(requirement.lowest):
                return (
                    f"mmseg_ext: {name} {version} is older than {requirement.lowest}, the oldest "
                    f"that is supported; run: {INSTALL}"
                )
            if requirement.part is not None:
                name = requirement.part
                _import(name)
        except Exception as error:  # mmseg 1.2.2 raises AssertionError for a newer mmcv
            reason = " ".join(str(error).split())
            return (
                f"mmseg_ext: {name!r} is installed but fails to import ({reason}); run: {INSTALL}"
            )
    return None


def check_stack(stack: tuple[Requirement, ...] = STACK) -> None:
    """What an import that needs the stack asks first.

    Raises:
        StackError: with the line of `stack_problem`, where there is a problem.
    """
    problem = stack_problem(stack)
    if problem is not None:
        raise StackError(problem)


def require_package(name: str, extra: str) -> None:
    """What a module that is for another OpenMMLab package asks for before it imports it.

    Raises:
        StackError: if the package is not installed, in one line with the extra that has it.
    """
    if importlib.util.find_spec(name) is None:
        raise StackError(
            f"the package {name!r} is not installed; run, in the repository's folder: "
            f"pip install -e '.[mm,{extra}]'"
        )


def require_stack(status: int = 1, segmentation: bool = True) -> None:
    """End the process with `stack_problem`'s line and this exit status where there is a problem.

    The first thing a tool does, before it imports what needs the stack. A tool that is not for
    `segmentation` alone runs without mmseg, too, where there is mmdet or mmpretrain.
    """
    problem = stack_problem()
    others = any(importlib.util.find_spec(name) for name in ("mmdet", "mmpretrain"))
    if not segmentation and others and importlib.util.find_spec("mmseg") is None:
        problem = stack_problem(BASE)
    if problem is not None:
        print(problem, file=sys.stderr)
        sys.exit(status)


def tested_set() -> dict[str, str]:
    """The version of each package that the tests run with, from constraints.txt."""
    package = Path(__file__).parent
    places = (package / ".mim" / "constraints.txt", package.parent / "constraints.txt")
    text = next((p.read_text(encoding="utf-8") for p in places if p.is_file()), "")
    return dict(re.findall(r"^([\w-]+)==([^\s;]+)", text, re.M))


def other_versions() -> list[str]:
    """'torch 2.9.1, not 2.13.0' for each installed package that is not the tested one."""
    found = []
    for name, tested in tested_set().items():
        with contextlib.suppress(metadata.PackageNotFoundError):
            version = metadata.version(name)
            if version.partition("+")[0] != tested:
                found.append(f"{name} {version}, not {tested}")
    return found


def stack_status() -> str:
    """'tested', 'untested' (accepted, but not the set the tests run on) or the problem."""
    problem = stack_problem()
    if problem is not None:
        return problem
    others = other_versions()
    if not tested_set():
        return "unknown: constraints.txt, which names the tested set, is not there"
    if not others:
        return "tested"
    return (
        f"untested: no test has seen {'; '.join(others)}. pip install -c constraints.txt mends it"
    )


def _version(name: str) -> str:
    if importlib.util.find_spec(name) is None:
        return "not installed"
    try:
        return str(getattr(importlib.import_module(name), "__version__", "unknown"))
    except Exception as error:
        return f"fails to import: {' '.join(str(error).split())}"


def _devices() -> str:
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    cpu = f"CPU, {torch.get_num_threads()} threads"
    return ", ".join([*names, cpu])


def _compiled_ops() -> str:
    if importlib.util.find_spec("mmcv") is None:
        return "no mmcv"
    found = importlib.util.find_spec("mmcv._ext") is not None
    return "present" if found else "absent (mmdetection alone needs them)"


def registered_names() -> list[str]:
    """Every name that this package has put into mmengine's registries, sorted."""
    from mmengine import registry as registries

    found = set()
    for root in vars(registries).values():
        if not isinstance(root, registries.Registry):
            continue
        for registry in (root, *root.children.values()):
            found |= {
                name
                for name, item in registry.module_dict.items()
                if getattr(item, "__module__", "").startswith("mmseg_ext.")
            }
    return sorted(found)


def describe() -> list[tuple[str, str]]:
    """Rows (what, value) of the environment: versions, stack, devices, ops, registered names."""
    import torch

    from mmseg_ext.version import __version__

    rows = [
        ("mmseg_ext", __version__),
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("torch", torch.__version__),
        ("devices", _devices()),
    ]
    rows += [(r.module, _version(r.module)) for r in STACK]
    rows += [("stack", stack_status()), ("mmcv.ops", _compiled_ops())]
    if stack_problem() is None:
        rows.append(("registered", ", ".join(registered_names())))
    return rows

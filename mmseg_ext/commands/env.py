"""Print versions, devices and registered names; status 1 if the mm stack is unusable."""

import argparse
import platform
import sys

from mmseg_ext import __version__, environment
from mmseg_ext.commands import command, command_parser, prepare_stack
from mmseg_ext.errors import one_line

_NO_OPERATORS = (
    "not compiled: detectors run on slow replacements, and heads of mmsegmentation that use other "
    "operators (PointRend, CCNet, PSANet) cannot run"
)


def parser() -> argparse.ArgumentParser:
    return command_parser(__doc__)


@command(parser, stack=False)
def main(args: argparse.Namespace) -> int:
    prepare_stack()
    rows = describe()
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    if problem := environment.stack_problem():
        print(problem, file=sys.stderr)
    return int(problem is not None)


def registered_names() -> list[str]:
    """Return the names that this package has registered with mmengine, sorted."""
    from mmseg_ext.engine.build_errors import registered

    own = set()
    for name, part in registered():
        if getattr(part, "__module__", "").startswith("mmseg_ext."):
            own.add(name)
    return sorted(own)


def describe() -> list[tuple[str, str]]:
    """Return rows (name, value): versions, devices, packages, operators, registered names."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    rows = [
        ("mmseg_ext", __version__),
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("devices", ", ".join(gpus + [f"CPU, {torch.get_num_threads()} threads"])),
    ]
    for name, tested in environment.TESTED.items():
        try:
            version = str(getattr(environment.import_quietly(name), "__version__", "unknown"))
        except Exception as error:
            version = f"not usable: {one_line(error)}"
        if version.partition("+")[0] != tested:
            version += f" (tested with {tested})"
        rows.append((name, version))
    rows.append(("packages", ", ".join(environment.installed()) or "none"))
    problem = environment.other_project() or environment.mixture() or environment.stack_problem()
    rows.append(("stack", problem or "usable"))
    if environment.stack_problem() is None:
        compiled = environment.has_compiled_operators()
        rows.append(("mmcv.ops", "compiled" if compiled else _NO_OPERATORS))
        rows.append(("registered", ", ".join(registered_names())))
        from mmseg_ext.durable.levers import LEVERS

        rows += [(f"lever {lever.key}", lever.about) for lever in LEVERS]
    return rows

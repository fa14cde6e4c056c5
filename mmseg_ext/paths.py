"""Where the files of this package are, in a clone and in an installation."""

import difflib
from pathlib import Path

from mmseg_ext.errors import LaunchError


def configs_folder() -> Path:
    """Return the folder of the configs."""
    package = Path(__file__).parent
    installed = package / ".mim" / "configs"  # in an editable installation a link into the clone
    return (installed if installed.is_dir() else package.parent / "configs").resolve()


def model_names() -> list[str]:
    """Return the names of the configs, sorted."""
    return sorted(path.stem for path in configs_folder().glob("*.py"))


def config_path(name: str) -> str:
    """Return the path of the config `name`: a path, or one of `model_names`.

    Raises:
        LaunchError: if `name` has no ending, and is no model.
    """
    if Path(name).suffix or Path(name).exists():
        return name
    if name not in (names := model_names()):
        hints = difflib.get_close_matches(name, names) or ["mmseg_ext.list_models()"]
        raise LaunchError(f"config: there is no model {name!r}; see {', '.join(hints)}")
    return str(configs_folder() / f"{name}.py")

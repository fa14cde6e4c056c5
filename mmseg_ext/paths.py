"""Where the files of this package are, in a clone and in an installation."""

from pathlib import Path


def configs_folder() -> Path:
    """Return the folder of the configs."""
    package = Path(__file__).parent
    installed = package / ".mim" / "configs"  # in an editable installation a link into the clone
    return (installed if installed.is_dir() else package.parent / "configs").resolve()

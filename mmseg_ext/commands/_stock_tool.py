"""mmsegmentation's own tools, which its wheel carries, run as they are with our modules known."""

import runpy
import sys
from pathlib import Path

from mmseg_ext import register_all_modules


def stock_tool(name: str) -> Path:
    """The script `name` under mmsegmentation's `tools`.

    Raises:
        FileNotFoundError: if the installed mmsegmentation carries no such tool.
    """
    import mmseg

    path = Path(mmseg.__file__).parent / ".mim" / "tools" / name
    if not path.is_file():
        raise FileNotFoundError(
            f"mmsegmentation {mmseg.__version__} carries no tools/{name} (looked for {path}); "
            "install its wheel: pip install onedl-mmsegmentation"
        )
    return path


def run_stock_tool(name: str) -> None:
    """Run it as the program, with this process's command line."""
    register_all_modules()
    try:
        path = stock_tool(name)
    except FileNotFoundError as error:
        sys.exit(str(error))
    runpy.run_path(str(path), run_name="__main__")

"""Draw the README's pictures: `make demo`, then `python tools/misc/draw_readme_pictures.py`."""

import argparse
from pathlib import Path

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.analysis.readme_pictures import draw_readme_pictures

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo-dir", type=Path, default=Path("work_dirs/demo"))
    parser.add_argument("--destination", type=Path, default=Path("docs/images"))
    args = parser.parse_args()
    try:
        for path in draw_readme_pictures(args.demo_dir, args.destination):
            print(path)
    except ValueError as error:
        parser.exit(1, f"{error}\n")

"""Train EANet on the embedded dataset, test it and draw its predictions: what `make demo` runs."""

import argparse
import sys
from pathlib import Path

from mmseg_ext import require_stack

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work-dir", type=Path, default=Path("work_dirs/demo"))
    parser.add_argument("--data-root", help="where the dataset is, or is generated (data/shapes)")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="train FCN and DANet under the same budget too, and write a table",
    )
    args = parser.parse_args()
    require_stack()
    from mmseg_ext.commands.demo import DEMO_CONFIG, compare, data_root_options, demo

    if not Path(DEMO_CONFIG).is_file():
        sys.exit(f"mmseg_ext: there is no {DEMO_CONFIG} here: run it in the repository's folder")
    options = data_root_options(args.data_root) if args.data_root else None
    try:
        if args.compare:
            compare(args.work_dir, options)
        elif not demo(args.work_dir, options):
            sys.exit(1)
    except FileExistsError as error:  # another recipe's scenes
        sys.exit(f"mmseg_ext: data: {error}")

"""Check a config's data: `python tools/misc/check_dataset.py CONFIG`; `--help` lists the flags."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack(status=2)
    from mmseg_ext import register_all_modules
    from mmseg_ext.commands.check_dataset import main

    register_all_modules()
    sys.exit(main())

"""One HTML page about one or several runs: `report.py WORK_DIR [WORK_DIR ...]`."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands.report import main

    sys.exit(main())

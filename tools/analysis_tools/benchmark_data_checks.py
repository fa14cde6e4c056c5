"""What checking the data costs; `--help` lists the comparisons."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext import register_all_modules
    from mmseg_ext.analysis.data_check_speed import main

    register_all_modules()
    sys.exit(main())

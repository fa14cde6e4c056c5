"""Plot scalars of training logs; see `--help`."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands.analyze_logs import main

    sys.exit(main())

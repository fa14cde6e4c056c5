"""Plot scalars of training logs; see `--help`."""

import sys

from mmseg_ext.analysis.log_command import main

if __name__ == "__main__":
    sys.exit(main())

"""Draw the confusion matrix of predictions that `tools/test.py --out` wrote; see `--help`."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands.confusion_matrix import main

    sys.exit(main())

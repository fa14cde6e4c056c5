"""Draw the confusion matrix of predictions that `tools/test.py --out` wrote; see `--help`."""

import sys

from mmseg_ext.analysis.confusion_command import main

if __name__ == "__main__":
    sys.exit(main())

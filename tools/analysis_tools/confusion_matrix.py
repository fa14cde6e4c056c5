"""Draw the confusion matrix of predictions that `tools/test.py --out` wrote; see `--help`."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("confusion_matrix")

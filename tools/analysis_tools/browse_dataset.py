"""Draw training samples with their labels: mmsegmentation's browse_dataset.py; see `--help`."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("browse_dataset")

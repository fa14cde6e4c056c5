"""Convert a dataset: `python tools/dataset_converters/prepare.py camvid SRC DST`; see `--help`."""

from mmseg_ext_cli import start

if __name__ == "__main__":
    start("prepare")

"""Convert published weights: `convert.py FAMILY SRC DST`; `--help` lists the families."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("convert")

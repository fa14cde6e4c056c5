"""Check a config's data: `python tools/misc/check_dataset.py CONFIG`; `--help` lists the flags."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("check_dataset")

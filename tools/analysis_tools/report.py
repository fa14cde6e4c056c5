"""One HTML page about one or several runs: `report.py WORK_DIR [WORK_DIR ...]`."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("report")

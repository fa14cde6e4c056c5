"""Plot scalars of training logs; see `--help`."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("analyze_logs")

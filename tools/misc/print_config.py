"""Print the config and the run record that tools/train.py would start with; --help has flags."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("print_config")

"""Tables of what attention blocks and heads cost; `--help` of each command says more."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("cost_table")

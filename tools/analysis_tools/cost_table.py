"""Tables of what attention blocks and heads cost; `--help` of each command says more."""

import sys

from mmseg_ext.analysis.cost_command import main

if __name__ == "__main__":
    sys.exit(main())

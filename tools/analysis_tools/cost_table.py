"""Tables of what attention blocks and heads cost; `--help` of each command says more."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands.cost_table import main

    sys.exit(main())

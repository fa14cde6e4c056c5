"""How far context blocks carry: `context_probe.py [--seeds N] [--plot PNG]`."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands.context_probe import main

    sys.exit(main())

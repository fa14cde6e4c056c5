"""Parameters, multiply-adds, time and memory of configs, as the table of docs/model_zoo.md."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands.model_zoo import main

    sys.exit(main())

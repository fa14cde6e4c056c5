"""Weights of a training checkpoint as a file to give to others: `publish_model.py IN OUT`."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands.publish_model import main

    sys.exit(main())

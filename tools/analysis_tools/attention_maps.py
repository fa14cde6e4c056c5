"""What a model attends to: `attention_maps.py CONFIG CKPT IMAGE [IMAGE ...]`."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands.attention_maps import main

    sys.exit(main())

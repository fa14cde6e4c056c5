"""Attention collapse of a backbone: `attention_similarity.py CONFIG [CKPT] [--images FOLDER]`."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands.attention_similarity import main

    sys.exit(main())

"""Segment an image, a folder or a video: `image_demo.py IMG|DIR|VIDEO CONFIG CKPT`; see `--help`.

Several GPUs share a folder: `torchrun --nproc_per_node=4 demo/image_demo.py DIR CONFIG CKPT`.
"""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands.image_demo import main

    sys.exit(main())

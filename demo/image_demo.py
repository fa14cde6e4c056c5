"""Segment an image, a folder or a video: `image_demo.py IMG|DIR|VIDEO CONFIG CKPT`; see `--help`.

Several GPUs share a folder: `torchrun --nproc_per_node=4 demo/image_demo.py DIR CONFIG CKPT`.
"""

import sys

from mmseg_ext.inference.command import main

if __name__ == "__main__":
    sys.exit(main())

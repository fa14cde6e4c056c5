"""Segment an image, a folder or a video: `image_demo.py IMG|DIR|VIDEO CONFIG CKPT`; see `--help`.

Several GPUs share a folder: `torchrun --nproc_per_node=4 demo/image_demo.py DIR CONFIG CKPT`.
"""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("image_demo")

"""Train a segmentor: `python tools/train.py CONFIG`; `--help` lists mmsegmentation's flags."""

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack(segmentation=False)
    from mmseg_ext.engine.launch import train

    train()

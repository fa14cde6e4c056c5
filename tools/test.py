"""Test a segmentor: `python tools/test.py CONFIG CHECKPOINT [--tta]`; `--help` lists the flags."""

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack(segmentation=False)
    from mmseg_ext.engine.launch import test

    test()

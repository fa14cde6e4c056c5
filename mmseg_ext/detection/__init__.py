"""mmcv's operators in plain PyTorch, and COCO annotations of the embedded scenes."""

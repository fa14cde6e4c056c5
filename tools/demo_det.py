"""Train a small Mask R-CNN with RMT on the embedded scenes (`make demo-det`)."""

from mmseg_ext_cli import start

if __name__ == "__main__":
    start("demo_det")

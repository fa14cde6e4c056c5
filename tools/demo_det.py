"""Train Mask R-CNN with a small RMT on the embedded scenes: what `make demo-det` runs."""

from mmseg_ext_cli import start

if __name__ == "__main__":
    start("demo_det")

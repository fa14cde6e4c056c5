"""Images a second on a test set of 200 images or more: mmsegmentation's benchmark.py."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("benchmark")

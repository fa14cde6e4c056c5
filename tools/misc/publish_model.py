"""Weights of a training checkpoint as a file to give to others: `publish_model.py IN OUT`."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("publish_model")

"""Attention collapse of a backbone: `attention_similarity.py CONFIG [CKPT] [--images FOLDER]`."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("attention_similarity")

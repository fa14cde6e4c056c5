"""A published DeepViT classifier to the backbone DeepViT, or with --classifier to the whole."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("deepvit2mmseg")

"""A published DeepViT classifier to the backbone DeepViT, or with --classifier to the whole."""

import sys

from mmseg_ext.checkpoint.convert_file import main

if __name__ == "__main__":
    sys.exit(main("deepvit", classifier=True))

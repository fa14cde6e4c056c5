"""A published DeepViT classifier to the backbone DeepViT, or with --classifier to the whole."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands._convert_file import main

    sys.exit(main("deepvit", classifier=True))

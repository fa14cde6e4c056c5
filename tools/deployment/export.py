"""Export a segmentor to ONNX or torch.export's .pt2: `export.py CONFIG CKPT`; see `--help`."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands.export import main

    sys.exit(main())

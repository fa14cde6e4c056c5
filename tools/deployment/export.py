"""Export a segmentor to ONNX or torch.export's .pt2: `export.py CONFIG CKPT`; see `--help`."""

import sys

from mmseg_ext.deployment.command import main

if __name__ == "__main__":
    sys.exit(main())

"""Export a segmentor to ONNX or torch.export's .pt2: `export.py CONFIG CKPT`; see `--help`."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("export")

"""What a model attends to: `attention_maps.py CONFIG CKPT IMAGE [IMAGE ...]`."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("attention_maps")

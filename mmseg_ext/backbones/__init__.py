"""The backbones; importing this package registers them in mmseg's MODELS."""

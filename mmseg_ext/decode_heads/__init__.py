"""The decode heads; importing this package registers them in mmseg's MODELS."""

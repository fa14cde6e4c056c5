"""Test-time augmentation; importing this package registers it in mmseg's MODELS."""

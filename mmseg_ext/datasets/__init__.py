"""Datasets and transforms; importing this package registers them with mmseg."""

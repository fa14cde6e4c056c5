"""Inference with a trained segmentor: models by name, prediction and export."""

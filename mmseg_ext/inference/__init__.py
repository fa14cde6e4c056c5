"""Inference with a trained segmentor: models by name, prediction, fusion and export."""

"""A trained segmentor as one file that runs without mmsegmentation: torch.export and ONNX."""

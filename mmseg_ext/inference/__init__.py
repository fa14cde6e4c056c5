"""Predictions for images, and a trained segmentor as one file that runs without mmsegmentation."""


def __getattr__(name: str):
    """`Predictor`, imported when it is asked for: `fusion` beside it needs torch alone."""
    if name == "Predictor":
        from mmseg_ext.inference.predictor import Predictor

        return Predictor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

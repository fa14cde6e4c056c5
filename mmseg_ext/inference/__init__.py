"""A trained segmentor made ready for use: as a predictor, fused, or as one exported file."""

__all__ = ["Predictor"]


def __getattr__(name: str):
    """`Predictor` is imported when it is asked for: it needs mmsegmentation, `fusion` does not."""
    if name == "Predictor":
        from mmseg_ext.inference.predictor import Predictor

        return Predictor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

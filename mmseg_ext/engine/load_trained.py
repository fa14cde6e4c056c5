"""A config and a checkpoint as a model, with the classes that its scores are of."""

import warnings
from pathlib import Path

from mmengine.config import Config
from mmseg.apis import init_model
from torch import nn

from mmseg_ext.checkpoint.files import read_checkpoint, unwrap_state_dict
from mmseg_ext.checkpoint.loading import check_finite
from mmseg_ext.datasets.metainfo import classes_and_palette

_TRAINING_ALONE = "auxiliary_head"


def load_trained(config: Config, checkpoint: str | Path | None) -> tuple[nn.Module, dict]:
    """The segmentor on the CPU, for inference, and its `classes` and `palette`.

    These are the checkpoint's where it names them, else those of the config's test dataset.
    Weights are read without running code; None leaves them random. Auxiliary heads, which training
    alone uses, may be missing on either side.

    Raises:
        ValueError: for weights that are not finite, or not all of the model and no more, and where
            nothing names the classes.
        OSError: for a checkpoint that is not there.
    """
    with warnings.catch_warnings():  # about a loss, which inference has not
        warnings.filterwarnings("ignore", message="Default ``avg_non_ignore``")
        model = init_model(config, None, device="cpu")
    meta = None
    if checkpoint is not None:
        content = read_checkpoint(checkpoint)
        weights = unwrap_state_dict(content, str(checkpoint))
        check_finite(model, weights)
        try:
            misfits = model.load_state_dict(weights, strict=False)
            problems = [f"it lacks {key}" for key in misfits.missing_keys]
            problems += [f"the model lacks {key}" for key in misfits.unexpected_keys]
        except RuntimeError as error:  # shapes, one a line
            problems = [line.strip() for line in str(error).splitlines()[1:]]
        problems = [p for p in problems if f"lacks {_TRAINING_ALONE}" not in p]
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise ValueError(f"{checkpoint}: does not fit the config: {problems[0][:300]}{more}")
        saved = content.get("meta")
        meta = saved.get("dataset_meta") if isinstance(saved, dict) else None
    return model, meta or classes_and_palette(config.test_dataloader.dataset)

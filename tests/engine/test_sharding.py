"""Two processes with shards of everything train as one does, and write an ordinary checkpoint."""

import numpy as np
import pytest
import torch

from tests.engine.runs import recorded, run_tool, train_here, train_words, write_config
from tests.engine.states import UNVALIDATED

# A backbone of blocks with a pyramid, and what differs between one process and two taken out:
# dropout, and the order of samples.
MODEL = """
model["backbone"] = dict(
    type="RMT",
    arch=dict(
        depths=(1, 1, 2, 1), embed_dims=(16, 32, 32, 64), num_heads=(2, 2, 2, 4),
        ffn_ratios=(3, 3, 3, 3), decay_ranges=(4, 4, 6, 6),
        decomposed=(True, True, False, False), layer_scales=(None, None, None, None),
        drop_path_rate=0.0,
    ),
    norm_cfg=dict(type="GN", num_groups=4),
)
model["neck"] = dict(type="FPN", in_channels=[16, 32, 32, 64], out_channels=16, num_outs=4)
model["decode_head"] = dict(
    type="FPNHead", in_channels=[16] * 4, in_index=[0, 1, 2, 3], feature_strides=[4, 8, 16, 32],
    channels=16, dropout_ratio=0, num_classes=3, norm_cfg=norm_cfg, align_corners=False,
)
optim_wrapper = dict(
    type="OptimWrapper", optimizer=dict(type="AdamW", lr=1e-3), clip_grad=dict(max_norm=1.0)
)
"""
SHARDS = "model_wrapper_cfg = dict(type='FullyShardedModel', block_parameters=10000)\n"


@pytest.mark.distributed
def test_two_processes_with_parts_of_the_state_are_one(tmp_path):
    """Losses, weights and the optimizer's states; one process takes the checkpoint up."""
    losses = "custom_hooks = [dict(type='RecordLoss', path={!r})]\n"
    alone = write_config(tmp_path, MODEL + UNVALIDATED + losses.format(f"{tmp_path}/one"), "1.py")
    parts = MODEL + UNVALIDATED + losses.format(f"{tmp_path}/two") + SHARDS
    steps, half = "train_cfg.max_iters=4", "train_dataloader.batch_size=2"
    words = train_words(write_config(tmp_path, parts, "2.py"), tmp_path / "work", steps, half)
    result = run_tool("train.py", *words, ranks=2)
    assert result.returncode == 0, result.stderr[-2000:]
    train_here(alone, tmp_path / "alone", steps)
    one, *two = (list(recorded(tmp_path / n).values()) for n in ("one.0", "two.0", "two.1"))
    np.testing.assert_allclose(np.mean(two, axis=0), one, rtol=1e-5)

    ours, expected = (
        torch.load(tmp_path / work / "iter_4.pth", weights_only=True) for work in ("work", "alone")
    )
    torch.testing.assert_close(ours["state_dict"], expected["state_dict"], rtol=1e-4, atol=2e-5)
    moments = [[s["exp_avg"] for s in c["optimizer"]["state"].values()] for c in (ours, expected)]
    torch.testing.assert_close(*moments, rtol=1e-3, atol=1e-6)
    train_here(alone, tmp_path / "work", "train_cfg.max_iters=5", flags=("--resume",))
    assert list(recorded(tmp_path / "one.0"))[-1] == 5

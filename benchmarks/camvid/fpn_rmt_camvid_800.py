# A narrow RMT with Semantic FPN with the budget of the CamVid table (docs/camvid.md).
_base_ = "./_base_/fpn.py"
env_cfg = dict(cudnn_benchmark=False)  # cuDNN compiles depthwise convolutions to tune them
model = dict(
    backbone=dict(
        type="RMT",
        arch=dict(
            depths=(2, 2, 3, 2),
            embed_dims=(56, 112, 224, 336),
            num_heads=(4, 4, 8, 8),
            ffn_ratios=(3, 3, 3, 3),
            decay_ranges=(4, 4, 6, 6),
            decomposed=(True, True, False, False),
            layer_scales=(None, None, None, None),
            drop_path_rate=0.0,
        ),
        out_indices=(0, 1, 2, 3),
        norm_cfg=_base_.norm_cfg,
    ),
    neck=dict(in_channels=[56, 112, 224, 336]),
)

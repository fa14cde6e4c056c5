# A narrow EAMLP with Semantic FPN with the budget of the CamVid table (docs/camvid.md).
_base_ = "./_base_/fpn.py"
model = dict(
    backbone=dict(
        type="EAMLP",
        arch=dict(embed_dims=224, depth=7, num_heads=4, mlp_ratio=3),
        img_size=160,
        out_indices=(3, 4, 5, 6),
    ),
    neck=dict(
        _delete_=True,
        type="MultiLevelNeck",
        in_channels=[224, 224, 224, 224],
        out_channels=32,
        scales=[4, 2, 1, 0.5],
    ),
)

# A narrow DeepViT, re-attention in every block, with Semantic FPN under the budget of the CamVid
# table (docs/camvid.md).
_base_ = "./_base_/fpn.py"
model = dict(
    backbone=dict(
        type="DeepViT",
        arch=dict(
            embed_dims=192,
            depth=14,
            num_heads=6,
            mlp_ratio=3,
            conv_patch_embed=False,
            re_attention_blocks=None,
            transform_scale=False,
            scale_adjustment=1.0,
        ),
        img_size=160,
        out_indices=(4, 7, 10, 13),
    ),
    neck=dict(
        _delete_=True,
        type="MultiLevelNeck",
        in_channels=[192, 192, 192, 192],
        out_channels=32,
        scales=[4, 2, 1, 0.5],
    ),
)

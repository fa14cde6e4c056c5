# UPerNet on EAMLP-14: maps of four blocks, all of stride 16, to a pyramid of strides 4 to 32.
_base_ = "./upernet.py"
model = dict(
    # EAMLP-14's weights are not published. To start from your own, trained with the published code,
    # convert them with `mmseg-ext convert eamlp SRC DST` and set
    # init_cfg=dict(type="Pretrained", checkpoint=DST).
    backbone=dict(
        type="EAMLP",
        arch="14",
        img_size=224,  # the size of the pretraining, not of the crops
        out_indices=(4, 7, 10, 13),
        drop_path_rate=0.1,
    ),
    neck=dict(
        type="MultiLevelNeck",
        in_channels=[384, 384, 384, 384],
        out_channels=384,
        scales=[4, 2, 1, 0.5],
    ),
    decode_head=dict(in_channels=[384, 384, 384, 384]),
    auxiliary_head=dict(in_channels=384),
)

# UPerNet on DeepViT: maps of four blocks, all of stride 16, to a pyramid of strides 4 to 32.
_base_ = "./upernet.py"
model = dict(
    data_preprocessor=dict(
        mean=[127.5, 127.5, 127.5],  # R, G, B of the published weights
        std=[127.5, 127.5, 127.5],
    ),
    # To start from published weights, convert them with `mmseg-ext convert deepvit SRC DST` and
    # set init_cfg=dict(type="Pretrained", checkpoint=DST).
    backbone=dict(
        type="DeepViT",
        arch="16b",
        # The size of the pretraining, not of the crops: the model interpolates the positions and
        # rescales the normalization of the attention maps from this size.
        img_size=224,
        out_indices=(3, 7, 11, 15),
        drop_path_rate=0.2,  # as in the published training
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

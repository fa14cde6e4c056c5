# MaSAHead (the attention of arXiv 2309.11523; the head is this project's own design) on the same
# backbone as EANet, with the same auxiliary head.
_base_ = "./r101-d8.py"
model = dict(
    decode_head=dict(
        type="MaSAHead",
        in_channels=2048,
        in_index=3,
        channels=512,
        num_heads=8,
        num_blocks=1,
        ffn_ratio=3,
        decay_start=2.0,
        decay_range=4.0,
        decomposed=True,
        dropout_ratio=0.1,
        num_classes=19,
        norm_cfg=dict(type="SyncBN", requires_grad=True),
        align_corners=False,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
    )
)

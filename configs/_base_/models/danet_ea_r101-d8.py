# DANet with external attention (arXiv 2105.02358) instead of position attention, on the same
# backbone as EANet.
_base_ = "./r101-d8.py"
model = dict(
    decode_head=dict(
        type="DANetEAHead",
        in_channels=2048,
        in_index=3,
        channels=512,
        memory_size=64,
        dropout_ratio=0.1,
        num_classes=19,
        norm_cfg=dict(type="SyncBN", requires_grad=True),
        align_corners=False,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
    )
)

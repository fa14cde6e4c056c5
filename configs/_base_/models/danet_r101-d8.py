# DANet (arXiv 1809.02983) as mmsegmentation configures it, on the same backbone as EANet.
_base_ = "./r101-d8.py"
model = dict(
    decode_head=dict(
        type="DAHead",
        in_channels=2048,
        in_index=3,
        channels=512,
        pam_channels=64,
        dropout_ratio=0.1,
        num_classes=19,
        norm_cfg=dict(type="SyncBN", requires_grad=True),
        align_corners=False,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
    )
)

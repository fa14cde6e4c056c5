# DANet instead of EANet, with the same training: for `make compare`.
_base_ = "./_base_/protocols/r18_shapes.py"
model = dict(
    decode_head=dict(
        type="DAHead",
        in_channels=128,
        in_index=3,
        channels=64,
        pam_channels=16,
        dropout_ratio=0.1,
        num_classes=6,
        norm_cfg=dict(type="BN", requires_grad=True),
        align_corners=True,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
    )
)

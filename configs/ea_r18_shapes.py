# EANet on the embedded dataset, from scratch on two CPU cores; `make demo` trains it.
_base_ = "./_base_/protocols/r18_shapes.py"
model = dict(
    decode_head=dict(
        type="EAHead",
        in_channels=128,
        in_index=3,
        channels=64,
        ea_channels=128,
        memory_size=64,
        dropout_ratio=0.1,
        num_classes=6,
        norm_cfg=dict(type="BN", requires_grad=True),
        align_corners=True,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
    )
)

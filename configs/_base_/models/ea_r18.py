# EANet on a small ResNet-18 of output stride 8: the head's widths follow `base_channels`.
_base_ = "./r18-d8.py"
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

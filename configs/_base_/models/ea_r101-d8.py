# EANet on mmsegmentation's standard ResNet-101 of output stride 8. Widths and memory size are as in
# the published head (MenghaoGuo/EANet, model_torch.py).
_base_ = "./r101-d8.py"
model = dict(
    decode_head=dict(
        type="EAHead",
        in_channels=2048,
        in_index=3,
        ea_channels=512,
        memory_size=64,
        channels=256,
        dropout_ratio=0.1,
        num_classes=19,
        norm_cfg=dict(type="SyncBN", requires_grad=True),
        align_corners=False,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
    )
)

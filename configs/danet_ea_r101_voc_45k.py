# DANet with external attention on PASCAL VOC under EANet's published protocol: the same backbone,
# data and schedule.
_base_ = "./_base_/protocols/r101_voc_45k.py"
model = dict(
    decode_head=dict(
        type="DANetEAHead",
        in_channels=2048,
        in_index=3,
        channels=512,
        memory_size=64,
        dropout_ratio=0.1,
        num_classes=21,
        norm_cfg=dict(type="SyncBN", requires_grad=True),
        align_corners=True,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
    )
)

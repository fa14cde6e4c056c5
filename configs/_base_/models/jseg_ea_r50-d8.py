# The EANet of the authors' own segmentation toolbox (Jittor/JSeg, project/eanet and
# jseg/ops/external_attention.py): 256 memory slots, convolutions with bias and ReLU and without
# batch norm, on ResNet-50.
_base_ = "./r101-d8.py"
model = dict(
    backbone=dict(
        depth=50, init_cfg=dict(type="Pretrained", checkpoint="open-mmlab://resnet50_v1c")
    ),
    decode_head=dict(
        type="JSegEAHead",
        in_channels=2048,
        in_index=3,
        channels=512,
        memory_size=256,
        dropout_ratio=0.1,
        num_classes=19,
        align_corners=False,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
    ),
)

# EANet's head on LambdaResNet-50 of output stride 8. `position_bias` fits the public weights of
# d-li14/lambda.pytorch: convert them with `mmseg-ext convert lambda_resnet SRC DST` and pass
# --cfg-options model.backbone.init_cfg.type=Pretrained model.backbone.init_cfg.checkpoint=DST.
_base_ = "./lambda_r50-d8.py"
model = dict(
    backbone=dict(position_bias=True),
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
    ),
)

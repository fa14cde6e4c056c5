# FCN's head on LambdaResNet-50 of output stride 8, from random weights: the common base of the
# comparison of convolutions, squeeze-excitation and lambda layers.
_base_ = "./lambda_r50-d8.py"
model = dict(
    decode_head=dict(
        type="FCNHead",
        in_channels=2048,
        in_index=3,
        channels=512,
        num_convs=2,
        concat_input=True,
        dropout_ratio=0.1,
        num_classes=19,
        norm_cfg=dict(type="SyncBN", requires_grad=True),
        align_corners=False,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
    )
)

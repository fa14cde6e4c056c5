# LambdaResNet-50 of output stride 8 with an FCN auxiliary head. The config that uses it adds the
# decode head.
_base_ = "./r101-d8.py"
model = dict(
    backbone=dict(
        _delete_=True,
        type="LambdaResNet",
        depth=50,
        strides=(1, 2, 1, 1),
        dilations=(1, 1, 2, 4),
        contract_dilation=True,
        norm_cfg=dict(type="SyncBN", requires_grad=True),
    )
)
